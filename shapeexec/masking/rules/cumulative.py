"""Cumulative reductions: forward ones never read padding before a valid element."""

from collections.abc import Callable
from typing import Any

from jax import Array

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import highest, lowest, one, zero
from shapeexec.masking._knowledge import Known, constant, nothing_known
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
    if reverse:
        operand = ctx.fill(0, _IDENTITY[ctx.primitive](operand.dtype), (axis,))
    return ctx.bind(operand, axis=axis, reverse=reverse, **params)


@register_knowledge("cumsum", "cumprod", "cummax", "cummin")
def cumulative_knowledge(
    ctx: RuleContext, operand: Known, *, axis: int, reverse: bool, **_: Any
) -> Known:
    """Where all that is read is the identity, so is the result."""
    aval = ctx.eqn.outvars[0].aval
    identity = _IDENTITY[ctx.primitive](aval.dtype)
    known = nothing_known(len(aval.shape), aval.dtype)
    kept = [
        other
        for other in ctx.padded(0)
        if operand.axes[other].is_constant(identity) and (other != axis or reverse)
    ]
    return known.with_axes(kept, constant(identity))
