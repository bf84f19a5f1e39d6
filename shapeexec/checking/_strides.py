"""Strided views: the order in which a chain of slices, reshapes and transposes reads an array.

A view reads elements in nested loops with constant strides, in the row-major numbering of the
array. So a chain is an offset and a sequence of loops, and equal chains have equal loops.

Source: strided views, as in NumPy.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from shapeexec.checking._grids import Axis
from shapeexec.checking._values import Table, own_params


@dataclasses.dataclass(frozen=True)
class Loop:
    """One of the nested loops that read an array.

    Attributes:
        size: The number of steps, more than one.
        stride: The distance between elements; negative: backwards.
    """

    size: int
    stride: int


@dataclasses.dataclass(frozen=True)
class View:
    """A strided view of an array.

    Attributes:
        base: The array.
        offset: The first element.
        loops: The loops from outer to inner, as few as possible.
    """

    base: int
    offset: int
    loops: tuple[Loop, ...]

    def by_axis(self, shape: Sequence[int]) -> list[list[Loop]] | None:
        """The loops along each axis of a shape; None: a loop does not split at the axes."""
        if 0 in shape:
            return None
        waiting, axes = [*self.loops][::-1], list[list[Loop]]()
        for n in shape:
            along, left = list[Loop](), n
            while left > 1:
                loop = waiting.pop()
                inner = max(1, loop.size // left)
                if loop.size != inner * min(left, loop.size) or left % (loop.size // inner):
                    return None
                along.append(Loop(loop.size // inner, loop.stride * inner))
                left //= along[-1].size
                if inner > 1:
                    waiting.append(Loop(inner, loop.stride))
            axes.append(merged(along))
        return axes

    def of(self, axes: Sequence[Axis], shape: Sequence[int]) -> "View | None":
        """The part of this view on a grid of a shape; None: it is not a strided view."""
        along = self.by_axis(shape)
        if along is None:
            return None
        offset, loops = self.offset, list[Loop]()
        for (start, step, count), own in zip(axes, along, strict=True):
            offset += _element(own, start)
            if count == 1:
                continue
            if count == math.prod(loop.size for loop in own):  # all, forward or backward
                loops += [Loop(loop.size, loop.stride * step) for loop in own]
            elif len(own) == 1:
                loops += [Loop(count, step * own[0].stride)]
            else:
                return None
        return View(self.base, offset, tuple(merged(loops)))


def whole(base: int, shape: Sequence[int]) -> View:
    """An array, read in order."""
    return View(base, 0, tuple(merged([Loop(math.prod(shape), 1)])))


def view_of(table: Table, value: int) -> View:
    """A value as a view of an array that is not a view itself."""
    node = table[value]
    if node.op == "shaped":
        value = node.operands[0]
        node = table[value]
    if node.op != "view":
        return whole(value, node.kind.shape)
    params = own_params(node)
    return View(node.operands[0], params["offset"], tuple(Loop(*loop) for loop in params["loops"]))


def merged(loops: Iterable[Loop]) -> list[Loop]:
    """Equivalent loops, as few as possible."""
    fewest: list[Loop] = []
    for loop in loops:
        if loop.size == 1:
            continue
        runs_on = bool(fewest) and fewest[-1].stride == loop.size * loop.stride
        size = fewest.pop().size if runs_on else 1
        fewest.append(Loop(size * loop.size, loop.stride))
    return fewest


def elements(offset: int, loops: Iterable[tuple[int, int]]) -> np.ndarray:
    """The indices of the elements that loops of (size, stride) read, one axis per loop."""
    numbers = np.asarray(offset)
    for size, stride in loops:
        numbers = numbers[..., None] + stride * np.arange(size)
    return numbers


def _element(loops: Sequence[Loop], place: int) -> int:
    """The distance of the element with this index from the first."""
    distance = 0
    for loop in reversed(loops):
        place, at = divmod(place, loop.size)
        distance += at * loop.stride
    return distance


def on_axes(view: View, shape: Sequence[int]) -> tuple[list[Axis], list[int]] | None:
    """A view as a grid of the array's own axes, with the order of the axes.

    Returns:
        The grid, and the axes longer than 1 in the order in which the view reads them. None: one
        loop reads several axes, or several loops read one axis.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    starts = [view.offset // stride % n for stride, n in zip(strides, shape, strict=True)]
    axes: list[Axis] = [(start, 1, 1) for start in starts]
    order: list[int] = []
    for loop in view.loops:
        rest = loop.size
        inner: list[int] = []
        while rest > 1:  # from its innermost axis outwards
            step = abs(loop.stride) * (loop.size // rest)
            axis = next((i for i, s in enumerate(strides) if s <= step and shape[i] > 1), None)
            if axis is None or axis in (*order, *inner) or step % strides[axis]:
                return None
            by, n = step // strides[axis], shape[axis]
            count = rest if (rest - 1) * by < n else n
            if rest % count or (count < rest and by > 1):
                return None
            axes[axis] = (starts[axis], by if loop.stride > 0 else -by, count)
            inner.insert(0, axis)
            rest //= count
        order += inner
    ends = [(start, start + step * (count - 1)) for start, step, count in axes]
    is_inside = all(min(end) >= 0 and max(end) < n for end, n in zip(ends, shape, strict=True))
    return (axes, order) if is_inside else None
