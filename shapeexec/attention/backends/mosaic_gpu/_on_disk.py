"""Keeps the texts of kernels in JAX's compilation cache, so that a new process finds them lowered.

Without it, JAX finds a program compiled in its cache, and yet has to lower the program first. See
docs/adr/0035. `_any_batch` decides what has one text.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from importlib import metadata
from typing import Any

import jax

from shapeexec import _compat, _identity

_FORMAT = "shapeexec kernel, 1"
_PREFIX = "shapeexec_kernel-"  # of the names of entries, beside those of JAX
_NOT_SET = "axis_env_state"  # of JAX's context: where it matters, a mesh is set, too
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def kernel(
    key: Hashable, lowered: Callable[[], _compat.MosaicKernel | None]
) -> _compat.MosaicKernel | None:
    """The kernel of a key: from disk, if JAX caches there and it was lowered before.

    Args:
        key: What the kernel depends on, but for JAX's settings, and versions.
        lowered: Lowers it; None: it cannot be kept.
    """
    cache = _compat.compilation_cache()
    name = None if cache is None else _name(key)
    if name is None:
        return lowered()
    found = _read(_compat.entry_of(cache, name))
    if found is not None:
        _compat.know_mosaic_kernel(found)
        return found
    made = lowered()
    if made is not None:
        _compat.add_entry(cache, name, content=_written(made))
    return made


def _name(key: Hashable) -> str | None:
    """The name of the entry of a key; None if another process could not tell what is in it.

    Such as a function of the user's, whose code may change.
    """
    context = _compat.named_settings(_compat.config_fingerprint())
    settings = {
        name: value
        for name, value in context.items()
        if name != _NOT_SET and not _compat.is_as_unregistered(name, value)
    }
    try:
        parts = key, settings, _compat.compile_settings(), _environment()
        return _PREFIX + _identity.digest(parts)
    except _identity.UnsaveableError:
        return None


@functools.cache
def _environment() -> Mapping[str, str]:
    return {
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "back end": _compat.default_device().client.platform_version,
        "shapeexec": _identity.sources(),
    }


def _written(kernel: _compat.MosaicKernel) -> bytes:
    """A line of JSON, and then the code."""
    head: dict[str, Any] = {
        "format": _FORMAT,
        "digest": kernel.digest.hex(),
        "options": kernel.options,
        "code": hashlib.sha256(kernel.code).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n" + kernel.code


def _read(content: bytes | None) -> _compat.MosaicKernel | None:
    """The kernel that `_written` wrote; None if it is damaged, or there is none."""
    line, _, code = (content or b"").partition(b"\n")
    try:
        head = json.loads(line)
        if (head["format"], head["code"]) != (_FORMAT, hashlib.sha256(code).hexdigest()):
            return None
        options = tuple((str(name), bool(flag)) for name, flag in head["options"])
        return _compat.MosaicKernel(bytes.fromhex(head["digest"]), code, options)
    except _DAMAGED:
        return None
