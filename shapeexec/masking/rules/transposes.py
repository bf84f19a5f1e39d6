"""Transposes of strided windows: the gradients of convolutions, pooling and slices.

At capacity all sizes are numbers, so JAX's own transpose applies. The steps that the forward rule
takes around the operation are transposed too: cotangents of padding become 0, and each element
takes the cotangent at its position. The steps themselves are in `_windows`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import Length, conform, fill, zero
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
    pad_axis,
    reduced_axes,
    spatial_axes,
    spread_groups,
    stepped,
    unpad_axis,
)
from shapeexec.shape import _transposes


def _transposed(
    forward: Callable[[Array], Array], shape: Sequence[int], *, dtype: Any, cotangent: Array
) -> Array:
    """JAX's transpose of `forward`, a linear function of one array, at known sizes."""
    struct = jax.ShapeDtypeStruct(tuple(shape), dtype)
    (result,) = _compat.linear_transpose(forward, struct)(cotangent)
    return result


def _layouts(
    axes: Sequence[WindowAxis], shape: Sequence[int], *, padding: Any, dilation: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """The shape of an array laid along `axes`, and the padding and dilation of all its axes."""
    laid, pads, steps = list(shape), [tuple(pair) for pair in padding], list(dilation)
    for each in axes:
        laid[each.axis], pads[each.axis], steps[each.axis] = each.layout(shape[each.axis])
    return laid, pads, steps


# Windowed reductions


@register(_transposes.window_sum.primitive, exact_when=EXACT_WHEN)
def window_sum(
    ctx: RuleContext,
    cotangent: Array,
    *,
    shape: tuple[int, ...],
    dtype: Any,
    padding: Any,
    base_dilation: Any,
    **params: Any,
) -> Array:
    """Fill: 0 for windows behind the valid ones."""
    axes = reduced_axes(ctx, ctx.params["shape"], windows_in=ctx.operands[0].dims)
    cotangent = ctx.fill(0, zero(cotangent.dtype), axes=[each.axis for each in axes])
    laid, pads, steps = _layouts(axes, shape, padding=padding, dilation=base_dilation)

    def forward(x: Array) -> Array:
        return _compat.bind(
            lax.reduce_window_sum_p,
            x,
            padding=tuple(pads),
            base_dilation=tuple(steps),
            **stepped(axes, params),
        )

    out = _transposed(
        forward, laid, dtype=dtype, cotangent=conform(cotangent, ctx.operands[0].capacities)
    )
    for each in axes:
        out = each.take_back(out, shape[each.axis])
    return out


@register(_transposes.gather_selected.primitive, exact_when=EXACT_WHEN)
def gather_selected(
    ctx: RuleContext,
    cotangent: Array,
    operand: Array,
    *,
    shape: tuple[int, ...],
    select_prim: Any,
    padding: Any,
    window_strides: Any,
    window_dimensions: Any,
    **_: Any,
) -> Array:
    """Fill: 0 for windows behind the valid ones, and between dilated elements what never wins."""
    axes = _dilated_axes(
        ctx, reduced_axes(ctx, ctx.operands[1].dims, windows_in=ctx.operands[0].dims)
    )
    cotangent = ctx.fill(0, zero(cotangent.dtype), axes=[each.axis for each in axes])
    loser = LOSER[select_prim.name](operand.dtype)
    pads = [tuple(pair) for pair in padding]
    for each in axes:
        operand, pads[each.axis], _step = each.lay(operand, loser)
    out = _compat.bind(
        lax.select_and_scatter_add_p,
        conform(cotangent, ctx.operands[0].capacities),
        operand,
        select_prim=select_prim,
        padding=tuple(pads),
        **stepped(axes, {"window_dimensions": window_dimensions, "window_strides": window_strides}),
    )
    for each in axes:
        out = each.take_back(out, shape[each.axis])
    return out


def _dilated_axes(ctx: RuleContext, ragged: Sequence[WindowAxis]) -> list[WindowAxis]:
    """The ragged and the dilated axes, placed by position: the primitive has no dilation."""
    params, known = ctx.params, {each.axis: each for each in ragged}
    for axis, dilation in enumerate(params["base_dilation"]):
        if axis not in known and dilation != 1:
            count, window = ctx.operands[0].dims[axis], params["window_dimensions"][axis]
            reach = max(0, (count - 1) * params["window_strides"][axis] + window)
            low = params["padding"][axis][0]
            size = ctx.operands[1].capacities[axis]
            known[axis] = WindowAxis(axis, size, size, low, dilation, reach)
    return [
        each
        if each.windows or each.limit is not None
        else dataclasses.replace(each, limit=each.reach)
        for each in known.values()
    ]


# Convolutions


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """The convolution that an equation transposes, at capacity.

    Attributes:
        ctx: The equation.
        shapes: The dims of the left and right operands and of the result.
        axes: The left operand's axes along which the kernel meets padding.
        params: The parameters at capacity, without what follows from `axes`.
    """

    ctx: RuleContext
    shapes: tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
    axes: Sequence[WindowAxis]
    params: dict[str, Any]

    @property
    def numbers(self) -> Any:
        """The dimension numbers: the meaning of each array's axes."""
        return self.params["dimension_numbers"]

    @property
    def has_ragged_groups(self) -> bool:
        """Whether the number of groups is ragged."""
        own = self.ctx.params
        return holds_dim((own["feature_group_count"], own["batch_group_count"]))

    def groups(self) -> tuple[list[tuple[int, int, Any]], ...]:
        """Per array of `shapes` the axes that hold groups: axis, how many, and the dim of one."""
        (rows, features, *_), (outs, inner, *_), (out_rows, out_features, *_) = self.numbers
        own, params = self.ctx.params, self.params
        total = params["feature_group_count"] * params["batch_group_count"]
        per_group = self.shapes[1][outs] // (own["feature_group_count"] * own["batch_group_count"])
        left = [
            (features, params["feature_group_count"], self.shapes[1][inner]),
            (rows, params["batch_group_count"], self.shapes[2][out_rows]),
        ]
        return left, [(outs, total, per_group)], [(out_features, total, per_group)]

    def spread(self, which: int, x: Array) -> Array:
        """One of the arrays with each of its groups widened to its capacity."""
        for axis, count, size in self.groups()[which]:
            x = spread_groups(self.ctx, x, axis=axis, groups=count, size=size)
        return x

    def close_up(self, which: int, x: Array) -> Array:
        """The inverse of `spread`."""
        for axis, count, size in self.groups()[which]:
            x = close_up_groups(self.ctx, x, axis=axis, groups=count, size=size)
        return x

    def spread_shape(self, which: int) -> list[int]:
        """The shape of one of the arrays at capacity, spread."""
        shape = list(self.ctx.extents.capacities(self.shapes[which]))
        for axis, count, size in self.groups()[which]:
            if count != 1 and not isinstance(size, int):
                shape[axis] = count * self.ctx.extents.capacity(size)
        return shape

    def layout(self) -> tuple[list[int], dict[str, Any]]:
        """The shape of the left operand as it is laid, and the parameters for that."""
        padding = by_lhs_axis(self.ctx, self.params["padding"], other=(0, 0))
        dilation = by_lhs_axis(self.ctx, self.params["lhs_dilation"], other=1)
        laid, pads, steps = _layouts(
            self.axes, self.spread_shape(0), padding=padding, dilation=dilation
        )
        return laid, laid_params(self.params, pads, dilation=steps)


@register(_transposes.conv_lhs.primitive, exact_when=STATIC_STEPS)
def conv_by_data(
    ctx: RuleContext,
    cotangent: Array,
    rhs: Array,
    *,
    shape: tuple[int, ...],
    dtype: Any,
    **params: Any,
) -> Array:
    """Fill: 0 along windows and contracted features, in the cotangent and in the kernel."""
    shapes = (ctx.params["shape"], ctx.operands[1].dims, ctx.operands[0].dims)
    conv = _Convolution(ctx, shapes, spatial_axes(ctx, shapes), params)
    _, (outs, inner, *kernel), (out_rows, out_features, *space) = conv.numbers
    groups = conv.has_ragged_groups
    cotangent = ctx.fill(
        0, zero(cotangent.dtype), axes=[*space, out_features, *([out_rows] if groups else [])]
    )
    rhs = ctx.fill(1, zero(rhs.dtype), axes=[*kernel, outs, *([inner] if groups else [])])
    skips = skips_zeros({**params, **_as_lhs_gradient(params)}, cotangent.dtype)
    apart = tap_axes(ctx, conv.axes, shapes=shapes, behind="taps", skips=skips)

    read = {0: cotangent, 1: rhs} if skips else {0: cotangent}
    cotangent = conv.spread(2, conform(cotangent, ctx.operands[0].capacities))
    rhs = conv.spread(1, conform(rhs, ctx.operands[1].capacities))
    laid, params = conv.layout()
    product = Product((jax.ShapeDtypeStruct(tuple(laid), dtype), rhs, cotangent), 0, params)

    def finish(out: Array) -> Array:
        for each in conv.axes:
            out = each.take_back(out, shape[each.axis])
        return conv.close_up(0, out)

    return unless_finite(ctx, read, apart=apart, product=product, finish=finish)


@register(_transposes.conv_rhs.primitive, exact_when=STATIC_STEPS)
def conv_by_kernel(
    ctx: RuleContext,
    cotangent: Array,
    lhs: Array,
    *,
    shape: tuple[int, ...],
    dtype: Any,
    **params: Any,
) -> Array:
    """Fill: 0 along windows and the batch, in cotangent and data; 0 in data that is not read."""
    shapes = (ctx.operands[1].dims, ctx.params["shape"], ctx.operands[0].dims)
    conv = _Convolution(ctx, shapes, spatial_axes(ctx, shapes), params)
    (rows, features, *_), _, (out_rows, out_features, *space) = conv.numbers
    groups = conv.has_ragged_groups
    cotangent = ctx.fill(
        0, zero(cotangent.dtype), axes=[*space, out_rows, *([out_features] if groups else [])]
    )
    lhs = ctx.fill(
        1, zero(lhs.dtype), axes=[*in_place(conv.axes), rows, *([features] if groups else [])]
    )
    skips = skips_zeros({**params, **_as_rhs_gradient(params)}, cotangent.dtype)
    apart = tap_axes(ctx, conv.axes, shapes=shapes, behind="results", skips=skips)

    read = {0: cotangent, 1: lhs} if skips else {1: lhs}
    lhs = _without_unread(conv, conform(lhs, ctx.operands[1].capacities))
    cotangent = conv.spread(2, conform(cotangent, ctx.operands[0].capacities))
    for each in conv.axes:
        lhs, *_ = each.lay(lhs, zero(lhs.dtype))
    lhs = conv.spread(0, lhs)
    _, params = conv.layout()
    kernel = jax.ShapeDtypeStruct(tuple(conv.spread_shape(1)), dtype)

    def finish(out: Array) -> Array:
        return conv.close_up(1, out)

    product = Product((lhs, kernel, cotangent), 1, params)
    return unless_finite(ctx, read, apart=apart, product=product, finish=finish)


def _as_lhs_gradient(params: dict[str, Any]) -> dict[str, Any]:
    """The steps and groups of the convolution that is JAX's gradient by the data."""
    return {
        "window_strides": params["lhs_dilation"],
        "lhs_dilation": params["window_strides"],
        "batch_group_count": 1,
    }


def _as_rhs_gradient(params: dict[str, Any]) -> dict[str, Any]:
    """The steps and groups of the convolution that is JAX's gradient by the kernel."""
    return {
        "window_strides": params["rhs_dilation"],
        "rhs_dilation": params["window_strides"],
        "batch_group_count": params["feature_group_count"],
    }


def _without_unread(conv: _Convolution, lhs: Array) -> Array:
    """The left operand with 0 for elements behind the last window: 0 times NaN is NaN."""
    lengths: list[Length] = [1] * lhs.ndim
    ctx, params, numbers = conv.ctx, conv.params, conv.numbers
    own = {each.axis: each for each in conv.axes}
    for i, axis in enumerate(numbers.lhs_spec[2:]):
        stride, each = params["window_strides"][i], own.get(axis)
        if stride == 1 or each is None:
            continue
        count = ctx.extents.length(conv.shapes[2][numbers.out_spec[2 + i]])
        window = ctx.extents.length(conv.shapes[1][numbers.rhs_spec[2 + i]])
        reach = (count - 1) * stride + (window - 1) * params["rhs_dilation"][i] + 1
        read = jnp.floor_divide(reach - each.low + each.dilation - 1, each.dilation)
        lengths[axis] = jnp.minimum(_compat.asarray(read, np.int32), each.length)
    return fill(lhs, lengths, value=zero(lhs.dtype), axes=list(own))


# Slices and pads


@register(_transposes.strided_slice.primitive)
def strided_slice(ctx: RuleContext, cotangent: Array, **_: Any) -> Array:
    """Move: each element goes to where it was read, between zeros."""
    starts, strides = ctx.params["start_indices"], ctx.params["strides"]
    for axis, start in enumerate(starts):
        cotangent = pad_axis(
            ctx,
            cotangent,
            value=zero(cotangent.dtype),
            axis=axis,
            low=ctx.extents.length(start),
            interior=0 if strides is None else ctx.extents.length(strides[axis]) - 1,
        )
    return cotangent


@register(_transposes.padding.primitive)
def padding(ctx: RuleContext, cotangent: Array, *, shape: tuple[int, ...], **_: Any) -> Array:
    """Move: each element takes what stands where it was put, or 0 if it was cut off."""
    for axis, (low, _high, interior) in enumerate(ctx.params["padding_config"]):
        place = (ctx.extents.length(low), ctx.extents.length(interior) + 1)
        cotangent = unpad_axis(
            cotangent, axis, length=ctx.operands[0].lengths[axis], place=place, width=shape[axis]
        )
    return cotangent
