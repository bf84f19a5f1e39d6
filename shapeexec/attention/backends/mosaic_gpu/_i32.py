"""Functions of `jax.numpy` for the numbers of a kernel, i32[] each.

JAX traces each of those by itself, for they take arrays of any shapes and dtypes. That is three
times as many calls of Python, which is where the time to lower a kernel goes.
"""

from typing import Any

import numpy as np
from jax import Array, lax


def constant(value: int) -> Array:
    """A number that is known now: NumPy's, as `jnp.int32` makes 177 calls of Python."""
    number: Any = np.int32(value)
    return number


def where(condition: Array, yes: Any, no: Any) -> Array:
    """`yes` if the condition, bool[], holds, else `no`."""
    return lax.select(condition, _number(yes), _number(no))


def minimum(x: Any, y: Any) -> Array:
    """The lesser one."""
    return lax.min(_number(x), _number(y))


def maximum(x: Any, y: Any) -> Array:
    """The greater one."""
    return lax.max(_number(x), _number(y))


def _number(x: Any) -> Any:
    return constant(x) if isinstance(x, int) else x
