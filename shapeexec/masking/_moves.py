"""Moving the elements of an array along one axis, as rules do.

Which place an element has in the logical shape is decided by each rule.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._fill import Length, conform


def take(
    x: Array, index: Array, *, axis: int, is_element: Array | None = None, value: Any = None
) -> Array:
    """The elements of `x` at `index` along `axis`.

    Args:
        x: Any array; an axis without elements holds zeros.
        index: i32[...], clipped.
        axis: The axis.
        is_element: bool[n], for an index of one axis: False where the result is `value`.
        value: A scalar.
    """
    x = conform(x, (*x.shape[:axis], max(1, x.shape[axis]), *x.shape[axis + 1 :]))
    moved = jnp.take(x, index, axis=axis, mode="clip")
    if is_element is None:
        return moved
    mask = _compat.broadcast_in_dim(is_element, moved.shape, (axis,))
    return lax.select(mask, moved, lax.full_like(moved, value))


def roll_to_front(x: Array, length: Length, *, axis: int, capacity: int) -> Array:
    """Move the last `length` of `capacity` elements of `x` along `axis` to its front."""
    return jnp.roll(x, length - capacity, axis)


def sources(position: Array, *, low: Length, step: Length, length: Length) -> tuple[Array, Array]:
    """Which element stands at each position, if they begin at `low` in steps of `step`.

    Returns:
        i32 and bool, shaped as `position`: the element's number, and whether there is one.
    """
    shifted = position - low
    source = jnp.floor_divide(shifted, step)
    return source, (shifted >= 0) & (shifted % step == 0) & (source < length)
