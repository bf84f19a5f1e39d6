"""Functions of `jax.numpy` for the numbers of a kernel, i32[] each.

Those of `jax.numpy` are traced as functions of their own, and take arrays of any shapes and dtypes:
three times the calls of Python, of which the time to lower a kernel is made.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

from typing import Any

import numpy as np
from jax import Array, lax


def constant(value: int) -> Array:
    """A number that is known now: NumPy's, for to make JAX's takes 177 calls."""
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
