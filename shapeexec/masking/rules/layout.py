"""Layout: primitives that move elements, or give them other axes.

Positions count in the logical shape, at the true sizes: where a ragged axis is merged, split,
shifted or reversed, elements move in the padded buffer.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking import _softmax as softmax
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, conform
from shapeexec.masking._knowledge import Known, by_dtype
from shapeexec.masking._moves import roll_to_front, take
from shapeexec.masking._registry import register, register_knowledge
from shapeexec.masking._windows import pad_axis
from shapeexec.shape import _dim

Dims = tuple[Any, ...]


@register(
    *("broadcast_in_dim", "broadcast_to", "empty", "expand_dims", "iota"),
    *("squeeze", "stack", "transpose", "unstack"),
)
def placed_by_axes(ctx: RuleContext, *operands: Array, **params: Any) -> Any:
    """Keep: axes are added, dropped or exchanged whole, and elements stay in order."""
    return ctx.bind(*operands, **params)


@register_knowledge("broadcast_in_dim")
def broadcast_knowledge(
    ctx: RuleContext,
    operand: Known,
    *dynamic: Known,
    shape: Any,
    broadcast_dimensions: Any,
    **_: Any,
) -> Known:
    """A ragged axis keeps its fact; a new one repeats the operand's elements."""
    axes = [operand.whole] * len(shape)
    in_shape = ctx.operands[0].dims
    for axis, target in enumerate(broadcast_dimensions):
        if not isinstance(in_shape[axis], int):
            axes[target] = operand.axes[axis]
    role = softmax.broadcast(operand, shape, broadcast_dimensions=broadcast_dimensions)
    return Known(operand.whole, tuple(axes), role)


@register_knowledge("transpose")
def transpose_knowledge(ctx: RuleContext, operand: Known, *, permutation: Sequence[int]) -> Known:
    """Each axis keeps its fact."""
    return Known(operand.whole, tuple(operand.axes[axis] for axis in permutation))


@register_knowledge("squeeze")
def squeeze_knowledge(ctx: RuleContext, operand: Known, *, dimensions: Any) -> Known:
    """Each axis that stays keeps its fact."""
    kept = [padding for axis, padding in enumerate(operand.axes) if axis not in dimensions]
    return Known(operand.whole, tuple(kept))


# Reshape


@register("reshape")
def reshape(
    ctx: RuleContext, operand: Array, *, new_sizes: Any, dimensions: Any, **params: Any
) -> Array:
    """Move: axes merge and split in the logical shape, row-major.

    The two shapes are cut into minimal groups of equal size. Only a group in which a ragged axis
    is not the leading one costs a gather, of whole rows of the axes behind the group.
    """
    in_shape = ctx.operands[0].dims
    if dimensions is not None:
        operand = lax.transpose(operand, dimensions)
        in_shape = tuple(in_shape[axis] for axis in dimensions)
    axis = 0
    for old, new in groups(in_shape, ctx.params["new_sizes"]):
        operand = _reshape_group(ctx, operand, axis=axis, old=old, new=new)
        axis += len(new)
    return operand


def groups(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[Dims, Dims]]:
    """Two shapes of equal size, cut into the shortest runs of equal size.

    Ones go with the run in front of them.
    """
    ends_old, ends_new = _prefix_ends(old), _prefix_ends(new)
    cuts = [(ends_old[size], ends_new[size]) for size in ends_old if size in ends_new]
    found: list[tuple[Dims, Dims]] = []
    i = j = 0
    for next_i, next_j in sorted(cuts):  # where a guard says b*s == 1, products do not only grow
        if (next_i, next_j) != (i, j) and next_j >= j:
            found.append((tuple(old[i:next_i]), tuple(new[j:next_j])))
            i, j = next_i, next_j
    if (i, j) != (len(old), len(new)):  # sizes that are equal by a guard only
        found.append((tuple(old[i:]), tuple(new[j:])))
    return found


def _prefix_ends(dims: Sequence[Any]) -> dict[str, int]:
    """Per product of the first dims, the most dims that have it."""
    product: Any = 1
    ends = {"1": 0}
    for end, dim in enumerate(dims, start=1):
        product = product * dim
        ends[_dim.dim_text(product)] = end
    return ends


def _reshape_group(ctx: RuleContext, x: Array, *, axis: int, old: Dims, new: Dims) -> Array:
    """Reshape the axes `old` of `x`, which begin at `axis`, into `new`."""
    before, after = x.shape[:axis], x.shape[axis + len(old) :]
    in_capacities, capacities = ctx.extents.capacities(old), ctx.extents.capacities(new)
    leading_only = not any(_is_ragged(dim) for dim in old[1:] + new[1:])
    if _without_ones(old) == _without_ones(new) or leading_only:
        # Row-major order in the buffer is row-major order in the logical shape.
        if x.shape == (*before, *capacities, *after):
            return x
        flat = x.reshape(*before, math.prod(in_capacities), *after)
        flat = conform(flat, (*before, math.prod(capacities), *after)) if leading_only else flat
        return flat.reshape(*before, *capacities, *after)
    flat = x.reshape(*before, math.prod(in_capacities), *after)
    source = _source_positions(
        capacities,
        ctx.extents.lengths(new),
        in_capacities=in_capacities,
        in_lengths=ctx.extents.lengths(old),
    )
    return take(flat, source.ravel(), axis=len(before)).reshape(*before, *capacities, *after)


def _is_ragged(dim: Any) -> bool:
    return not isinstance(dim, int)


def _without_ones(dims: Dims) -> list[str]:
    return [_dim.dim_text(dim) for dim in dims if _dim.dim_text(dim) != "1"]


def _source_positions(
    out_capacities: Sequence[int],
    out_lengths: Sequence[Length],
    *,
    in_capacities: Sequence[int],
    in_lengths: Sequence[Length],
) -> Array:
    """i32[out_capacities]: where in the padded input, flattened, each output element stands."""
    position: Any = lax.full(tuple(out_capacities), 0, np.int32)
    for axis, length in enumerate(out_lengths):
        position = position * length + _compat.broadcasted_iota(np.int32, position.shape, axis)
    source: Any = lax.full_like(position, 0)
    stride = 1
    for capacity, length in zip(reversed(in_capacities), reversed(in_lengths), strict=True):
        # Lengths can be 0 at sizes that the graph never sees: stay clear of division by it.
        divisor = jnp.maximum(length, 1)
        source = source + jnp.remainder(position, divisor) * stride
        position = jnp.floor_divide(position, divisor)
        stride *= capacity
    return source


# Moving along one axis


@register("rev")
def rev(ctx: RuleContext, operand: Array, *, dimensions: tuple[int, ...]) -> Array:
    """Move: reversing puts the padding first, so the valid elements are rolled to the front."""
    out = lax.rev(operand, dimensions)
    for axis in ctx.operands[0].padded(dimensions):
        length, capacity = ctx.operands[0].lengths[axis], ctx.operands[0].capacities[axis]
        out = roll_to_front(out, length, axis=axis, capacity=capacity)
    return out


@register("concatenate")
def concatenate(ctx: RuleContext, *operands: Array, dimension: int) -> Array:
    """Move: each operand is written behind the valid length of those before it."""
    lengths = [ctx.operands[i].lengths[dimension] for i in range(len(operands))]
    if not any(ctx.operands[i].padded((dimension,)) for i in range(len(operands) - 1)):
        return ctx.bind(*operands, dimension=dimension)
    shape = list(ctx.operands[0].capacities)
    shape[dimension] = sum(ctx.operands[i].capacities[dimension] for i in range(len(operands)))
    # As wide as all the operands: an update past the end would be clamped onto valid elements.
    out = conform(operands[0], tuple(shape))
    offset = lengths[0]
    for operand, length in zip(operands[1:], lengths[1:], strict=True):
        out = lax.dynamic_update_slice_in_dim(out, operand, offset, dimension)
        offset = offset + length
    return out


@register("split")
def split(ctx: RuleContext, operand: Array, *, sizes: tuple[int, ...], axis: int) -> Any:
    """Move: each part begins at the true sum of the parts before it."""
    out: list[Array] = []
    offset, width = 0, ctx.operands[0].capacities[axis]
    for capacity, size in zip(sizes, ctx.params["sizes"], strict=True):
        out.append(_run_of(operand, offset, stride=1, count=capacity, axis=axis, width=width))
        offset = offset + ctx.extents.length(size)
    return out


@register("slice")
def slice_(ctx: RuleContext, operand: Array, **_: Any) -> Array:
    """Move: reads from a true start by a true stride."""
    starts, strides = ctx.params["start_indices"], ctx.params["strides"]
    for axis, start in enumerate(starts):
        stride = 1 if strides is None else strides[axis]
        operand = _run_of(
            operand,
            ctx.extents.length(start),
            stride=ctx.extents.length(stride),
            count=ctx.results[0].capacities[axis],
            axis=axis,
            width=ctx.operands[0].capacities[axis],
        )
    return operand


def _run_of(x: Array, start: Length, *, stride: Length, count: int, axis: int, width: int) -> Array:
    """`count` of the `width` elements of `x` along `axis`; those past its end are padding."""
    if isinstance(start, int) and isinstance(stride, int):
        stop = start + (count - 1) * stride + 1 if count else start
        if stop > width:
            x = conform(x, (*x.shape[:axis], stop, *x.shape[axis + 1 :]))
        return lax.slice_in_dim(x, start, stop, stride, axis)
    return take(x, start + lax.iota(np.int32, count) * stride, axis=axis)


@register("tile")
def tile(ctx: RuleContext, operand: Array, *, reps: tuple[int, ...]) -> Array:
    """Move: repetition by the true length."""
    offset = len(reps) - operand.ndim
    own = (1,) * offset + ctx.operands[0].capacities
    operand = operand.reshape(own)
    lengths = (1,) * offset + ctx.operands[0].lengths
    for axis, capacity in enumerate(ctx.results[0].capacities):
        if own[axis] != capacity or reps[axis] != 1:
            index = lax.iota(np.int32, capacity) % jnp.maximum(lengths[axis], 1)
            operand = take(operand, index, axis=axis)
    return operand


@register("pad")
def pad(ctx: RuleContext, operand: Array, value: Array, **_: Any) -> Array:
    """Move: the pad value goes behind the valid length, in front of it and in between."""
    for axis, config in enumerate(ctx.params["padding_config"]):
        low, high, interior = map(ctx.extents.length, config)
        if any(isinstance(part, Array) or part for part in (low, high, interior)):
            is_cut = isinstance(high, int) and high <= 0
            operand = pad_axis(
                ctx, operand, value=value, axis=axis, low=low, interior=interior, is_cut=is_cut
            )
    return operand


@register_knowledge("reshape")
def reshape_knowledge(ctx: RuleContext, operand: Known, *, new_sizes: Any, **params: Any) -> Known:
    """An axis that is alone in its group keeps its fact."""
    whole = by_dtype(ctx.eqn.outvars[0].aval.dtype)
    whole = operand.whole if operand.whole.finite or operand.whole.value is not None else whole
    if params["dimensions"] is not None:
        return Known(whole, (whole,) * len(new_sizes))
    axes: list[Any] = []
    start = 0
    for old, new in groups(ctx.operands[0].dims, new_sizes):
        ragged_old = [start + i for i, dim in enumerate(old) if _is_ragged(dim)]
        same = _without_ones(old) == _without_ones(new)
        known = [operand.axes[axis] for axis in ragged_old] if same else []
        axes += [known.pop(0) if _is_ragged(dim) and known else whole for dim in new]
        start += len(old)
    return Known(whole, tuple(axes))
