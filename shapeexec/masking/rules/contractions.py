"""Contractions: padding of a contracted axis must be harmless in both operands."""

from typing import Any

from jax import Array

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import one, zero
from shapeexec.masking._registry import register


@register("dot_general")
def dot_general(
    ctx: RuleContext, lhs: Array, rhs: Array, *, dimension_numbers: Any, **params: Any
) -> Array:
    """Fill: 0 behind the valid length of contracted axes, in both operands, since 0 * NaN is NaN.

    One filled operand is enough where the other's padding is known to be finite.
    """
    (lhs_axes, rhs_axes), _ = dimension_numbers
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes)
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

    JAX wants the number of groups to be static, so that rows of padding are in front of no group.
    """
    (lhs_axes, rhs_axes), _ = ragged_dot_dimension_numbers.dot_dimension_numbers
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes)
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
    lhs, rhs = fill_product(ctx, lhs_axes, rhs_axes)
    lhs_scale = ctx.fill_unless_finite(2, one(lhs_scale.dtype), lhs_axes)
    rhs_scale = ctx.fill_unless_finite(3, one(rhs_scale.dtype), rhs_axes)
    return ctx.bind(lhs, rhs, lhs_scale, rhs_scale, dimension_numbers=dimension_numbers, **params)


def fill_product(ctx: RuleContext, lhs_axes: Any, rhs_axes: Any) -> tuple[Array, Array]:
    """Both operands of a contraction, with padding whose products are all 0."""
    axes = (tuple(lhs_axes), tuple(rhs_axes))

    def is_zero(operand: int) -> bool:
        paddings = ctx.values[operand].known.axes
        return all(
            paddings[a].is_constant(0, or_nan=True) for a in ctx.padded(operand, axes[operand])
        )

    def is_finite(operand: int) -> bool:
        paddings = ctx.values[operand].known.axes
        return all(paddings[a].finite for a in ctx.padded(operand, axes[operand]))

    # Zeros are asked of an operand that has them already, else of one beside finite padding.
    first = min((0, 1), key=lambda operand: (not is_zero(operand), not is_finite(1 - operand)))
    other = 1 - first
    # A row of NaN alone makes its results NaN, whatever its padding adds.
    value = zero(ctx.values[first].array.dtype)
    filled = {first: ctx.fill(first, value, axes[first], or_nan=True)}
    filled[other] = ctx.fill_unless_finite(other, zero(ctx.values[other].array.dtype), axes[other])
    return filled[0], filled[1]
