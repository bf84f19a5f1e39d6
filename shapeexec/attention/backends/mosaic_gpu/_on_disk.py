"""Keeps the texts of kernels in JAX's compilation cache, so that a new process finds them lowered.

Without it, JAX finds a program compiled in its cache, and yet has to lower the program first. See
docs/adr/0035. `_any_batch` decides what has one text.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Hashable
from typing import Any

from shapeexec import _compat, _identity

_PREFIX = "shapeexec_kernel-"  # of the names of entries, beside those of JAX


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
    found, name = _found(cache, name)
    if found is not None:
        _compat.know_mosaic_kernel(found)
        return found
    made = lowered()
    if made is not None:
        _compat.add_entry(cache, name, content=_written(name, made))
    return made


def _found(cache: Any, name: str) -> tuple[_compat.MosaicKernel | None, str]:
    """The kernel of an entry, if there is one, and the name under which it may be added."""
    for entry in (name, f"{name}-again"):  # JAX overwrites no entry, so what is damaged stays
        content = _compat.entry_of(cache, entry)
        found = None if content is None else _read(entry, content)
        if content is None or found is not None:
            return found, entry
    return None, f"{name}-again"


def _name(key: Hashable) -> str | None:
    """The name of the entry of a key; None if another process could not tell what is in it.

    Such as a function of the user's, whose code may change.
    """
    try:
        settings = _compat.deviating_settings(_compat.config_fingerprint())
        backend = _compat.default_device().client.platform_version
        parts = key, settings, _compat.compile_settings(), backend, _versions()
        return _PREFIX + _identity.digest(parts)
    except Exception:  # whatever a value raises that is encoded: it is not known
        return None


_versions = functools.cache(_identity.versions)


def _written(name: str, kernel: _compat.MosaicKernel) -> bytes:
    """A digest, a line of JSON, and then the code."""
    head = json.dumps({"digest": kernel.digest.hex(), "options": kernel.options})
    content = head.encode() + b"\n" + kernel.code
    return _digest(name, content) + b"\n" + content


def _read(name: str, entry: bytes) -> _compat.MosaicKernel | None:
    """The kernel that `_written` wrote; None if the entry is damaged, or another one's."""
    digest, _, content = entry.partition(b"\n")
    if digest != _digest(name, content):
        return None
    # Whole, so these sources wrote it: their digest is part of its name.
    line, _, code = content.partition(b"\n")
    head = json.loads(line)
    options = tuple((str(option), bool(flag)) for option, flag in head["options"])
    return _compat.MosaicKernel(bytes.fromhex(head["digest"]), code, options)


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + content).hexdigest().encode()
