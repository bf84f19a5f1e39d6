"""Normal forms of slices, reversals, padding, and updates of slices.

All of them pick the elements of an array that lie on a grid, or place an array on a grid of zeros.
Gathers and scatters are in `_gathers`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shapeexec.checking._convolutions import picked_convolution
from shapeexec.checking._grids import Axis, common, laid, padding_of, whole
from shapeexec.checking._normal import Asked, Maker
from shapeexec.checking._strides import on_axes, view_of
from shapeexec.checking._strides import whole as all_of
from shapeexec.checking._values import Kind, Node, Table, own_params
from shapeexec.checking._windows import picked_windows


def sliced(asked: Asked) -> int | None:
    """A slice picks a grid."""
    starts, limits = asked.params["start_indices"], asked.params["limit_indices"]
    steps = asked.params["strides"] or (1,) * len(starts)
    counts = asked.kind.shape
    assert len(limits) == len(counts)
    return asked.maker.pick(asked.operands[0], [*zip(starts, steps, counts, strict=True)])


def turned_round(asked: Asked) -> int | None:
    """A reversal picks a grid with negative steps."""
    axes = [
        (n - 1, -1, n) if axis in asked.params["dimensions"] else (0, 1, n)
        for axis, n in enumerate(asked.shape())
    ]
    return asked.maker.pick(asked.operands[0], axes)


def picked(asked: Asked) -> int | None:
    """Picking all elements in order is the array; picking from a grid or windows is one pick."""
    (value,), axes = asked.operands, asked.params["axes"]
    maker, shape = asked.maker, asked.shape()
    if axes == whole(shape):
        return value
    view = view_of(maker.table, value).of(axes, shape) or all_of(value, shape).of(axes, shape)
    if view is None or not asked.kind.size:
        return None
    node, base_shape = maker.table[view.base], maker.table.kind(view.base).shape
    found = on_axes(view, base_shape) if node.op in _PICKED else None
    if found is None:
        return maker.read(view, asked.kind.shape)
    grid, order = found
    part = _PICKED[node.op](maker, node, grid)
    if part is None:
        return maker.read(view, asked.kind.shape)
    turned = maker.transpose(
        maker.reshape(part, [grid[axis][2] for axis in sorted(order)]),
        [sorted(order).index(axis) for axis in order],
    )
    return maker.reshape(turned, asked.kind.shape)


def _picked_of_placed(maker: Maker, node: Node, axes: Sequence[Axis]) -> int:  # noqa: PLR0917 - `_PICKED` calls it
    """The part of a placed array that lies on a grid, placed on that grid."""
    counts = tuple(count for *_, count in axes)
    found = [common(on, of) for on, of in zip(own_params(node)["axes"], axes, strict=True)]
    both = [pair for pair in found if pair is not None]
    if len(both) < len(found):
        return maker.table.constant(np.zeros(counts, node.kind.dtype))
    part = maker.pick(node.operands[0], [of_array for of_array, _ in both])
    return maker.place(part, [of_grid for _, of_grid in both], shape=counts)


_PICKED: Mapping[str, Callable[[Maker, Node, Sequence[Axis]], int | None]] = {
    "place": _picked_of_placed,
    "window_sum": picked_windows,
    "conv_general_dilated": picked_convolution,
}


def placed(asked: Asked) -> int | None:
    """Placing twice is placing once; an array that fills the grid is itself; zeros are zeros."""
    (value,), axes = asked.operands, asked.params["axes"]
    if axes == whole(asked.kind.shape):
        return value
    zeros = asked.constant(0)
    if zeros is not None and not any(zeros.tobytes()):
        return asked.table.constant(np.zeros(asked.kind.shape, zeros.dtype))
    node = asked.table[value]
    if node.op != "place":
        return None
    composed = [
        (first + by * start, by * step, count)
        for (start, step, count), (first, by, _) in zip(own_params(node)["axes"], axes, strict=True)
    ]
    return asked.maker.place(node.operands[0], composed, shape=asked.kind.shape)


def padded(asked: Asked) -> int | None:
    """Padding with zeros places an array, or with negative padding a part of it, on a grid.

    Other padding keeps its operation; negative padding becomes a pick before it.
    """
    shape, config = asked.shape(), asked.params["padding_config"]
    fill, found = asked.constant(1), laid(config, shape, padded=asked.kind.shape)
    if found is None:
        return None if fill is None else _filled(asked, fill)
    of_array, of_grid = found
    part = asked.maker.pick(asked.operands[0], of_array)
    if fill is not None and is_zero(fill):
        return asked.maker.place(part, of_grid, shape=asked.kind.shape)
    if of_grid == whole(asked.kind.shape):
        return part
    outside = padding_of(of_grid, asked.kind.shape)
    if part == asked.operands[0] and outside == tuple(tuple(map(int, axis)) for axis in config):
        return None
    params, operands = {"padding_config": outside}, [part, asked.operands[1]]
    run = functools.partial(_run_pad, outside)
    return asked.maker.make(
        "pad", params, operands=operands, kinds=[asked.kind], run=run, key=asked.key
    )[0]


def _filled(asked: Asked, fill: np.ndarray) -> int:
    return asked.table.constant(np.broadcast_to(fill, asked.kind.shape))


def _run_pad(config: Sequence[tuple[int, int, int]], arrays: Sequence[Any]) -> list[Any]:
    x, fill = (jnp.asarray(array) for array in arrays)
    return [lax.pad(x, fill, config)]


def is_zero(array: np.ndarray) -> bool:
    """Whether all elements are 0."""
    return array.dtype.kind in "biufcV" and not np.any(array)


def dynamically_sliced(asked: Asked) -> int | None:
    """With known starts it is a slice; the start along a whole axis does not matter."""
    value, *starts = asked.operands
    return sliced_at(asked.maker, value, starts=starts, sizes=asked.params["slice_sizes"])


def sliced_at(maker: Maker, value: int, *, starts: Sequence[int], sizes: Sequence[int]) -> int:
    """A slice of `sizes` at starts that are values."""
    kind = maker.table.kind(value)
    clamped = [
        _clamped(maker.table, start, most=n - size)
        for start, n, size in zip(starts, kind.shape, sizes, strict=True)
    ]
    known = [maker.table.constant_of(start) for start in clamped]
    counts = tuple(map(int, sizes))
    numbers = [int(start) for start in known if start is not None]
    if len(numbers) == len(starts):
        return maker.pick(
            value, [(at, 1, count) for at, count in zip(numbers, counts, strict=True)]
        )

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [lax.dynamic_slice(jnp.asarray(arrays[0]), arrays[1:], counts)]

    made = Kind(counts, kind.dtype)
    return maker.table.make(
        "dynamic_slice", counts, operands=[value, *clamped], kinds=[made], run=run
    )[0]


def _clamped(table: Table, start: int, *, most: int) -> int:
    """A start, clamped if it is known."""
    known = table.constant_of(start) if most else np.zeros(())
    if known is None:
        return start
    return table.constant(np.asarray(min(max(int(known), 0), most), np.int32))


def dynamically_updated(asked: Asked) -> int | None:
    """An update of the whole array is the update; an update of zeros places it."""
    operand, update, *starts = asked.operands
    return updated_at(asked.maker, operand, update=update, starts=starts)


def updated_at(maker: Maker, operand: int, *, update: int, starts: Sequence[int]) -> int:
    """`operand` with `update` written at starts that are values."""
    table = maker.table
    kind, counts = table.kind(operand), table.kind(update).shape
    if counts == kind.shape:
        return update
    sizes = zip(starts, kind.shape, counts, strict=True)
    clamped = [_clamped(table, start, most=n - size) for start, n, size in sizes]
    known = [table.constant_of(start) for start in clamped]
    at = [int(start) for start in known if start is not None]
    zeros = table.constant_of(operand)
    if zeros is not None and is_zero(zeros) and len(at) == len(starts):
        axes = [(start, 1, size) for start, size in zip(at, counts, strict=True)]
        return maker.place(update, axes, shape=kind.shape)

    def run(arrays: Sequence[Any]) -> list[Any]:
        into, what, *where = (jnp.asarray(array) for array in arrays)
        return [lax.dynamic_update_slice(into, what, where)]

    return table.make(
        "dynamic_update_slice", (), operands=[operand, update, *clamped], kinds=[kind], run=run
    )[0]
