"""Stand-in for `jax.lax.associative_scan`, whose depth depends on the size of the axis.

Which combinations are pad-safe is up to the rules of the primitives inside.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.shape import _trees

_LEVELS = (4, 8, 12, 16, 20, 24, 31)
"""The depths that trees are traced with; each has its own trace."""

Arrays = list[Array]
Combine = Callable[[Arrays, Arrays], Arrays]


def levels_of(size: Any) -> int:
    """How often to halve a size, rounding down, until at most 1 is left.

    For a symbolic size it is one of `_LEVELS`, chosen by guards. Levels that a bucket is too small
    for have arrays of size 0, which cost nothing.
    """
    if not _compat.is_symbolic(size):
        return max(0, size - 1).bit_length()
    return next((levels for levels in _LEVELS if size <= 2**levels), _LEVELS[-1])


@_compat.stands_in("associative_scan")
def associative_scan(
    original: Any, fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """The tree that JAX builds. How it groups the first k elements does not depend on the size.

    So results are grouped as in the plain call, and so are gradients where several elements are the
    maximum. At each level `fn` gets as many elements as in JAX, because it may mix them or read
    their number. Levels without elements are additional calls of `fn`.

    Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.
    """
    flat, tree = _trees.flatten(elems)
    own_axis = axis % flat[0].ndim if flat and flat[0].ndim else 0
    size = flat[0].shape[own_axis] if flat else 0
    if not _compat.is_symbolic(size) or not callable(fn):
        return original(fn, elems, reverse=reverse, axis=axis)
    if any(x.shape[own_axis] != size for x in flat):
        shapes = [x.shape for x in flat]
        # The type that JAX's own function raises.
        raise ValueError(f"associative_scan: arrays differ in size along axis {axis}: {shapes}")

    def combine(left: Arrays, right: Arrays) -> Arrays:
        return _trees.leaves(fn(_trees.unflatten(tree, left), _trees.unflatten(tree, right)))

    flat = [lax.rev(x, [axis]) for x in flat] if reverse else flat
    scanned = _Tree(combine, size, levels_of(size), own_axis).scan(flat)
    scanned = [lax.rev(x, [axis]) for x in scanned] if reverse else scanned
    return _trees.unflatten(tree, scanned)


@dataclasses.dataclass(frozen=True)
class _Tree:
    """The scan of `size` elements along `axis`; a level of the tree has `size // 2**level`."""

    combine: Combine
    size: Any
    levels: int
    axis: int

    def scan(self, elems: Arrays, level: int = 0) -> Arrays:
        """The scan of the elements of one level, which may have none."""
        if level == self.levels:
            return elems
        axis, unit = self.axis, 2**level
        size, odd_count = self.size // unit, self.size // (2 * unit)
        even_count = (self.size + unit) // (2 * unit)
        pairs = [_pairs(x, odd_count, axis) for x in elems]
        left, right = [x for x, _ in pairs], [y for _, y in pairs]
        odd = self.scan(self.combine(left, right), level + 1)

        # As many as JAX's own tree combines: one less than the elements, at least 0.
        rest_count = even_count - (self.size + 2**self.levels - unit) // 2**self.levels
        even = [_pairs(x, even_count, axis)[0] for x in elems]
        even_behind = self.combine(
            [_resized(x, rest_count, axis) for x in odd],
            [_resized(x, rest_count, axis, skip=1) for x in even],
        )
        return [
            _interleaved(
                _resized(first, 1, axis), x, _resized(y, odd_count, axis), size=size, axis=axis
            )
            for first, x, y in zip(even, odd, even_behind, strict=True)
        ]


def _resized(x: Array, size: Any, axis: int, skip: int = 0) -> Array:
    """`size` elements of `x` after the first `skip`, with zeros past the end.

    A pad with negative padding compares no sizes, which a slice does.
    """
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-skip, size - x.shape[axis] + skip, 0)
    return lax.pad(x, np.zeros((), x.dtype), config)


def _pairs(x: Array, count: Any, axis: int) -> tuple[Array, Array]:
    """The first elements and the second elements of `count` pairs of neighbours."""
    x = _resized(x, 2 * count, axis)
    split = x.reshape((*x.shape[:axis], count, 2, *x.shape[axis + 1 :]))
    first, second = (lax.index_in_dim(split, i, axis + 1, keepdims=False) for i in (0, 1))
    return first, second


def _interleaved(first: Array, x: Array, y: Array, *, size: Any, axis: int) -> Array:
    """The first `size` elements of `first`, x0, y0, x1, y1, ..."""
    pairs = jnp.stack([x, y], axis + 1)
    pairs = pairs.reshape((*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :]))
    return _resized(lax.concatenate([first, pairs], axis), size, axis)
