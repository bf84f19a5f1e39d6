"""Contractions: padding of a contracted axis must be harmless in both operands.

Sums along one operand are in `reductions`; convolutions are in `windows`.
"""

from collections.abc import Iterable
from typing import Any

from jax import Array

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import one, zero
from shapeexec.masking._knowledge import Known, Padding, by_dtype, constant
from shapeexec.masking._registry import register, register_knowledge


@register("dot_general")
def dot_general(
    ctx: RuleContext, lhs: Array, rhs: Array, *, dimension_numbers: Any, **params: Any
) -> Array:
    """Fill: 0 behind the valid length of contracted axes, in both operands, since 0 * NaN is NaN.

    One filled operand is enough where the other's padding is known to be finite.
    """
    (lhs_axes, rhs_axes), _ = dimension_numbers
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes=rhs_axes)
    return ctx.bind(lhs, rhs, dimension_numbers=dimension_numbers, **params)


@register("ragged_dot_general")
def ragged_dot_general(
    ctx: RuleContext,
    lhs: Array,
    rhs: Array,
    group_sizes: Array,
    *,
    ragged_dot_dimension_numbers: Any,
    **params: Any,
) -> Array:
    """Fill: 0 behind the valid length of contracted axes, in both operands.

    JAX wants a static number of groups, so padded rows come after every group.
    """
    (lhs_axes, rhs_axes), _ = ragged_dot_dimension_numbers.dot_dimension_numbers
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes=rhs_axes)
    params["ragged_dot_dimension_numbers"] = ragged_dot_dimension_numbers
    return ctx.bind(lhs, rhs, group_sizes, **params)


@register("scaled_dot")
def scaled_dot(
    ctx: RuleContext,
    lhs: Array,
    rhs: Array,
    lhs_scale: Array,
    rhs_scale: Array,
    *,
    dimension_numbers: Any,
    **params: Any,
) -> Array:
    """Fill: 0 behind contracted axes, and a finite scale, or 0 times it would be NaN."""
    (lhs_axes, rhs_axes), _ = dimension_numbers
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes=rhs_axes)
    lhs_scale = ctx.fill(2, one(lhs_scale.dtype), axes=lhs_axes, unless="finite")
    rhs_scale = ctx.fill(3, one(rhs_scale.dtype), axes=rhs_axes, unless="finite")
    return ctx.bind(lhs, rhs, lhs_scale, rhs_scale, dimension_numbers=dimension_numbers, **params)


def fill_product(ctx: RuleContext, lhs_axes: Any, *, rhs_axes: Any) -> tuple[Array, Array]:
    """Both operands of a contraction, with padding whose products are all 0."""
    axes = (tuple(lhs_axes), tuple(rhs_axes))

    def is_zero(operand: int) -> bool:
        paddings = ctx.operands[operand].known.axes
        return all(
            paddings[a].is_constant(0, unless="nan")
            for a in ctx.operands[operand].padded(axes[operand])
        )

    def is_finite(operand: int) -> bool:
        paddings = ctx.operands[operand].known.axes
        return all(paddings[a].finite for a in ctx.operands[operand].padded(axes[operand]))

    # Zeros go into the operand that has them already, else into one whose partner's padding is
    # finite.
    first = min((0, 1), key=lambda operand: (not is_zero(operand), not is_finite(1 - operand)))
    other = 1 - first
    # A row of NaN makes its results NaN, whatever its padding is.
    value = zero(ctx.operands[first].array.dtype)
    filled = {first: ctx.fill(first, value, axes=axes[first], unless="nan")}
    filled[other] = ctx.fill(
        other, zero(ctx.operands[other].array.dtype), axes=axes[other], unless="finite"
    )
    return filled[0], filled[1]


@register_knowledge("dot_general")
def dot_general_knowledge(
    ctx: RuleContext, lhs: Known, rhs: Known, *, dimension_numbers: Any, **_: Any
) -> Known:
    """Products with rows of zeros are 0, unless the other factor is NaN or infinite.

    A NaN or infinity in a row of the other operand turns a zero into NaN, and each valid row into
    NaN or an infinity.
    """
    contracted, (lhs_batch, rhs_batch) = dimension_numbers
    pairs: Iterable[tuple[int, int]] = zip(lhs_batch, rhs_batch, strict=True)
    batch = [_both(ctx, lhs.axes[i], right=rhs.axes[j]) for i, j in pairs]
    free = [
        _one(ctx, padding, other=other.whole)
        for known, other, taken in (
            (lhs, rhs, (*contracted[0], *lhs_batch)),
            (rhs, lhs, (*contracted[1], *rhs_batch)),
        )
        for axis, padding in enumerate(known.axes)
        if axis not in taken
    ]
    return Known(_unspecified(ctx), (*batch, *free))


def _unspecified(ctx: RuleContext) -> Padding:
    return by_dtype(ctx.eqn.outvars[0].aval.dtype)


def _both(ctx: RuleContext, left: Padding, *, right: Padding) -> Padding:
    """The fact along a batch axis, where padding is multiplied by padding."""
    is_zero = left.is_constant(0) or right.is_constant(0)
    zeros = constant(zero(ctx.eqn.outvars[0].aval.dtype))
    return zeros if is_zero and left.finite and right.finite else _unspecified(ctx)


def _one(ctx: RuleContext, padding: Padding, *, other: Padding) -> Padding:
    """The fact along an axis of one operand; `other` is about all elements of the other one."""
    if not padding.is_constant(0, unless="nonfinite"):
        return _unspecified(ctx)
    is_certain = padding.unless is None and other.finite
    return constant(zero(ctx.eqn.outvars[0].aval.dtype), unless=None if is_certain else "nonfinite")
