"""Which GPU is here: what some back ends, and the choice between them, depend on."""

import functools

import jax


@functools.cache
def compute_capability() -> tuple[int, int] | None:
    """That of the first NVIDIA GPU; None if there is none, as where one lowers for another host."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)
