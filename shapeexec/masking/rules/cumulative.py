"""Cumulative reductions: forward ones never read padding before a valid element.

Reverse ones start in the padding, so it is filled. Reductions of whole axes are in `reductions`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import highest, lowest, one, zero
from shapeexec.masking._knowledge import Known, constant, nothing_known_of
from shapeexec.masking._moves import roll_to_front
from shapeexec.masking._registry import register, register_knowledge

_IDENTITY: dict[str, Callable[[Any], Any]] = {
    "cumsum": zero,
    "cumprod": one,
    "cummax": lowest,
    "cummin": highest,
    "cumlogsumexp": lowest,
}


@register(*_IDENTITY)
def cumulative(
    ctx: RuleContext, operand: Array, *, axis: int, reverse: bool, **params: Any
) -> Array:
    """Fill: the identity behind the valid length of the axis, if it is read from its end."""
    if not reverse or not ctx.operands[0].padded((axis,)):
        return ctx.bind(operand, axis=axis, reverse=reverse, **params)
    is_complex = jnp.issubdtype(operand.dtype, np.complexfloating)
    if is_complex and ctx.primitive in _COMPLEX:
        return _COMPLEX[ctx.primitive](ctx, operand, axis=axis, params=params)
    operand = ctx.fill(0, _IDENTITY[ctx.primitive](operand.dtype), axes=(axis,))
    return ctx.bind(operand, axis=axis, reverse=True, **params)


def _beside_the_last(ctx: RuleContext, x: Array, *, axis: int, params: dict[str, Any]) -> Array:
    """Complex extrema have no identity beside NaN; the last valid element repeated does no harm."""
    last = jnp.maximum(ctx.operands[0].lengths[axis] - 1, 0)
    position = jnp.minimum(lax.iota(np.int32, ctx.operands[0].capacities[axis]), last)
    x = jnp.take(x, position, axis=axis, mode="clip")
    return ctx.bind(x, axis=axis, reverse=True, **params)


def _turned_round(ctx: RuleContext, x: Array, *, axis: int, params: dict[str, Any]) -> Array:
    """A complex log-sum-exp runs forward: adding exp(-inf) would wrap an angle past pi."""

    def turn(x: Array) -> Array:
        length, capacity = ctx.operands[0].lengths[axis], ctx.operands[0].capacities[axis]
        return roll_to_front(lax.rev(x, (axis,)), length, axis=axis, capacity=capacity)

    return turn(ctx.bind(turn(x), axis=axis, reverse=False, **params))


_COMPLEX: dict[str, Callable[..., Array]] = {
    "cummax": _beside_the_last,
    "cummin": _beside_the_last,
    "cumlogsumexp": _turned_round,
}


@register_knowledge("cumsum", "cumprod", "cummax", "cummin")
def cumulative_knowledge(
    ctx: RuleContext, operand: Known, *, axis: int, reverse: bool, **_: Any
) -> Known:
    """Where only the identity is read, the result is the identity."""
    aval = ctx.eqn.outvars[0].aval
    identity = _IDENTITY[ctx.primitive](aval.dtype)
    known = nothing_known_of(aval)
    if jnp.issubdtype(aval.dtype, np.complexfloating):
        return known
    axes = [
        constant(identity)
        if padding.is_constant(identity) and (other != axis or reverse)
        else known.whole
        for other, padding in enumerate(operand.axes)
    ]
    return Known(known.whole, tuple(axes))
