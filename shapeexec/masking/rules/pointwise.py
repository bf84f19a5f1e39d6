"""Pointwise primitives: each result element reads its own position only.

Which primitives these are, and which facts pass through them, is in `_facts`.
"""

from typing import Any

from jax import Array, dtypes, lax

from shapeexec import _compat
from shapeexec.masking import _extrema as extrema
from shapeexec.masking import _softmax as softmax
from shapeexec.masking._context import RuleContext
from shapeexec.masking._facts import FACTS, Call, names_with, through_pointwise
from shapeexec.masking._knowledge import Known
from shapeexec.masking._registry import register, register_knowledge
from shapeexec.shape._host import HostOperand


@register(*(name for name in FACTS if name != "eq"))
def pointwise(ctx: RuleContext, *operands: Array, **params: Any) -> Any:
    """Keep: each result element reads its own position only, so padding stays padding."""
    return ctx.bind(*operands, **ctx.eqn.primitive.get_bind_params(params))


@register("eq", also_static=True)
def equal(ctx: RuleContext, *operands: Array, **params: Any) -> Array:
    """Keep: as above; of a row and its maximum or minimum, the first of these is equal surely."""
    result = pointwise(ctx, *operands, **params)
    compared = extrema.compared(ctx)
    if compared is None:
        return result
    number, reduction = compared
    return result | extrema.first(ctx, number, reduction=reduction)


@register_knowledge(*names_with(lambda facts: not facts.is_opaque))
def pointwise_knowledge(ctx: RuleContext, *operands: Known, **params: Any) -> Known:
    """The facts of `FACTS`, and a place in a softmax."""
    (result,), first = ctx.results, ctx.operands[0]
    spread = [_spread(known, own.dims) for known, own in zip(operands, ctx.operands, strict=True)]
    call = Call(params=params, dtype=result.aval.dtype, operand_dtype=first.aval.dtype)
    known = through_pointwise(ctx.primitive, spread, call=call, rank=len(result.dims))
    return softmax.pointwise(ctx, operands, known=known)


def _spread(known: Known, shape: tuple[Any, ...]) -> Known:
    """The facts about an operand at each position of the result: an axis of 1 is repeated."""
    axes = [
        known.whole if isinstance(dim, int) else padding
        for dim, padding in zip(shape, known.axes, strict=True)
    ]
    return Known(known.whole, tuple(axes))


@register("clamp")
def clamp(ctx: RuleContext, *operands: Array) -> Array:
    """Keep: the bounds are scalars or are read at the operand's own position."""
    return ctx.bind(*operands)


@register("optimization_barrier")
def optimization_barrier(ctx: RuleContext, *operands: Array) -> Any:
    """Keep: the values pass through."""
    return _compat.optimization_barrier(operands)


@register("device_put", "dce_sink")
def passed_through(ctx: RuleContext, *operands: Array, **params: Any) -> Any:
    """Keep: the values pass through."""
    return ctx.bind(*operands, **params)


@register("bitcast_convert_type")
def bitcast_convert_type(ctx: RuleContext, operand: Array, *, new_dtype: Any) -> Array:
    """Keep: bits are regrouped within an element, or over a last axis that is static."""
    same_width = dtypes.itemsize_bits(operand.dtype) == dtypes.itemsize_bits(new_dtype)
    if not same_width and ctx.operands[0].padded((operand.ndim - 1,)):
        widened = len(ctx.results[0].dims) > operand.ndim
        if not widened:
            raise ctx.unsupported_error("the last axis is regrouped", ctx.operands[0].dims[-1:])
    return ctx.bind(operand, new_dtype=new_dtype)


@register("dim_as_value")
def dim_as_value(ctx: RuleContext, *, dim: Any) -> Array:
    """Keep: the size itself, as data."""
    del dim  # the rule wants the true size, not the capacity
    aval, size = ctx.eqn.outvars[0].aval, ctx.params["dim"]
    operand = ctx.extents.beyond_i32(size, aval.dtype, via="argument")
    value = ctx.extents.length(size) if operand is None else ctx.extents.host_value(operand)
    return lax.convert_element_type(value, aval.dtype)


@register("host_value")
def host_value(ctx: RuleContext, *, operand: HostOperand, weak_type: bool) -> Array:
    """Keep: a number that Python computed from the sizes, as data."""
    del weak_type  # it is the result's, which the jaxpr says
    return ctx.extents.host_value(operand)
