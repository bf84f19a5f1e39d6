"""What tells that two operations are the same: a table of small functions, by operation.

Each turns an operation into its normal form, which is an operation again. Two of them are our own:
`pick` takes the elements of an array that lie on a grid, and `place` puts an array on a grid of
zeros. JAX writes both in several ways, and in others at symbolic sizes than at ints. A sum that JAX
begins with zero may turn -0.0 into 0.0; that is not told apart here.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.checking._fold import folded
from shapeexec.checking._values import Kind, Run, Table

Axis = tuple[int, int, int]
"""Along one axis: where a grid begins, its step and its number of points."""


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes values in normal form.

    Attributes:
        table: Where they are numbered.
        equalities: The table of normal forms, by operation.
    """

    table: Table
    equalities: Mapping[str, Sequence["Equality"]]

    def make(
        self,
        op: str,
        params: Mapping[str, Any],
        operands: Sequence[int],
        kinds: Sequence[Kind],
        run: Run,
        key: Callable[[Mapping[str, Any]], Hashable],
    ) -> list[int]:
        """The results of an operation.

        Args:
            op: Its name.
            params: Its parameters.
            operands: The values that it takes.
            kinds: The types of its results.
            run: See `Node`.
            key: The key of its parameters.
        """
        asked = Asked(self, op, params, tuple(operands), kinds[0] if kinds else None)
        if len(kinds) == 1:
            if not kinds[0].size and not _compat.is_extended(kinds[0].dtype):
                return [self.table.constant(np.zeros(kinds[0].shape, kinds[0].dtype))]
            constant = self._folded(asked)
            if constant is not None:
                return [constant]
            for equality in self.equalities.get(op, ()):
                normal = equality(asked)
                if normal is not None:
                    return [normal]
        return self.table.make(op, key(params), operands, kinds, run)

    def _folded(self, asked: "Asked") -> int | None:
        constants = [self.table.constant_of(value) for value in asked.operands]
        if any(constant is None for constant in constants):
            return None
        known: list[Any] = constants
        result = folded(asked.op, known, asked.params, asked.kind)
        return None if result is None else self.table.constant(result)

    def own(self, op: str, operands: Sequence[int], kind: Kind, **params: Any) -> int:
        """An operation of our own, by the function of its name in `_RUNS`."""
        run = functools.partial(_run_own, _RUNS[op], params)
        (made,) = self.make(op, params, operands, [kind], run, lambda p: tuple(p.items()))
        return made

    def reshape(self, operand: int, shape: Sequence[int]) -> int:
        """`operand` in another shape."""
        kind = Kind(tuple(shape), self.table.kind(operand).dtype)
        return self.own("shaped", [operand], kind, new_sizes=kind.shape)

    def pick(self, operand: int, axes: Sequence[Axis]) -> int:
        """The elements of `operand` on a grid, which lies within it."""
        kind = Kind(tuple(count for *_, count in axes), self.table.kind(operand).dtype)
        return self.own("pick", [operand], kind, axes=tuple(map(_plain_axis, axes)))

    def place(self, operand: int, axes: Sequence[Axis], shape: Sequence[int]) -> int:
        """`operand` on a grid of zeros of a shape."""
        turned = [(s + step * (n - 1), -step, n) if step < 0 else (s, step, n) for s, step, n in axes]
        back = [(n - 1, -1, n) if step < 0 else (0, 1, n) for _, step, n in axes]
        kind = Kind(tuple(shape), self.table.kind(operand).dtype)
        turned_axes = tuple(map(_plain_axis, turned))
        return self.own("place", [self.pick(operand, back)], kind, axes=turned_axes)

    def transpose(self, operand: int, permutation: Sequence[int]) -> int:
        """`operand` with its axes in another order."""
        kind = self.table.kind(operand)
        moved = Kind(tuple(kind.shape[axis] for axis in permutation), kind.dtype)
        return self.own("turned", [operand], moved, permutation=tuple(permutation))


@dataclasses.dataclass(frozen=True)
class Asked:
    """An operation to be put into normal form.

    Attributes:
        maker: Makes the normal form.
        op: Its name.
        params: Its parameters, which hold ints for dims.
        operands: The values that it takes.
        kind: The type of its one result.
    """

    maker: Maker
    op: str
    params: Mapping[str, Any]
    operands: tuple[int, ...]
    kind: Any

    @property
    def table(self) -> Table:
        """The table of all values."""
        return self.maker.table

    def shape(self, operand: int = 0) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.table.kind(self.operands[operand]).shape

    def constant(self, operand: int) -> np.ndarray | None:
        """An operand, if its value is known."""
        return self.table.constant_of(self.operands[operand])


Equality = Callable[[Asked], int | None]


def _plain_axis(axis: Axis) -> Axis:
    start, step, count = map(int, axis)
    return start, step if count > 1 else 1, count


# How the operations of our own run


def _run_own(
    function: Callable[..., Any], params: Mapping[str, Any], arrays: Sequence[Any]
) -> list[Any]:
    return [function(*map(jnp.asarray, arrays), **params)]


def _run_pick(x: Any, *, axes: Sequence[Axis]) -> Any:
    for axis, (start, step, count) in enumerate(axes):
        x = jnp.take(x, start + step * np.arange(count), axis=axis)
    return x


def _run_place(x: Any, *, axes: Sequence[Axis], shape: Sequence[int]) -> Any:
    where = np.ix_(*(start + step * np.arange(count) for start, step, count in axes))
    return jnp.zeros(shape, x.dtype).at[where].set(x)


def _run_contract(a: Any, b: Any, *, batch: int, inner: int, precision: Any, dtype: Any) -> Any:
    together = range(batch), range(batch)
    inside = range(a.ndim - inner, a.ndim), range(b.ndim - inner, b.ndim)
    return lax.dot_general(
        a,
        b,
        ((tuple(inside[0]), tuple(inside[1])), (tuple(together[0]), tuple(together[1]))),
        precision=precision,
        preferred_element_type=dtype,
    )


def _run_reduced(x: Any, *, how: str, axes: Sequence[int]) -> Any:
    return getattr(jnp, _REDUCTIONS[how])(x, axis=tuple(axes)).astype(x.dtype)


_REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_prod": "prod",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "all",
    "reduce_or": "any",
}

_RUNS: Mapping[str, Callable[..., Any]] = {
    "shaped": lambda x, new_sizes: lax.reshape(x, new_sizes),
    "turned": lambda x, permutation: lax.transpose(x, permutation),
    "pick": _run_pick,
    "place": _run_place,
    "contract": _run_contract,
    "reduced": _run_reduced,
}


# No operation at all


def _itself(asked: Asked) -> int | None:
    """What copies an array, or converts it to what it is."""
    return asked.operands[0] if asked.table.kind(asked.operands[0]) == asked.kind else None


def _without_neutral(neutral: float, *places: int, integers_only: bool = False) -> Equality:
    """`x * 1`, `x - 0`: with a neutral element in one of the places the other operand is meant."""

    def equality(asked: Asked) -> int | None:
        if integers_only and not np.issubdtype(asked.kind.dtype, np.integer):
            return None  # -0.0 + 0.0 is 0.0
        for place in places:
            constant, other = asked.constant(place), asked.operands[1 - place]
            if constant is None or asked.table.kind(other) != asked.kind:
                continue
            if np.all(constant == neutral) and not np.any(np.signbit(constant)):
                return other
        return None

    return equality


def _one_case(asked: Asked) -> int | None:
    """A choice among cases that are the same, or whose outcome is known."""
    _, *cases = asked.operands
    which = asked.constant(0)
    if which is not None and which.size and (which == which.flat[0]).all():
        return cases[int(which.flat[0])]
    return cases[0] if len(set(cases)) == 1 else None


# Shapes


def _reshaped(asked: Asked) -> int | None:
    """A reshape that reads in row-major order, and shards nothing."""
    if asked.params["dimensions"] is not None or asked.params["sharding"] is not None:
        return None
    return asked.maker.reshape(asked.operands[0], asked.kind.shape)


def _shaped(asked: Asked) -> int | None:
    """A reshape of a reshape is one; one to the same shape is none."""
    (value,) = asked.operands
    node = asked.table[value]
    if node.kind == asked.kind:
        return value
    if node.op == "shaped":
        return asked.maker.reshape(node.operands[0], asked.kind.shape)
    return None


def _as_reshape(asked: Asked) -> int | None:
    """What adds or drops axes of size 1."""
    return asked.maker.reshape(asked.operands[0], asked.kind.shape)


def _broadcast(asked: Asked) -> int | None:
    """A broadcast that only adds axes of size 1 is a reshape."""
    if len(asked.operands) != 1 or asked.params.get("sharding") is not None:
        return None
    if math.prod(asked.shape()) == asked.kind.size:
        return asked.maker.reshape(asked.operands[0], asked.kind.shape)
    return None


def _transposed(asked: Asked) -> int | None:
    return asked.maker.transpose(asked.operands[0], asked.params["permutation"])


def _turned(asked: Asked) -> int | None:
    """A transpose that leaves the axes longer than 1 in order is a reshape; two are one."""
    order, shape = asked.params["permutation"], asked.shape()
    long = [axis for axis in order if shape[axis] != 1]
    if long == sorted(long):
        return asked.maker.reshape(asked.operands[0], asked.kind.shape)
    node = asked.table[asked.operands[0]]
    if node.op != "turned":
        return None
    inner = dict(node.params)["permutation"]
    return asked.maker.transpose(node.operands[0], [inner[axis] for axis in order])


# Axes of size 1, which JAX leaves out where it knows of them


def _contracted(asked: Asked) -> int | None:
    """A product of matrices without the axes of size 1, contracted axes last."""
    (left_in, right_in), (left_with, right_with) = asked.params["dimension_numbers"]
    if asked.params["out_sharding"] is not None:
        return None
    pairs = sorted(zip(map(int, left_in), map(int, right_in), strict=True))
    sides = [(left_with, [a for a, _ in pairs]), (right_with, [b for _, b in pairs])]
    parts, free_sizes = [], []
    for operand, (together, inner) in enumerate(sides):
        shape = asked.shape(operand)
        free = [axis for axis in range(len(shape)) if axis not in (*together, *inner)]
        order = [axis for axis in (*together, *free, *inner) if shape[axis] != 1]
        rest = [axis for axis in range(len(shape)) if shape[axis] == 1]
        turned = asked.maker.transpose(asked.operands[operand], [*rest, *order])
        parts.append(asked.maker.reshape(turned, [shape[axis] for axis in order]))
        free_sizes += [shape[axis] for axis in free if shape[axis] != 1]
    batch = [asked.shape()[axis] for axis in left_with if asked.shape()[axis] != 1]
    inner_count = sum(asked.shape()[a] != 1 for a, _ in pairs)
    made = asked.maker.own(
        "contract",
        parts,
        Kind((*batch, *free_sizes), asked.kind.dtype),
        batch=len(batch),
        inner=inner_count,
        precision=asked.params["precision"],
        dtype=asked.params["preferred_element_type"],
    )
    return asked.maker.reshape(made, asked.kind.shape)


def _reduced(asked: Asked) -> int | None:
    """A reduction without the axes of size 1."""
    if asked.params.get("out_sharding") is not None or asked.op not in _REDUCTIONS:
        return None
    shape, axes = asked.shape(), asked.params["axes"]
    long = [axis for axis, size in enumerate(shape) if size != 1]
    value = asked.maker.reshape(asked.operands[0], [shape[axis] for axis in long])
    along = tuple(place for place, axis in enumerate(long) if axis in axes)
    if along:
        kept = tuple(shape[axis] for axis in long if axis not in axes)
        kind = Kind(kept, asked.kind.dtype)
        value = asked.maker.own("reduced", [value], kind, how=asked.op, axes=along)
    return asked.maker.reshape(value, asked.kind.shape)


# Grids


def _sliced(asked: Asked) -> int | None:
    starts, limits = asked.params["start_indices"], asked.params["limit_indices"]
    steps = asked.params["strides"] or (1,) * len(starts)
    counts = asked.kind.shape
    assert len(limits) == len(counts)
    return asked.maker.pick(asked.operands[0], [*zip(starts, steps, counts, strict=True)])


def _reversed(asked: Asked) -> int | None:
    axes = [
        (n - 1, -1, n) if axis in asked.params["dimensions"] else (0, 1, n)
        for axis, n in enumerate(asked.shape())
    ]
    return asked.maker.pick(asked.operands[0], axes)


def _picked(asked: Asked) -> int | None:
    """A grid of a grid is a grid; one of all elements in order is nothing."""
    (value,), axes = asked.operands, asked.params["axes"]
    if all(axis == (0, 1, n) for axis, n in zip(axes, asked.shape(), strict=True)):
        return value
    node = asked.table[value]
    if node.op != "pick":
        return None
    composed = [
        (first + by * start, by * step, count)
        for (first, by, _), (start, step, count) in zip(
            dict(node.params)["axes"], axes, strict=True
        )
    ]
    return asked.maker.pick(node.operands[0], composed)


def _placed(asked: Asked) -> int | None:
    (value,), axes = asked.operands, asked.params["axes"]
    if all(axis == (0, 1, n) for axis, n in zip(axes, asked.kind.shape, strict=True)):
        return value
    node = asked.table[value]
    if node.op != "place":
        return None
    composed = [
        (first + by * start, by * step, count)
        for (start, step, count), (first, by, _) in zip(
            dict(node.params)["axes"], axes, strict=True
        )
    ]
    return asked.maker.place(node.operands[0], composed, asked.kind.shape)


def _padded(asked: Asked) -> int | None:
    """Padding with zeros places an array on a grid; with negative padding, a part of it."""
    fill = asked.constant(1)
    if fill is not None and 0 in asked.shape():
        return asked.table.constant(np.broadcast_to(fill, asked.kind.shape))
    if fill is None or not _is_zero(fill):
        return None
    picked, placed = [], []
    config = asked.params["padding_config"]
    for (low, _, inner), n, size in zip(config, asked.shape(), asked.kind.shape, strict=True):
        low, step = int(low), int(inner) + 1
        first = max(0, -(low // step))
        last = min(n, -((low - size) // step))
        picked.append((first, 1, last - first))
        placed.append((low + step * first, step, last - first))
    if any(count <= 0 for *_, count in placed):
        return None
    part = asked.maker.pick(asked.operands[0], picked)
    return asked.maker.place(part, placed, asked.kind.shape)


def _is_zero(array: np.ndarray) -> bool:
    return array.dtype.kind in "biufcV" and not np.any(array)


def _dynamically_sliced(asked: Asked) -> int | None:
    """With known starts it is a slice; where a whole axis is taken, its start does not matter."""
    value, *starts = asked.operands
    sizes, shape = asked.params["slice_sizes"], asked.shape()
    axes: list[Axis] = []
    for start, n, size in zip(starts, shape, sizes, strict=True):
        known = asked.table.constant_of(start)
        if n != size and known is None:
            return _with_zero_starts(asked)
        axes.append((0 if n == size else min(max(int(known), 0), n - size), 1, size))
    return asked.maker.pick(value, axes)


def _with_zero_starts(asked: Asked) -> int | None:
    value, *starts = asked.operands
    sizes, shape = tuple(asked.params["slice_sizes"]), asked.shape()
    zero = asked.table.constant(np.zeros((), np.int32))
    clamped = [
        zero if n == size else _clamped(asked.table, start, n - size)
        for start, n, size in zip(starts, shape, sizes, strict=True)
    ]
    (made,) = asked.table.make(
        "dynamic_slice",
        sizes,
        [value, *clamped],
        [asked.kind],
        lambda arrays: [lax.dynamic_slice(jnp.asarray(arrays[0]), arrays[1:], sizes)],
    )
    return made


def _clamped(table: Table, start: int, most: int) -> int:
    known = table.constant_of(start)
    return start if known is None else table.constant(np.asarray(min(max(int(known), 0), most), np.int32))


_INSIDE = ("PROMISE_IN_BOUNDS", "CLIP")


def _mode(asked: Asked) -> str:
    mode = asked.params["mode"]
    return getattr(mode, "name", str(mode))


def _gathered(asked: Asked) -> int | None:
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
    kind = Kind(sizes, asked.kind.dtype)
    sliced = _dynamically_sliced(
        Asked(asked.maker, "", {"slice_sizes": sizes}, (asked.operands[0], *starts), kind)
    )
    return None if sliced is None else asked.maker.reshape(sliced, asked.kind.shape)


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


def _unwritten(asked: Asked) -> int | None:
    """An array where nothing is written."""
    return asked.operands[0] if 0 in asked.shape(2) else None


def _scattered(asked: Asked) -> int | None:
    """Adding at known indices to zeros places an array on a grid."""
    operand, indices = asked.constant(0), asked.constant(1)
    numbers = asked.params["dimension_numbers"]
    if operand is None or indices is None or not _is_zero(operand):
        return None
    if numbers.operand_batching_dims:
        return None
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


EQUALITIES: Mapping[str, Sequence[Equality]] = {
    "copy": (_itself,),
    "copy_p": (_itself,),
    "convert_element_type": (_itself,),
    "mul": (_without_neutral(1, 0, 1),),
    "div": (_without_neutral(1, 1),),
    "add": (_without_neutral(0, 0, 1, integers_only=True),),
    "sub": (_without_neutral(0, 1),),
    "select_n": (_one_case,),
    "reshape": (_reshaped,),
    "shaped": (_shaped,),
    "squeeze": (_as_reshape,),
    "expand_dims": (_as_reshape,),
    "broadcast_in_dim": (_broadcast,),
    "transpose": (_transposed,),
    "turned": (_turned,),
    "slice": (_sliced,),
    "rev": (_reversed,),
    "pick": (_picked,),
    "place": (_placed,),
    "pad": (_padded,),
    "dynamic_slice": (_dynamically_sliced,),
    "gather": (_gathered,),
    "dot_general": (_contracted,),
    **{name: (_reduced,) for name in _REDUCTIONS},
    "scatter": (_unwritten,),
    "scatter-add": (_unwritten, _scattered),
    "scatter-mul": (_unwritten,),
    "scatter-min": (_unwritten,),
    "scatter-max": (_unwritten,),
    "scatter_mul": (_unwritten,),
    "stop_gradient": (_itself,),
}
"""The normal forms of each operation, tried in turn."""
