"""Indexing: reads and writes at computed positions.

Positions are clamped, and dropped, at the true sizes: between the true size and the bucket there
is room that the plain function does not have. An index row that is padding may hold any number. It
must not write, and must not move what another row reads, as a second clamp by XLA could.

Single positions are clamped in equations without symbolic dims too. XLA makes dynamic slices of
them, and before jax 0.12, on the CPU, XLA fuses nested slices and drops the inner clamp: an index
out of bounds of the inner slice would read the array around it. Here that array may be padded where
the plain function has none.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import is_ragged
from shapeexec.masking._fill import Length, conform, valid_mask
from shapeexec.masking._registry import register
from shapeexec.shape import _dim

_MODE = lax.GatherScatterMode
_NOWHERE = np.int32(np.iinfo(np.int32).max)
"""An index that is out of bounds on every axis."""
_UNCHANGING = {"scatter-add": -0.0, "scatter-sub": 0.0, "scatter-mul": 1}
"""By scatter, the update that leaves every number unchanged."""


@register("dynamic_slice", also_static=True)
def dynamic_slice(
    ctx: RuleContext, operand: Array, *starts: Any, slice_sizes: tuple[int, ...]
) -> Array:
    """Move: the start is clamped at the true sizes."""
    dims, sizes = ctx.operands[0].dims, ctx.params["slice_sizes"]
    clamped = _clamped(ctx, starts, dims=dims, sizes=sizes)
    operand = _with_room(ctx, operand, dims=dims, sizes=sizes)
    return ctx.bind(operand, *clamped, slice_sizes=slice_sizes)


@register("dynamic_update_slice", also_static=True)
def dynamic_update_slice(ctx: RuleContext, operand: Array, update: Array, *starts: Any) -> Array:
    """Move: the start is clamped at the true sizes, and the update's padding writes nothing."""
    dims, sizes = ctx.operands[0].dims, ctx.operands[1].dims
    clamped = _clamped(ctx, starts, dims=dims, sizes=sizes)
    operand = _with_room(ctx, operand, dims=dims, sizes=sizes)
    # Padding that lies over the whole axis falls on padding.
    partial = [axis for axis, size in enumerate(sizes) if _is_partial(dims[axis], size)]
    window = ctx.operands[1].capacities
    mask = valid_mask(window, ctx.operands[1].lengths, axes=partial)
    if mask is not None:
        update = jnp.where(mask, update, lax.dynamic_slice(operand, clamped, window))
    return ctx.bind(operand, update, *clamped)


def _clamped(ctx: RuleContext, starts: Sequence[Any], *, dims: Any, sizes: Any) -> list[Array]:
    """Per axis the start, clamped so that a window of `sizes` lies inside `dims`."""
    return [
        _clamp(_as_i32(start), _last_start(ctx, dim, size=size))
        for start, dim, size in zip(starts, dims, sizes, strict=True)
    ]


@register("gather", exact_when="its mode is not `GatherScatterMode.ONE_HOT`", also_static=True)
def gather(
    ctx: RuleContext,
    operand: Array,
    indices: Array,
    *,
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: tuple[int, ...],
    mode: Any,
    fill_value: Any,
    **params: Any,
) -> Array:
    """Move: indices are clamped, or found to be out of bounds, at the true sizes."""
    if not is_ragged(ctx.eqn) and (mode == _MODE.ONE_HOT or not _is_one_row(ctx)):
        return _compat.bind_equation(ctx.eqn, [operand, indices])[0]
    if mode == _MODE.ONE_HOT:
        raise ctx.unsupported_error(
            "gather as a product with one-hot rows reads all of the padding",
            fix='mode="clip" or mode="fill"',
            or_exact=False,  # JAX traces it, and cannot lower it
        )
    dims, sizes = ctx.operands[0].dims, ctx.params["slice_sizes"]
    at, batching = dimension_numbers.start_index_map, dimension_numbers.operand_batching_dims
    last = _vector([_last_start(ctx, dims[axis], size=sizes[axis]) for axis in at])
    starts = _as_i32(indices, saturate=mode != _MODE.FILL_OR_DROP)
    operand = _with_room(ctx, operand, dims=dims, sizes=sizes, but=batching)
    out = ctx.bind(
        operand,
        _clamp(starts, last),
        dimension_numbers=dimension_numbers,
        slice_sizes=slice_sizes,
        mode=_MODE.CLIP,
        fill_value=None,
        **params | {"unique_indices": False, "indices_are_sorted": False},
    )
    if mode != _MODE.FILL_OR_DROP:
        return out
    rows = [axis for axis in range(out.ndim) if axis not in dimension_numbers.offset_dims]
    mask = _compat.broadcast_in_dim(_in_bounds(starts, last), out.shape, rows)
    return jnp.where(mask, out, _missing(out, fill_value))


@register(
    *("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"),
    also_static=True,
)
def scatter(
    ctx: RuleContext,
    operand: Array,
    indices: Array,
    updates: Array,
    *,
    dimension_numbers: lax.ScatterDimensionNumbers,
    mode: Any,
    **params: Any,
) -> Array:
    """Move: index rows that are padding, or out of bounds at the true sizes, are dropped.

    A window that covers part of a ragged axis would write its padding: its positions become index
    rows. One that covers the whole axis stays, for its padding falls on padding.
    """
    if not hasattr(updates, "shape"):  # a literal
        updates = _compat.asarray(updates, operand.dtype)
    if operand.size == 0 or updates.size == 0:
        return operand
    if not is_ragged(ctx.eqn) and not _is_one_row(ctx):
        return _compat.bind_equation(ctx.eqn, [operand, indices, updates])[0]
    dims, windows = ctx.operands[0].dims, _windows(dimension_numbers, operand.ndim)
    update_dims = ctx.operands[2].dims
    sizes = [update_dims[windows[a]] if a in windows else 1 for a in range(operand.ndim)]
    indexed = dimension_numbers.scatter_dims_to_operand_dims
    last = _vector([_last_start(ctx, dims[axis], size=sizes[axis]) for axis in indexed])
    starts = _as_i32(indices)
    # JAX reads `x[i]` of a static array by a dynamic slice, whose transpose clamps; of a ragged one
    # by a gather of a unique index that is promised to be in bounds.
    if mode == _MODE.CLIP or (mode == _MODE.PROMISE_IN_BOUNDS and params["unique_indices"]):
        starts = _clamp(starts, last)
    keep = _in_bounds(starts, last)
    batching = dimension_numbers.scatter_indices_batching_dims
    rows = [axis for axis in range(keep.ndim) if axis not in batching]
    is_row = valid_mask(ctx.operands[1].capacities[:-1], ctx.operands[1].lengths, axes=rows)
    keep = keep if is_row is None else keep & is_row
    writes = _Writes(starts, keep, updates, dimension_numbers)
    partial = {axis: sizes[axis] for axis in windows if _is_partial(dims[axis], sizes[axis])}
    writes = writes.by_element(ctx, partial) if partial else writes
    return writes.apply(ctx, operand, **params)


@dataclasses.dataclass(frozen=True)
class _Writes:
    """The windows that a scatter writes.

    Attributes:
        starts: i32[rows, indexed]: where each window starts.
        keep: bool[rows]: whether it is written.
        updates: The windows.
        numbers: Which of their axes are rows, and which axes of the operand are indexed.
        is_by_element: Whether a window holds single elements of what the equation writes.
    """

    starts: Array
    keep: Array
    updates: Array
    numbers: lax.ScatterDimensionNumbers
    is_by_element: bool = False

    def by_element(self, ctx: RuleContext, partial: dict[int, Any]) -> "_Writes":
        """These writes with an index row for each position along some of the window's axes.

        Args:
            ctx: The equation.
            partial: By axis of the operand the dim of the window; positions behind it are dropped.
        """
        numbers, keep = self.numbers, self.keep
        windows = _windows(numbers, len(ctx.operands[0].dims))
        indexed = numbers.scatter_dims_to_operand_dims
        columns = {axis: self.starts[..., i] for i, axis in enumerate(indexed)}
        spread = [windows[axis] for axis in partial]
        stay = [axis for axis in numbers.update_window_dims if axis not in spread]
        rows = [a for a in range(self.updates.ndim) if a not in numbers.update_window_dims]
        updates = lax.transpose(self.updates, (*rows, *spread, *stay))
        grid = updates.shape[: len(rows) + len(spread)]
        keep = _compat.broadcast_in_dim(keep, grid, range(len(rows)))
        for number, (axis, size) in enumerate(partial.items(), start=len(rows)):
            step = _compat.broadcasted_iota(np.int32, grid, number)
            keep = keep & (step < ctx.extents.length(size))
            first = columns.get(axis, lax.full(self.starts.shape[:-1], 0, np.int32))
            columns[axis] = _compat.broadcast_in_dim(first, grid, range(first.ndim)) + step
        starts = jnp.stack(
            [_compat.broadcast_in_dim(c, grid, range(c.ndim)) for c in columns.values()], axis=-1
        )
        by_element = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(len(grid), updates.ndim)),
            inserted_window_dims=tuple(sorted((*numbers.inserted_window_dims, *partial))),
            scatter_dims_to_operand_dims=tuple(columns),
            operand_batching_dims=numbers.operand_batching_dims,
            scatter_indices_batching_dims=numbers.scatter_indices_batching_dims,
        )
        return _Writes(starts, keep, updates, by_element, is_by_element=True)

    def apply(self, ctx: RuleContext, operand: Array, **params: Any) -> Array:
        """The operand with those windows written that are kept."""
        updates = self.updates
        if self.keep.size == 1:  # XLA makes a dynamic update of it, which clamps
            starts = jnp.where(self.keep[..., None], self.starts, 0)
            unchanged = self._unchanging(ctx, operand, starts)
            updates = jnp.where(self.keep.reshape(()), updates, unchanged)
        else:
            starts = jnp.where(self.keep[..., None], self.starts, _NOWHERE)
        return ctx.bind(
            operand,
            starts,
            updates,
            dimension_numbers=self.numbers,
            mode=_MODE.FILL_OR_DROP,
            **params | {"unique_indices": False, "indices_are_sorted": False},
        )

    def _unchanging(self, ctx: RuleContext, operand: Array, starts: Array) -> Any:
        """Updates that leave the operand as it is, at `starts`."""
        if ctx.primitive in _UNCHANGING:
            return np.asarray(_UNCHANGING[ctx.primitive], operand.dtype)
        numbers, windows = self.numbers, _windows(self.numbers, operand.ndim)
        extents = self.updates.shape if self.is_by_element else ctx.operands[2].capacities
        return _compat.gather(
            operand,
            starts,
            lax.GatherDimensionNumbers(
                offset_dims=tuple(numbers.update_window_dims),
                collapsed_slice_dims=tuple(numbers.inserted_window_dims),
                start_index_map=tuple(numbers.scatter_dims_to_operand_dims),
                operand_batching_dims=tuple(numbers.operand_batching_dims),
                start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
            ),
            [extents[windows[a]] if a in windows else 1 for a in range(operand.ndim)],
            mode=_MODE.CLIP,
        )


def _is_one_row(ctx: RuleContext) -> bool:
    indices = ctx.operands[1].capacities
    return math.prod(indices) == indices[-1]


def _windows(numbers: lax.ScatterDimensionNumbers, rank: int) -> dict[int, int]:
    """By axis of the operand, the axis of the updates that is its window."""
    without = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    axes = [axis for axis in range(rank) if axis not in without]
    return dict(zip(axes, numbers.update_window_dims, strict=True))


def _is_partial(dim: Any, size: Any) -> bool:
    """Whether a window is ragged and not known to cover its axis."""
    return not isinstance(size, int) and _dim.dim_text(dim) != _dim.dim_text(size)


def _last_start(ctx: RuleContext, dim: Any, *, size: Any) -> Length:
    """The last start at which a window lies inside its axis, at the true sizes."""
    return ctx.extents.length(dim - size)


def _with_room(
    ctx: RuleContext, x: Array, *, dims: Any, sizes: Any, but: Sequence[int] = ()
) -> Array:
    """`x`, the first operand, so wide that XLA clamps no start in bounds at the true sizes."""
    shape = list(ctx.operands[0].capacities)
    for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        if axis not in but:
            room = (
                size
                if isinstance(size, int)
                else ctx.extents.capacity(dim - size) + ctx.extents.capacity(size)
            )
            shape[axis] = max(shape[axis], room)
    return conform(x, tuple(shape))


def _as_i32(index: Any, *, saturate: bool = True) -> Array:
    """Indices in i32; those beyond it stay out of bounds, unless they are to wrap as JAX's do."""
    index = _compat.asarray(index)
    limits, own = np.iinfo(np.int32), jnp.iinfo(index.dtype)
    if saturate and own.max > limits.max:
        index = jnp.minimum(index, index.dtype.type(limits.max))
        if own.min < limits.min:
            index = jnp.maximum(index, index.dtype.type(limits.min))
    return index.astype(np.int32)


def _vector(lengths: Sequence[Length]) -> Array:
    return _compat.asarray(lengths, np.int32)


def _clamp(starts: Array, last: Any) -> Array:
    return jnp.clip(starts, 0, jnp.maximum(last, 0))


def _in_bounds(starts: Array, last: Array) -> Array:
    """bool[rows]: whether each window lies inside the operand."""
    return ((starts >= 0) & (starts <= last)).all(-1)


def _missing(x: Array, value: Any) -> Any:
    """`value` in the dtype of `x`; for a key, in each of its words."""
    if not _compat.is_extended(x.dtype):
        return np.asarray(value, x.dtype)
    words = _compat.eval_shape(jax.random.key_data, x)
    filled = lax.full(words.shape[x.ndim :], value, words.dtype)
    return _compat.wrap_key_data(filled, impl=jax.random.key_impl(x))
