"""Normal forms of gathers and scatters.

At symbolic sizes JAX indexes with a gather where it slices at ints. Known indices that lie on a
grid pick that grid, whatever the operation. Other gathers and scatters keep their operation, but
without axes of size 1, which JAX leaves out where it knows them. A scatter into zeros may turn -0.0
into 0.0; that difference is ignored here.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec.checking._grids import Axis
from shapeexec.checking._indexing import is_zero, sliced_at, updated_at
from shapeexec.checking._normal import Asked, Maker

_INSIDE = ("PROMISE_IN_BOUNDS", "CLIP")


def _mode(asked: Asked) -> str:
    mode = asked.params["mode"]
    return getattr(mode, "name", str(mode))


def gathered(asked: Asked) -> int | None:
    """Known indices on a grid are a pick; a single index vector is a dynamic slice."""
    numbers = asked.params["dimension_numbers"]
    if numbers.operand_batching_dims:
        return None
    indices = asked.constant(1)
    if indices is None:
        return _gathered_at(asked)
    sizes, shape = asked.params["slice_sizes"], asked.shape()
    columns = _columns(indices, numbers.start_index_map)
    found = _grid(
        columns, sizes, shape=shape, collapsed=numbers.collapsed_slice_dims, mode=_mode(asked)
    )
    if found is None:
        return None
    axes, batch_of = found
    picked = asked.maker.pick(asked.operands[0], axes)
    return _in_order(asked, picked, batch_of=batch_of, batch=indices.shape[:-1], numbers=numbers)


def _in_order(
    asked: Asked, picked: int, *, batch_of: Mapping[int, int], batch: tuple[int, ...], numbers: Any
) -> int:
    """The picked elements, with the axes in the order of the gather."""
    collapsed = numbers.collapsed_slice_dims
    rank = len(asked.shape())
    kept = [axis for axis in range(rank) if axis in batch_of or axis not in collapsed]
    sizes = asked.table.kind(picked).shape
    value = asked.maker.reshape(picked, [sizes[axis] for axis in kept])
    windows = iter([axis for axis in kept if axis not in batch_of])
    by_batch = {of: axis for axis, of in batch_of.items()}
    batches = iter(range(len(batch)))
    order: list[int] = []
    for place in range(len(asked.kind.shape)):
        if place in numbers.offset_dims:
            order.append(kept.index(next(windows)))
        else:
            of = next(batches)
            order += [kept.index(by_batch[of])] if of in by_batch else []
    return asked.maker.reshape(asked.maker.transpose(value, order), asked.kind.shape)


def _columns(indices: np.ndarray, axes: Sequence[int]) -> dict[int, np.ndarray]:
    """The indices along each axis of the operand, in the shape of the batch."""
    return {axis: indices[..., i] for i, axis in enumerate(axes)}


def _grid(
    columns: Mapping[int, np.ndarray],
    sizes: Sequence[int],
    *,
    shape: Sequence[int],
    collapsed: Sequence[int],
    mode: str,
) -> tuple[list[Axis], dict[int, int]] | None:
    """The grid of the indices, and for each indexed axis the batch axis along which it changes."""
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
    """A gather of one window at a computed index."""
    numbers = asked.params["dimension_numbers"]
    if _mode(asked) not in _INSIDE or len(asked.shape(1)) != 1:
        return None
    starts = _starts(asked, numbers.start_index_map)
    if starts is None:
        return None
    sizes = tuple(asked.params["slice_sizes"])
    sliced = sliced_at(asked.maker, asked.operands[0], starts=starts, sizes=sizes)
    return asked.maker.reshape(sliced, asked.kind.shape)


def _starts(asked: Asked, indexed: Sequence[int]) -> list[int] | None:
    """Per axis of the operand the scalar at which the window starts; None: these are not known."""
    scalars = _scalars(asked.maker, asked.operands[1])
    if scalars is None:
        return None
    zero = asked.table.constant(np.zeros((), np.int32))
    at = dict(zip(indexed, scalars, strict=True))
    return [at.get(axis, zero) for axis in range(len(asked.shape()))]


def _scalars(maker: Maker, vector: int) -> list[int] | None:
    """The scalars that a vector was concatenated from; None: it was not."""
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
    """A scatter of an empty update is the operand."""
    return asked.operands[0] if 0 in asked.shape(2) else None


def scattered(asked: Asked) -> int | None:
    """Adding to zeros at known indices is a place; at a single index, it is an update."""
    operand, indices = asked.constant(0), asked.constant(1)
    numbers = asked.params["dimension_numbers"]
    if operand is None or not is_zero(operand) or numbers.operand_batching_dims:
        return None
    if indices is None:
        return _scattered_at(asked)
    updates, shape = asked.shape(2), asked.kind.shape
    inserted = numbers.inserted_window_dims
    windows: Iterator[int] = map(updates.__getitem__, numbers.update_window_dims)
    sizes: list[int] = [1 if axis in inserted else next(windows) for axis in range(len(shape))]
    columns = _columns(indices, numbers.scatter_dims_to_operand_dims)
    mode = "FILL" if _mode(asked) != "CLIP" else "CLIP"
    found = _grid(columns, sizes, shape=shape, collapsed=inserted, mode=mode)
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
    return asked.maker.place(value, axes, shape=shape)


def _scattered_at(asked: Asked) -> int | None:
    """A scatter of one window at a computed index.

    An index that is promised to be in bounds may be clamped. JAX's indexing by a scalar promises
    it, in the gather and in the scatter of its gradient; indexing by ints clamps.
    """
    mode, numbers = _mode(asked), asked.params["dimension_numbers"]
    is_promised = mode == "PROMISE_IN_BOUNDS" and asked.params["unique_indices"]
    if not (mode == "CLIP" or is_promised) or len(asked.shape(1)) != 1:
        return None
    starts = _starts(asked, numbers.scatter_dims_to_operand_dims)
    if starts is None:
        return None
    windows, inserted = iter(asked.shape(2)), numbers.inserted_window_dims
    sizes = [1 if axis in inserted else next(windows) for axis in range(len(starts))]
    update = asked.maker.reshape(asked.operands[2], sizes)
    return updated_at(asked.maker, asked.operands[0], update=update, starts=starts)


# Without axes of size 1


def gathered_without_ones(asked: Asked) -> int | None:
    """A gather without axes of size 1, except indexed ones; batch axes come first."""
    numbers, sizes = asked.params["dimension_numbers"], asked.params["slice_sizes"]
    shape, batch = asked.shape(), asked.shape(1)[:-1]
    kept, long = _kept(shape, numbers.start_index_map), _long(batch)
    unread = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [axis for axis in range(len(shape)) if axis not in unread]
    places = dict(zip(numbers.offset_dims, windows, strict=True))
    order = _batch_first(asked.kind.shape, places, long=long)
    params = (
        asked.key({name: asked.params[name] for name in ("mode", "fill_value")}),
        tuple(int(sizes[axis]) for axis in kept),
        tuple(kept.index(axis) for axis in numbers.start_index_map),
        _pairs(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, kept=kept, long=long
        ),
    )
    operands = [_only(asked, 0, order=kept), _only(asked, 1, order=[*long, len(batch)])]
    return asked.derived(params, operands, order=order)


def scattered_without_ones(asked: Asked) -> int | None:
    """A scatter without axes of size 1, except indexed ones; batch axes come first."""
    numbers = asked.params["dimension_numbers"]
    shape, batch = asked.shape(), asked.shape(1)[:-1]
    kept, long = _kept(shape, numbers.scatter_dims_to_operand_dims), _long(batch)
    unread = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [axis for axis in range(len(shape)) if axis not in unread]
    places = dict(zip(numbers.update_window_dims, windows, strict=True))
    updates = asked.shape(2)
    order = _batch_first(updates, places, long=long)
    params = (
        asked.key({name: asked.params[name] for name in ("mode", "update_jaxpr", "update_consts")}),
        tuple(kept.index(axis) for axis in numbers.scatter_dims_to_operand_dims),
        tuple(kept.index(axis) for place, axis in sorted(places.items()) if updates[place] != 1),
        _pairs(
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            kept=kept,
            long=long,
        ),
    )
    operands = [
        _only(asked, 0, order=kept),
        _only(asked, 1, order=[*long, len(batch)]),
        _only(asked, 2, order=order),
    ]
    return asked.derived(params, operands, order=kept)


def _kept(shape: Sequence[int], indexed: Sequence[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1 or axis in indexed]


def _long(shape: Sequence[int]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1]


def _batch_first(shape: Sequence[int], places: Iterable[int], *, long: Sequence[int]) -> list[int]:
    """The axes that are not of size 1, batch axes first.

    Args:
        shape: The shape of a gather's result, or of a scatter's updates.
        places: Its axes along windows.
        long: The axes of the batch that are not of size 1.
    """
    windows = sorted(places)
    batch = [axis for axis in range(len(shape)) if axis not in windows]
    return [*(batch[i] for i in long), *(axis for axis in windows if shape[axis] != 1)]


def _pairs(
    of_operand: Sequence[int], of_indices: Sequence[int], *, kept: list[int], long: list[int]
) -> Hashable:
    """The pairs of batching axes of the operand and of the indices."""
    both = zip(of_operand, of_indices, strict=True)
    return tuple((kept.index(axis), long.index(other)) for axis, other in both if axis in kept)


def _only(asked: Asked, operand: int, *, order: Sequence[int]) -> int:
    """An operand with only these axes, in this order; the others have size 1."""
    return asked.maker.only(asked.operands[operand], order)
