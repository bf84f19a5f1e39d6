"""Reductions: the identity goes behind the valid length of the axes that are read across.

When a softmax spares its mask is decided in `_softmax`; scans along an axis are in `cumulative`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking import _softmax as softmax
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import all_ones, highest, lowest, one, valid_mask, zero
from shapeexec.masking._knowledge import UNSPECIFIED, Known, by_dtype, constant
from shapeexec.masking._pairs import of_valid
from shapeexec.masking._registry import register, register_knowledge
from shapeexec.masking._values import along

_IDENTITY: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": zero,
    "reduce_prod": one,
    "reduce_max": lowest,
    "reduce_min": highest,
    "reduce_and": all_ones,
    "reduce_or": zero,
    "reduce_xor": zero,
    "argmax": lowest,
    "argmin": highest,
}
# No complex number is greater than one with a NaN in it, nor less: not even an identity.
_COMPLEX_ORDER = {"reduce_max": (lax.max, -np.inf), "reduce_min": (lax.min, np.inf)}
_SPREADS_NAN = frozenset(("reduce_sum", "reduce_max"))
_IDEMPOTENT = frozenset(("reduce_max", "reduce_min", "reduce_and", "reduce_or"))


@register(*_IDENTITY)
def reduction(ctx: RuleContext, operand: Array, *, axes: tuple[int, ...], **params: Any) -> Array:
    """Fill: the identity goes behind the valid length of reduced axes; others keep padding.

    An arg-reduction prefers the first of equal values, and a NaN to all: a valid element wins
    against the filled ones behind it.
    """
    is_complex = jnp.issubdtype(operand.dtype, np.complexfloating)
    if is_complex and ctx.primitive in _COMPLEX_ORDER and ctx.operands[0].padded(axes):
        combine, start = _COMPLEX_ORDER[ctx.primitive]
        seed = operand.dtype.type(start)
        return _reduced_if_valid(
            ctx, [operand], init=[seed], axes=axes, combine=lambda a, b: [combine(*a, *b)]
        )[0]
    identity = _IDENTITY[ctx.primitive](operand.dtype)
    if softmax.needs_no_mask(ctx, axes):
        what = along(ctx.operands[0].aval, ctx.operands[0].padded(axes))
        ctx.note(what, softmax.WHY_NONE, masked=False)
    else:
        operand = ctx.fill(
            0, identity, axes=axes, unless="nan" if ctx.primitive in _SPREADS_NAN else None
        )
    if ctx.operands[0].padded(axes) and operand.ndim - 1 not in axes:
        # Else XLA's layout assignment transposes activations throughout the model: docs/adr/0019.
        operand = _compat.row_major(operand)
    return ctx.bind(operand, axes=axes, **params)


@register_knowledge(*(name for name in _IDENTITY if name.startswith("reduce")))
def reduction_knowledge(ctx: RuleContext, operand: Known, *, axes: Any, **params: Any) -> Known:
    """A row of identities reduces to the identity."""
    del params
    finite = by_dtype(ctx.eqn.outvars[0].aval.dtype)
    kept = [_reduced(ctx, padding) for axis, padding in enumerate(operand.axes) if axis not in axes]
    return Known(finite, tuple(kept), softmax.reduced(ctx, operand, axes=axes))


def _reduced(ctx: RuleContext, padding: Any) -> Any:
    dtype = ctx.eqn.outvars[0].aval.dtype
    identity = _IDENTITY[ctx.primitive](dtype)
    if padding.is_constant(identity):
        return constant(identity)
    if ctx.primitive in _IDEMPOTENT and padding.finite:
        return by_dtype(dtype)
    return by_dtype(dtype) if by_dtype(dtype).finite else UNSPECIFIED


_OVER_VMAP = {"psum": zero, "pmax": lowest, "pmin": highest}


@register(*_OVER_VMAP, exact_when="its axes are axes of a `jax.vmap`")
def collective(ctx: RuleContext, *operands: Array, axes: tuple[Any, ...], **params: Any) -> Any:
    """Fill: the identity goes behind the axes that a `jax.vmap` has put into the arrays.

    Axes that still have names are axes of devices, in a `jax.shard_map`.
    """
    if not all(isinstance(axis, int) for axis in axes):
        raise ctx.unsupported_error("it runs over devices, whose blocks are cut at capacity")
    identity = _OVER_VMAP[ctx.primitive]
    filled = [ctx.fill(i, identity(x.dtype), axes=axes) for i, x in enumerate(operands)]
    return ctx.bind(*filled, axes=axes, **params)


@register("reduce")
def reduce(
    ctx: RuleContext, *operands: Array, dimensions: tuple[int, ...], jaxpr: Any, **params: Any
) -> Any:
    """Fill: pairs (valid, value) are reduced, for the computation need not have an identity.

    Exact for every associative computation. Where no reduced axis is padded the primitive runs as
    it is.
    """
    count = len(operands) // 2
    if not ctx.operands[0].padded(dimensions):
        return ctx.bind(*operands, dimensions=dimensions, jaxpr=jaxpr, **params)
    data, init = operands[:count], operands[count:]

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        return [value.array for value in ctx.interpret(jaxpr, *left, *right)]

    return _reduced_if_valid(ctx, data, init=init, axes=dimensions, combine=combine)


def _reduced_if_valid(
    ctx: RuleContext,
    data: Sequence[Array],
    *,
    init: Sequence[Any],
    axes: Sequence[int],
    combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
) -> list[Array]:
    mask = valid_mask(ctx.operands[0].capacities, ctx.operands[0].lengths, axes=axes)
    assert mask is not None
    _, *results = lax.reduce((mask, *data), (np.bool_(True), *init), of_valid(combine), axes)
    return results
