"""Cumulative reductions: forward ones never read padding before a valid element."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
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
    if reverse and ctx.padded(0, (axis,)):
        is_complex = jnp.issubdtype(operand.dtype, np.complexfloating)
        if is_complex and ctx.primitive in ("cummax", "cummin"):
            # No complex number is an identity beside NaN. The last one again changes nothing.
            last = jnp.maximum(ctx.in_lengths[0][axis] - 1, 0)
            position = jnp.minimum(jnp.arange(operand.shape[axis], dtype=np.int32), last)
            operand = jnp.take(operand, position, axis=axis, mode="clip")
        else:
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
    if jnp.issubdtype(aval.dtype, np.complexfloating):
        return known
    axes = [
        constant(identity)
        if padding.is_constant(identity) and (other != axis or reverse)
        else known.whole
        for other, padding in enumerate(operand.axes)
    ]
    return Known(known.whole, tuple(axes))
