"""Stand-in for the derivative of `reduce_prod` and `reduce`, which JAX takes of a tree of halves.

The tree of halves itself is in `scans`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec import _compat
from shapeexec.shape._library.scans import levels_of


@_compat.stands_in("reduce_jvp")
def reduce_jvp(
    original: Any,
    reducer: Callable[..., Any],
    init_values: Sequence[Any],
    primals: Sequence[Array],
    tangents: Sequence[Array],
    axes: Sequence[int],
) -> Any:
    """Differentiate JAX's tree with halves whose sizes are data, down to one element.

    If a bucket is larger than the size, further levels keep the one element.
    """
    del original
    shape = primals[0].shape
    others = [axis for axis in range(len(shape)) if axis not in axes]
    size = math.prod(shape[axis] for axis in axes)
    rest = [shape[axis] for axis in others]

    def to_front(x: Array) -> Array:
        return lax.reshape(lax.transpose(x, (*axes, *others)), (size, *rest))

    for _ in range(len(rest) + 1):
        reducer = jax.vmap(reducer)

    def tree(*xs: Array) -> tuple[Array, ...]:
        for level in range(1, levels_of(size) + 1):
            half = (size + (2**level - 1)) // 2**level
            xs = _halved(reducer, init_values, xs=xs, half=half)
        return tuple(lax.index_in_dim(x, 0, keepdims=False) for x in xs)

    return jax.jvp(tree, tuple(map(to_front, primals)), tuple(map(to_front, tangents)))


def _halved(
    reducer: Callable[..., Any], init_values: Sequence[Any], *, xs: Sequence[Array], half: Any
) -> tuple[Array, ...]:
    """Reduce each of the first `half` elements with its partner in the second half."""
    size = xs[0].shape[0]
    around = [(0, 0, 0)] * (xs[0].ndim - 1)
    inits = [
        lax.convert_element_type(init, x.dtype) for x, init in zip(xs, init_values, strict=True)
    ]

    def part(low: Any, high: Any) -> list[Array]:
        config = [(low, high, 0), *around]
        return [lax.pad(x, init, config) for x, init in zip(xs, inits, strict=True)]

    first, second = part(0, half - size), part(-half, 2 * half - size)
    both = reducer(*first, *second)
    is_one = jnp.asarray(size) <= 1
    return tuple(jnp.where(is_one, x, y) for x, y in zip(first, both, strict=True))
