"""Which GPU is here: what some back ends, and the choice between them, depend on."""

import functools
from typing import Any

import jax

OLDEST_FOR_TRITON = (8, 0)
"""The least compute capability it compiles for: github.com/triton-lang/triton#compatibility."""

_MULTIPROCESSORS = 132  # of an H100 or H200


def compute_capability() -> tuple[int, int] | None:
    """That of the first NVIDIA GPU; None if there is none, as where one lowers for another host."""
    device = _first()
    if device is None:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def multiprocessors() -> int:
    """How many multiprocessors that GPU has; as many as a Hopper has, if nobody can tell."""
    return getattr(_first(), "core_count", None) or _MULTIPROCESSORS


@functools.cache
def _first() -> Any:
    try:
        return jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
