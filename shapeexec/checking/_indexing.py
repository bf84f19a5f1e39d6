"""Normal forms of what takes or writes elements at indices: slices, gathers, scatters, padding.

At symbolic sizes JAX indexes with a gather where it slices at ints. Known indices that lie on a
grid pick it, whatever the operation is called; others keep their operation, without axes of size 1,
which JAX leaves out where it knows of them. A scatter into zeros may turn -0.0 into 0.0; that is
not told apart here.
"""

import functools
import itertools
from collections.abc import Hashable, Mapping, Sequence
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
    """So does what reverses axes."""
    axes = [
        (n - 1, -1, n) if axis in asked.params["dimensions"] else (0, 1, n)
        for axis, n in enumerate(asked.shape())
    ]
    return asked.maker.pick(asked.operands[0], axes)


def picked(asked: Asked) -> int | None:
    """A grid of all elements in order is nothing; of a grid, or of windows, it is another one."""
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


def _picked_of_placed(maker: Maker, node: Node, axes: Sequence[Axis]) -> int:
    """The part of a placed array that lies on a grid, placed where the grid has it."""
    counts = tuple(count for *_, count in axes)
    found = [common(on, of) for on, of in zip(own_params(node)["axes"], axes, strict=True)]
    both = [pair for pair in found if pair is not None]
    if len(both) < len(found):
        return maker.table.constant(np.zeros(counts, node.kind.dtype))
    part = maker.pick(node.operands[0], [of_array for of_array, _ in both])
    return maker.place(part, [of_grid for _, of_grid in both], counts)


_PICKED = {
    "place": _picked_of_placed,
    "window_sum": picked_windows,
    "conv_general_dilated": picked_convolution,
}


def placed(asked: Asked) -> int | None:
    """A grid on a grid is a grid; an array that fills it is itself, zeros are zeros anywhere."""
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
    return asked.maker.place(node.operands[0], composed, asked.kind.shape)


def padded(asked: Asked) -> int | None:
    """Padding with zeros places an array on a grid; with negative padding, a part of it.

    Padding with something else has no negative part, which is picked before.
    """
    shape, config = asked.shape(), asked.params["padding_config"]
    fill, found = asked.constant(1), laid(config, shape, asked.kind.shape)
    if found is None:
        return None if fill is None else _filled(asked, fill)
    of_array, of_grid = found
    part = asked.maker.pick(asked.operands[0], of_array)
    if fill is not None and _is_zero(fill):
        return asked.maker.place(part, of_grid, asked.kind.shape)
    if of_grid == whole(asked.kind.shape):
        return part
    outside = padding_of(of_grid, asked.kind.shape)
    if part == asked.operands[0] and outside == tuple(tuple(map(int, axis)) for axis in config):
        return None
    params, operands = {"padding_config": outside}, [part, asked.operands[1]]
    run = functools.partial(_run_pad, outside)
    return asked.maker.make("pad", params, operands, [asked.kind], run=run, key=asked.key)[0]


def _filled(asked: Asked, fill: np.ndarray) -> int:
    return asked.table.constant(np.broadcast_to(fill, asked.kind.shape))


def _run_pad(config: Sequence[tuple[int, int, int]], arrays: Sequence[Any]) -> list[Any]:
    x, fill = map(jnp.asarray, arrays)
    return [lax.pad(x, fill, config)]


def _is_zero(array: np.ndarray) -> bool:
    return array.dtype.kind in "biufcV" and not np.any(array)


def dynamically_sliced(asked: Asked) -> int | None:
    """With known starts it is a slice; where a whole axis is taken, its start does not matter."""
    value, *starts = asked.operands
    return _sliced_at(asked.maker, value, starts, asked.params["slice_sizes"])


def _sliced_at(maker: Maker, value: int, starts: Sequence[int], sizes: Sequence[int]) -> int:
    kind = maker.table.kind(value)
    clamped = [
        _clamped(maker.table, start, n - size)
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
    return maker.table.make("dynamic_slice", counts, [value, *clamped], [made], run)[0]


def _clamped(table: Table, start: int, most: int) -> int:
    """A start as the slice takes it, if that is known."""
    known = table.constant_of(start) if most else np.zeros(())
    if known is None:
        return start
    return table.constant(np.asarray(min(max(int(known), 0), most), np.int32))


def dynamically_updated(asked: Asked) -> int | None:
    """Written over all of an array it is what is written; into zeros it is placed there."""
    operand, update, *starts = asked.operands
    return _updated_at(asked.maker, operand, update, starts)


def _updated_at(maker: Maker, operand: int, update: int, starts: Sequence[int]) -> int:
    table = maker.table
    kind, counts = table.kind(operand), table.kind(update).shape
    if counts == kind.shape:
        return update
    sizes = zip(starts, kind.shape, counts, strict=True)
    clamped = [_clamped(table, start, n - size) for start, n, size in sizes]
    known = [table.constant_of(start) for start in clamped]
    at = [int(start) for start in known if start is not None]
    zeros = table.constant_of(operand)
    if zeros is not None and _is_zero(zeros) and len(at) == len(starts):
        axes = [(start, 1, size) for start, size in zip(at, counts, strict=True)]
        return maker.place(update, axes, kind.shape)

    def run(arrays: Sequence[Any]) -> list[Any]:
        into, what, *where = map(jnp.asarray, arrays)
        return [lax.dynamic_update_slice(into, what, where)]

    return table.make("dynamic_update_slice", (), [operand, update, *clamped], [kind], run)[0]


_INSIDE = ("PROMISE_IN_BOUNDS", "CLIP")


def _mode(asked: Asked) -> str:
    mode = asked.params["mode"]
    return getattr(mode, "name", str(mode))


def gathered(asked: Asked) -> int | None:
    """Indices that are known and lie on a grid pick it; one index vector is a dynamic slice."""
    numbers = asked.params["dimension_numbers"]
    if numbers.operand_batching_dims:
        return None
    indices = asked.constant(1)
    if indices is None:
        return _gathered_at(asked)
    sizes, shape = asked.params["slice_sizes"], asked.shape()
    columns = _columns(indices, numbers.start_index_map)
    found = _grid(columns, sizes, shape, numbers.collapsed_slice_dims, _mode(asked))
    if found is None:
        return None
    axes, batch_of = found
    picked = asked.maker.pick(asked.operands[0], axes)
    return _in_order(asked, picked, batch_of, indices.shape[:-1], numbers)


def _in_order(
    asked: Asked, picked: int, batch_of: Mapping[int, int], batch: tuple[int, ...], numbers: Any
) -> int:
    """What was picked, with the axes where the gather puts them."""
    collapsed = numbers.collapsed_slice_dims
    rank = len(asked.shape())
    kept = [axis for axis in range(rank) if axis in batch_of or axis not in collapsed]
    sizes = asked.table.kind(picked).shape
    value = asked.maker.reshape(picked, [sizes[axis] for axis in kept])
    windows = iter([axis for axis in kept if axis not in batch_of])
    by_batch = {of: axis for axis, of in batch_of.items()}
    batches = iter(range(len(batch)))
    order = []
    for place in range(len(asked.kind.shape)):
        if place in numbers.offset_dims:
            order.append(kept.index(next(windows)))
        else:
            of = next(batches)
            order += [kept.index(by_batch[of])] if of in by_batch else []
    return asked.maker.reshape(asked.maker.transpose(value, order), asked.kind.shape)


def _columns(indices: np.ndarray, axes: Sequence[int]) -> dict[int, np.ndarray]:
    """By axis of the operand the indices along it, of the batch's shape."""
    return {axis: indices[..., i] for i, axis in enumerate(axes)}


def _grid(
    columns: Mapping[int, np.ndarray],
    sizes: Sequence[int],
    shape: Sequence[int],
    collapsed: Sequence[int],
    mode: str,
) -> tuple[list[Axis], dict[int, int]] | None:
    """The grid that indices name, and by axis the batch axis along which its index changes."""
    axes: list[Axis] = []
    batch_of: dict[int, int] = {}
    for axis, (size, n) in enumerate(zip(sizes, shape, strict=True)):
        column = columns.get(axis, np.zeros((), np.int64)).astype(np.int64)
        if mode in _INSIDE:
            column = np.clip(column, 0, n - size)
        if column.size == 0 or column.min() < 0 or column.max() > n - size:
            return None
        varying = [i for i, count in enumerate(column.shape) if count > 1 and _varies(column, i)]
        if not varying:
            axes.append((int(column.flat[0]), 1, int(size)))
            continue
        row = np.moveaxis(column, varying[0], 0).reshape(column.shape[varying[0]], -1)[:, 0]
        step = int(row[1] - row[0])
        is_row = len(varying) == 1 and size == 1 and axis in collapsed and step
        if not is_row or np.any(np.diff(row) != step) or varying[0] in batch_of.values():
            return None
        batch_of[axis] = varying[0]
        axes.append((int(row[0]), step, len(row)))
    batch = next(iter(columns.values())).shape if columns else ()
    if any(n != 1 for i, n in enumerate(batch) if i not in batch_of.values()):
        return None
    return axes, batch_of


def _varies(column: np.ndarray, axis: int) -> bool:
    return bool(np.any(np.diff(column, axis=axis)))


def _gathered_at(asked: Asked) -> int | None:
    """A gather of one window, at an index that is computed."""
    numbers = asked.params["dimension_numbers"]
    if _mode(asked) not in _INSIDE or len(asked.shape(1)) != 1:
        return None
    scalars = _scalars(asked.maker, asked.operands[1])
    if scalars is None:
        return None
    shape, sizes = asked.shape(), tuple(asked.params["slice_sizes"])
    zero = asked.table.constant(np.zeros((), np.int32))
    at = dict(zip(numbers.start_index_map, scalars, strict=True))
    starts = [at.get(axis, zero) for axis in range(len(shape))]
    sliced = _sliced_at(asked.maker, asked.operands[0], starts, sizes)
    return asked.maker.reshape(sliced, asked.kind.shape)


def _scalars(maker: Maker, vector: int) -> list[int] | None:
    """The scalars that a vector was put together from."""
    node = maker.table[vector]
    if node.kind.shape == (1,):
        return [maker.reshape(vector, ())]
    if node.op != "concatenate":
        return None
    parts = [_scalars(maker, part) for part in node.operands]
    if any(part is None for part in parts):
        return None
    return [*itertools.chain.from_iterable(part or () for part in parts)]


def unwritten(asked: Asked) -> int | None:
    """An array where nothing is written."""
    return asked.operands[0] if 0 in asked.shape(2) else None


def scattered(asked: Asked) -> int | None:
    """Adding at known indices to zeros places an array on a grid; at one index, it updates them."""
    operand, indices = asked.constant(0), asked.constant(1)
    numbers = asked.params["dimension_numbers"]
    if operand is None or not _is_zero(operand) or numbers.operand_batching_dims:
        return None
    if indices is None:
        return _scattered_at(asked)
    updates, shape = asked.shape(2), asked.kind.shape
    inserted = numbers.inserted_window_dims
    windows = iter([updates[place] for place in numbers.update_window_dims])
    sizes = [1 if axis in inserted else next(windows) for axis in range(len(shape))]
    columns = _columns(indices, numbers.scatter_dims_to_operand_dims)
    mode = "FILL" if _mode(asked) != "CLIP" else "CLIP"
    found = _grid(columns, sizes, shape, inserted, mode)
    if found is None:
        return None
    axes, batch_of = found
    batches = [p for p in range(len(updates)) if p not in numbers.update_window_dims]
    places = iter(numbers.update_window_dims)
    window_of = {axis: next(places) for axis in range(len(shape)) if axis not in inserted}
    order = [batches[batch_of[a]] if a in batch_of else window_of.get(a) for a in range(len(shape))]
    given = [place for place in order if place is not None]
    rest = [place for place in range(len(updates)) if place not in given]  # of size 1
    value = asked.maker.transpose(asked.operands[2], [*rest, *given])
    value = asked.maker.reshape(value, [count for *_, count in axes])
    return asked.maker.place(value, axes, shape)


def _scattered_at(asked: Asked) -> int | None:
    """One window, at an index that is computed.

    What is promised to lie within the array has no meaning elsewhere. Where JAX indexes by a
    scalar, its gather and the scatter of its gradient promise that; at ints it clamps.
    """
    mode, numbers = _mode(asked), asked.params["dimension_numbers"]
    is_promised = mode == "PROMISE_IN_BOUNDS" and asked.params["unique_indices"]
    if not (mode == "CLIP" or is_promised) or len(asked.shape(1)) != 1:
        return None
    scalars = _scalars(asked.maker, asked.operands[1])
    if scalars is None:
        return None
    shape, windows = asked.kind.shape, iter(asked.shape(2))
    sizes = [
        1 if axis in numbers.inserted_window_dims else next(windows) for axis in range(len(shape))
    ]
    zero = asked.table.constant(np.zeros((), np.int32))
    at = dict(zip(numbers.scatter_dims_to_operand_dims, scalars, strict=True))
    starts = [at.get(axis, zero) for axis in range(len(shape))]
    update = asked.maker.reshape(asked.operands[2], sizes)
    return _updated_at(asked.maker, asked.operands[0], update, starts)


# Axes of size 1 in indexing


def gathered_without_ones(asked: Asked) -> int | None:
    """A gather without axes of size 1, but for those that are indexed; batches come first."""
    numbers, sizes = asked.params["dimension_numbers"], asked.params["slice_sizes"]
    shape, batch = asked.shape(), asked.shape(1)[:-1]
    kept, long = _kept(shape, numbers.start_index_map), _long(batch)
    unread = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [axis for axis in range(len(shape)) if axis not in unread]
    places = dict(zip(numbers.offset_dims, windows, strict=True))
    of_batch = [place for place in range(len(asked.kind.shape)) if place not in places]
    order = [of_batch[i] for i in long]
    order += [place for place in sorted(places) if asked.kind.shape[place] != 1]
    params = (
        asked.key({name: asked.params[name] for name in ("mode", "fill_value")}),
        tuple(int(sizes[axis]) for axis in kept),
        tuple(kept.index(axis) for axis in numbers.start_index_map),
        _pairs(numbers.operand_batching_dims, numbers.start_indices_batching_dims, kept, long),
    )
    operands = [_only(asked, 0, kept), _only(asked, 1, [*long, len(batch)])]
    return asked.derived(params, operands, order)


def scattered_without_ones(asked: Asked) -> int | None:
    """A scatter without axes of size 1, but for those that are indexed; batches come first."""
    numbers = asked.params["dimension_numbers"]
    shape, batch = asked.shape(), asked.shape(1)[:-1]
    kept, long = _kept(shape, numbers.scatter_dims_to_operand_dims), _long(batch)
    unread = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [axis for axis in range(len(shape)) if axis not in unread]
    places = dict(zip(numbers.update_window_dims, windows, strict=True))
    updates = asked.shape(2)
    of_batch = [place for place in range(len(updates)) if place not in places]
    order = [of_batch[i] for i in long]
    order += [place for place in sorted(places) if updates[place] != 1]
    params = (
        asked.key({name: asked.params[name] for name in ("mode", "update_jaxpr", "update_consts")}),
        tuple(kept.index(axis) for axis in numbers.scatter_dims_to_operand_dims),
        tuple(kept.index(axis) for place, axis in sorted(places.items()) if updates[place] != 1),
        _pairs(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, kept, long),
    )
    operands = [
        _only(asked, 0, kept),
        _only(asked, 1, [*long, len(batch)]),
        _only(asked, 2, order),
    ]
    return asked.derived(params, operands, kept)


def _kept(shape: Sequence[int], indexed: Sequence[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1 or axis in indexed]


def _long(shape: Sequence[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1]


def _pairs(
    of_operand: Sequence[int], of_indices: Sequence[int], kept: list[int], long: list[int]
) -> Hashable:
    """Which axes of the operand and of the indices go together."""
    both = zip(of_operand, of_indices, strict=True)
    return tuple((kept.index(axis), long.index(other)) for axis, other in both if axis in kept)


def _only(asked: Asked, operand: int, order: Sequence[int]) -> int:
    """An operand with these axes in this order; the others are of size 1."""
    return asked.maker.only(asked.operands[operand], order)
