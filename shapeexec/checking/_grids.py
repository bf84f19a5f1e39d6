"""Grids of ints: the points that two of them share, and padding as a grid.

The operations on arrays are in `_indexing`, `_gathers` and `_windows`.
"""

from collections.abc import Sequence

import numpy as np

Axis = tuple[int, int, int]
"""A grid along one axis: its start, step and number of points."""


def whole(shape: Sequence[int]) -> tuple[Axis, ...]:
    """The grid of all elements of an array, in order."""
    return tuple((0, 1, n) for n in shape)


def mesh(axes: Sequence[Axis]) -> tuple[np.ndarray, ...]:
    """The NumPy index of the elements of an array on a grid."""
    return np.ix_(*(start + step * np.arange(count) for start, step, count in axes))


def plain(axis: Axis) -> Axis:
    """A grid as Python ints; a single point has step 1."""
    start, step, count = map(int, axis)
    return start, step if count > 1 else 1, count


def common(one: Axis, other: Axis) -> tuple[Axis, Axis] | None:
    """The common points of two grids of one axis, as grids of their indices in each; None: none."""
    points = [start + step * np.arange(count) for start, step, count in (one, other)]
    _, *numbers = np.intersect1d(*points, assume_unique=True, return_indices=True)
    if not len(numbers[0]):
        return None
    order = np.argsort(numbers[1])
    of_one, of_other = (_grid_of(each[order]) for each in numbers)
    return of_one, of_other


def _grid_of(numbers: np.ndarray) -> Axis:
    """Evenly spaced numbers as a grid."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    return plain((numbers[0], step, len(numbers)))


def laid(
    config: Sequence[Sequence[int]], shape: Sequence[int], *, padded: Sequence[int]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """The part of an array that padding keeps, and its grid in the result; None: it keeps nothing.

    Args:
        config: As `lax.pad` takes it, with negative padding, too.
        shape: The shape of the array.
        padded: The shape of the result.
    """
    of_array: list[Axis] = []
    of_grid: list[Axis] = []
    for (before, _, between), n, size in zip(config, shape, padded, strict=True):
        low, step = int(before), int(between) + 1
        first = max(0, -(low // step))
        last = min(n, -((low - size) // step))
        of_array.append(plain((first, 1, last - first)))
        of_grid.append(plain((low + step * first, step, last - first)))
    if any(count <= 0 for *_, count in of_grid):
        return None
    return tuple(of_array), tuple(of_grid)


def padding_of(grid: Sequence[Axis], shape: Sequence[int]) -> tuple[Axis, ...]:
    """The `lax.pad` configuration that places an array on a grid within a shape."""
    ends = [size - (start + step * (n - 1) + 1) for (start, step, n), size in _both(grid, shape)]
    return tuple((start, end, step - 1) for (start, step, _), end in _both(grid, ends))


def _both(grid: Sequence[Axis], others: Sequence[int]) -> list[tuple[Axis, int]]:
    return list(zip(grid, others, strict=True))
