"""The GPU of this process, which some back ends and the choice between them depend on.

Each back end decides whether it runs on the GPU.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import contextvars
import functools
from collections.abc import Generator
from typing import Any

import jax

OLDEST_FOR_TRITON = (8, 0)
"""The least compute capability of Triton: github.com/triton-lang/triton#compatibility."""

HOPPER = (9, 0)
"""The compute capability of an H100 or H200."""

_MULTIPROCESSORS = 132  # of an H100 or H200
_ASSUMED: contextvars.ContextVar[tuple[int, int] | None] = contextvars.ContextVar(
    "assumed", default=None
)


@contextlib.contextmanager
def assumed(capability: tuple[int, int]) -> Generator[None]:
    """Lower as if there were a GPU of this compute capability, to measure the time of lowering.

    JAX's caches keep what is lowered meanwhile: clear them afterwards.
    """
    token = _ASSUMED.set(capability)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def compute_capability() -> tuple[int, int] | None:
    """The compute capability of the first NVIDIA GPU; None if this process has none."""
    if assumed := _ASSUMED.get():
        return assumed
    device = _first()
    if device is None:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def multiprocessors() -> int:
    """The number of multiprocessors of the GPU; a Hopper's number if it is unknown."""
    return getattr(_first(), "core_count", None) or _MULTIPROCESSORS


def memory_is_fast() -> bool:
    """Whether its memory moves 4 TB/s or more, by NVIDIA's data sheets: H200, GH200 and H20.

    An H100's moves 2.0 to 3.9. Of a GPU that is unknown it is taken to do so.
    """
    kind: str | None = getattr(_first(), "device_kind", None)
    return kind is None or "H20" in kind


@functools.cache
def _first() -> Any:
    try:
        return jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # JAX raises it where it has no CUDA back end
        return None
