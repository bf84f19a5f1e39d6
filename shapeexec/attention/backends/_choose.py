"""Which back end runs a call: the one that is named, or the first that does not refuse.

A back end is imported when it is first asked for. Each has a module of its name in this package,
whose `backend` is a `Backend`.
"""

import functools
import importlib

from shapeexec._errors import BackendError, ConfigError
from shapeexec.attention.backends._base import Backend, Signature
from shapeexec.attention.masks import Mask

IMPLEMENTATIONS = ("mosaic_gpu", "triton", "mosaic_tpu", "cudnn", "xla")
"""The names of all back ends."""

_BY_PLATFORM: dict[str, tuple[str, ...]] = {"cuda": ("mosaic_gpu",)}
"""What is asked first on a platform; then `xla`, which runs anywhere."""


def choose(name: str | None, signature: Signature, mask: Mask, platform: str) -> Backend:
    """The back end for a call.

    Args:
        name: That of a back end; None: the first that can run the call.
        signature: What is static about the call.
        mask: Its mask, whose arrays may be traced.
        platform: Where it is to run: `"cpu"`, `"cuda"`, `"rocm"`, `"tpu"`.

    Raises:
        BackendError: The one that is named refuses, or all do.
    """
    names = (*_BY_PLATFORM.get(platform, ()), "xla") if name is None else (name,)
    reasons = {}
    for candidate in names:
        backend = load(candidate)
        reason = backend.refuses(signature, mask, platform)
        if reason is None:
            return backend
        reasons[candidate] = reason
    told = f"implementation={name!r} cannot" if name else "no back end can"
    raise BackendError(
        f"{told} run this attention.",
        got=f"{signature.dtype} query {_shape(signature)} on {platform}, {mask!r}",
        why="; ".join(f"{candidate} because {reason}" for candidate, reason in reasons.items()),
        fix="leave implementation= out" if name else 'convert to float32 and name "xla"',
    )


def check_implementation(name: str | None) -> None:
    """Check that a back end has this name.

    Raises:
        ConfigError: None has.
    """
    if name is not None and name not in IMPLEMENTATIONS:
        told = ", ".join(f'"{known}"' for known in IMPLEMENTATIONS)
        raise ConfigError(f"implementation={name!r} is not known.", fix=f"None, {told}")


@functools.cache
def load(name: str) -> Backend:
    """The back end of this name, imported now if it was not before."""
    return importlib.import_module(f"shapeexec.attention.backends.{name}").backend


def _shape(signature: Signature) -> str:
    shape = (signature.batch, signature.query_size, signature.query_heads, signature.head_size)
    return f"[{', '.join(map(str, shape))}]"
