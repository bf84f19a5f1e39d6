"""Windows: convolutions, pooling, and the primitives of their gradients.

A window that reaches past the valid length must find the identity there, as past the end of the
unpadded operand. How far windows reach follows from the capacity of the result.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import fill, highest, lowest, valid_mask, zero
from shapeexec.masking._pairs import of_valid
from shapeexec.masking._products import Product
from shapeexec.masking._registry import register
from shapeexec.masking._taps import skips_zeros, tap_axes, unless_finite
from shapeexec.masking._windows import (
    EXACT_WHEN,
    LOSER,
    STATIC_STEPS,
    WindowAxis,
    by_lhs_axis,
    close_up_groups,
    in_place,
    laid_params,
    lay_all,
    reduced_axes,
    spatial_axes,
    spread_groups,
    stepped,
)

_IDENTITY: dict[str, Callable[[Any], Any]] = {
    "reduce_window_sum": zero,
    "reduce_window_max": lowest,
    "reduce_window_min": highest,
}


# Windowed reductions


@register(*_IDENTITY, exact_when=EXACT_WHEN)
def reduce_window_monoid(
    ctx: RuleContext, operand: Array, *, padding: Any, base_dilation: Any, **params: Any
) -> Array:
    """Fill: the identity, as far as the windows reach; other axes keep their padding.

    Where the first window's start depends on a size (SAME with a stride), elements are moved.
    Windows of a ragged size that move are laid one after the other, which takes memory for each
    element of each window. These are soon more elements than those at which XLA on the CPU loses
    NaN (docs/limits.md), and the unpadded array rarely has as many, so NaN is searched for
    separately.
    """
    axes = reduced_axes(ctx, ctx.operands[0].dims, windows_in=ctx.results[0].dims)
    identity = _IDENTITY[ctx.primitive](operand.dtype)
    operand = ctx.fill(0, identity, axes=in_place(axes))
    operand, padding, base_dilation = lay_all(
        axes, operand, value=identity, padding=padding, dilation=base_dilation
    )
    params = {"padding": padding, "base_dilation": base_dilation, **stepped(axes, params)}
    out = ctx.bind(operand, **params)
    is_extreme = ctx.primitive != "reduce_window_sum"
    if not (
        is_extreme and jnp.issubdtype(operand.dtype, np.floating) and any(a.windows for a in axes)
    ):
        return out
    is_nan = jnp.isnan(operand).astype(np.int8)
    has_nan = _compat.bind(lax.reduce_window_max_p, is_nan, **params).astype(np.bool_)
    return jnp.where(has_nan, _compat.asarray(np.nan, out.dtype), out)


@register("reduce_window", exact_when=EXACT_WHEN)
def reduce_window(
    ctx: RuleContext, *operands: Array, jaxpr: Any, consts: Any, **params: Any
) -> Any:
    """Fill: pairs (valid, value) are reduced, for the computation need not have an identity.

    With f' = "f if both are valid, else the valid one" an element of padding counts as one past
    the end of the operand does.
    """
    axes = reduced_axes(ctx, ctx.operands[0].dims, windows_in=ctx.results[0].dims)
    if not axes:
        return ctx.bind(*operands, jaxpr=jaxpr, consts=consts, **params)
    count = len(operands) // 2
    closed = _compat.ClosedJaxpr(jaxpr, consts)

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        return [value.array for value in ctx.interpret(closed, *left, *right)]

    read, inits = operands[:count], operands[count:]
    return _reduce_valid(ctx, axes, operands=read, inits=inits, combine=combine, **params)


@register("select_and_gather_add", exact_when=EXACT_WHEN)
def select_and_gather_add(
    ctx: RuleContext, tangents: Array, operand: Array, *, select_prim: Any, **params: Any
) -> Array:
    """Fill: as in `reduce_window`, because the comparison selects padding over a NaN."""
    axes = reduced_axes(ctx, ctx.operands[0].dims, windows_in=ctx.results[0].dims)
    if not axes:
        return ctx.bind(tangents, operand, select_prim=select_prim, **params)

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        is_left = select_prim.bind(left[1], right[1])
        return [lax.select(is_left, x, y) for x, y in zip(left, right, strict=True)]

    loser = LOSER[select_prim.name](operand.dtype)
    inits = (zero(tangents.dtype), loser)
    operands = (tangents, operand)
    return _reduce_valid(ctx, axes, operands=operands, inits=inits, combine=combine, **params)[0]


def _reduce_valid(
    ctx: RuleContext,
    axes: Sequence[WindowAxis],
    *,
    operands: Sequence[Array],
    inits: Sequence[Any],
    combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
    padding: Any,
    base_dilation: Any,
    **params: Any,
) -> Sequence[Array]:
    """`combine` over the valid elements of windows that reach into padding along `axes`."""
    shape = ctx.operands[0].capacities
    lengths: list[Any] = list(shape)
    for each in axes:
        lengths[each.axis] = each.length
    mask = valid_mask(shape, lengths, axes=[each.axis for each in axes])
    mask = lax.full(shape, True, np.bool_) if mask is None else mask
    laid = [
        lay_all(axes, x, value=zero(x.dtype), padding=padding, dilation=base_dilation)
        for x in (mask, *operands)
    ]
    (_, padding, base_dilation), *_ = laid

    _, *results = _compat.reduce_window(
        tuple(x for x, *_ in laid),
        (np.bool_(True), *inits),
        of_valid(combine),
        padding=padding,
        base_dilation=base_dilation,
        **stepped(axes, params),
    )
    return results


@register("select_and_scatter_add", exact_when=EXACT_WHEN)
def select_and_scatter_add(
    ctx: RuleContext,
    source: Array,
    operand: Array,
    *,
    select_prim: Any,
    padding: Any,
    **params: Any,
) -> Array:
    """Fill: 0 in the source of windows behind the valid ones; the operand with what never wins.

    It does win over a NaN that is the last element of a window, as the padding of the primitive
    does too, but what fills up windows of a ragged size must not.
    """
    axes = reduced_axes(ctx, ctx.operands[1].dims, windows_in=ctx.operands[0].dims)
    shape = ctx.operands[1].capacities
    source = ctx.fill(0, zero(source.dtype), axes=[each.axis for each in axes])
    loser = LOSER[select_prim.name](operand.dtype)
    operand = ctx.fill(1, loser, axes=in_place(axes))
    if any(each.windows for each in axes):
        winners = _winners(
            ctx, axes, operand=operand, select_prim=select_prim, padding=padding, **params
        )
        sums = lax.full((math.prod(shape),), 0, source.dtype)
        return sums.at[winners.ravel()].add(source.ravel(), mode="drop").reshape(shape)
    operand, padding, _ = lay_all(
        axes, operand, value=loser, padding=padding, dilation=(1,) * operand.ndim
    )
    params = stepped(axes, params)
    out = ctx.bind(source, operand, select_prim=select_prim, padding=padding, **params)
    for each in axes:
        out = each.take_back(out, shape[each.axis])  # what no window reaches gets nothing
    return out


def _winners(
    ctx: RuleContext,
    axes: Sequence[WindowAxis],
    *,
    operand: Array,
    select_prim: Any,
    padding: Any,
    **params: Any,
) -> Array:
    """i32 per window: the flat position of the selected element; the operand's size for padding."""
    loser = LOSER[select_prim.name](operand.dtype)
    shape = ctx.operands[1].capacities
    size = math.prod(shape)
    ones, nowhere = (1,) * len(shape), np.int32(size)
    index = lax.reshape(lax.iota(np.int32, size), shape)
    index = fill(index, ctx.operands[1].lengths, value=nowhere, axes=in_place(axes))
    values, pads, _ = lay_all(axes, operand, value=loser, padding=padding, dilation=ones)
    places, _, _ = lay_all(axes, index, value=nowhere, padding=padding, dilation=ones)
    config = [(low, high, 0) for low, high in pads]
    values, places = lax.pad(values, loser, config), lax.pad(places, nowhere, config)
    is_read = lax.full(values.shape, True, np.bool_)
    for each in axes:
        if each.windows is not None:
            read = each.windows.positions(lax.iota(np.int32, each.reach))[1]
            is_read &= _compat.broadcast_in_dim(read, is_read.shape, (each.axis,))

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        is_left = select_prim.bind(left[0], right[0])
        return [lax.select(is_left, x, y) for x, y in zip(left, right, strict=True)]

    _, _, winners = _compat.reduce_window(
        (is_read, values, places),
        (np.bool_(False), loser, nowhere),
        of_valid(combine),
        padding=[(0, 0)] * operand.ndim,
        **stepped(axes, params),
    )
    return winners


# Convolutions


@register("conv_general_dilated", exact_when=STATIC_STEPS)
def conv_general_dilated(ctx: RuleContext, lhs: Array, rhs: Array, **params: Any) -> Array:
    """Fill: 0 along windows and contracted features, in both operands, since 0 * NaN is NaN.

    Groups of a ragged size are spread to their capacity first, and the result's groups closed up.
    With a ragged number of groups the padded ones hold 0 too: XLA may run them as one dense
    convolution. If zeros behind the kernel meet data that are not finite, it is taken apart.
    """
    lhs_spec, (rhs_out, rhs_feature, *rhs_space), out_spec = params["dimension_numbers"]
    (lhs_batch, lhs_feature, *_), (out_batch, out_feature, *_) = lhs_spec, out_spec
    groups, batch_groups = ctx.params["feature_group_count"], ctx.params["batch_group_count"]
    shapes = [each.dims for each in (*ctx.operands, *ctx.results)]
    axes = spatial_axes(ctx, shapes)
    lhs_fill, rhs_fill = [*in_place(axes), lhs_feature], [*rhs_space, rhs_feature]
    if holds_dim((groups, batch_groups)):
        lhs_fill.append(lhs_batch)
        rhs_fill.append(rhs_out)
    lhs = ctx.fill(0, zero(lhs.dtype), axes=lhs_fill)
    rhs = ctx.fill(1, zero(rhs.dtype), axes=rhs_fill)
    features, results = ctx.operands[1].dims[rhs_feature], ctx.operands[1].dims[rhs_out]
    rows = ctx.results[0].dims[out_batch]
    per_group = results // (groups * batch_groups)
    feature_groups, row_groups = params["feature_group_count"], params["batch_group_count"]
    out_groups = feature_groups * row_groups
    skips = skips_zeros(params, lhs.dtype)
    apart = tap_axes(ctx, axes, shapes=shapes, behind="taps", skips=skips)
    read = {0: lhs, 1: rhs} if skips else {0: lhs}

    lhs = spread_groups(ctx, lhs, axis=lhs_feature, groups=feature_groups, size=features)
    lhs = spread_groups(ctx, lhs, axis=lhs_batch, groups=row_groups, size=rows)
    rhs = spread_groups(ctx, rhs, axis=rhs_out, groups=out_groups, size=per_group)
    padding = by_lhs_axis(ctx, params["padding"], other=(0, 0))
    dilation = by_lhs_axis(ctx, params["lhs_dilation"], other=1)
    lhs, pads, gaps = lay_all(axes, lhs, value=zero(lhs.dtype), padding=padding, dilation=dilation)
    product = Product((lhs, rhs, None), 2, laid_params(params, pads, dilation=gaps))

    def finish(out: Array) -> Array:
        return close_up_groups(ctx, out, axis=out_feature, groups=out_groups, size=per_group)

    return unless_finite(ctx, read, apart=apart, product=product, finish=finish)
