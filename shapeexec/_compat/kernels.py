"""Which ways of Pallas to write kernels this version of JAX has.

It imports none of them, and which kernels need which is for the back ends to say.
"""

import importlib.util


def pallas_has(module: str) -> bool:
    """Whether `jax.experimental.pallas` has a module of this name, such as `"triton"`."""
    return importlib.util.find_spec(f"jax.experimental.pallas.{module}") is not None
