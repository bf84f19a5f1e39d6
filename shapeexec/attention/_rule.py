"""The pad-safe rule of attention: it passes valid lengths to the primitives and fills nothing.

Back ends do not read padding into results and write 0 behind valid lengths. So the cost follows the
true sizes, and operations that use the results need no mask.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention._call import Call, axes_of_leaves, key_size, split
from shapeexec.attention._primitive import attention_p, gradient_p, tangent_p
from shapeexec.masking import RuleContext, lowest, register, zero
from shapeexec.masking._knowledge import Known, constant, nothing_known
from shapeexec.masking._values import Value

_EXACT_WHEN = "numbers and sizes of heads are static, and the size of a page"


@register(attention_p, tangent_p, gradient_p, exact_when=_EXACT_WHEN)
def attention(ctx: RuleContext, *flat: Array, call: Call, **params: Any) -> Any:
    """Move: tiles behind the valid lengths are skipped, and results there are 0."""
    _check(ctx, call)
    operands, rest = split(call, flat)
    lengths, _ = split(call, [operand.lengths for operand in ctx.operands])
    batch, queries, *_ = lengths.query
    keys, capacity = key_size(lengths.key, lengths.pages), operands.query.shape[0]
    valid = {}
    for name, length, given in (
        ("query_lengths", queries, operands.query_lengths),
        ("key_lengths", keys, operands.key_lengths),
    ):
        if not (isinstance(batch, int) and isinstance(length, int)):
            own = length if given is None else jnp.minimum(given, length)
            is_example = np.arange(capacity, dtype=np.int32) < batch
            valid[name] = jnp.where(is_example, jnp.asarray(own, np.int32), 0)
    if operands.pages is not None and not isinstance(lengths.key[0], int):
        # A wrong number reads some page, as without padding: never one that nobody passed.
        last = jnp.asarray(lengths.key[0] - 1, np.int32)
        valid["pages"] = jnp.clip(operands.pages, 0, last)
    operands = dataclasses.replace(operands, **valid)
    shift = len(operands.flat()) - call.operands
    call = dataclasses.replace(
        call,
        has_query_lengths=operands.query_lengths is not None,
        has_key_lengths=operands.key_lengths is not None,
    )
    if "along" in params:
        params["along"] = tuple(i if i < 3 else i + shift for i in params["along"])
    results = ctx.bind(*operands.flat(), *rest, call=call, **params)
    return [_known(ctx, i, x=x, params=params) for i, x in enumerate(results)]


def _known(ctx: RuleContext, number: int, *, x: Array, params: dict[str, Any]) -> Any:
    """A result and the facts about its padding; none for a bias gradient, which is quadratic."""
    is_logsumexp = ctx.primitive == attention_p.name and number == 1
    is_bias = (
        "along" in params and ctx.primitive == gradient_p.name and params["along"][number] >= 3
    )
    known = nothing_known(x.ndim, x.dtype)
    if not is_bias:
        behind = constant(lowest(x.dtype) if is_logsumexp else zero(x.dtype))
        dims = ctx.results[number].dims
        axes = [
            old if isinstance(dim, int) else behind
            for dim, old in zip(dims, known.axes, strict=True)
        ]
        known = Known(known.whole, tuple(axes))
    return Value(x, known)


def _check(ctx: RuleContext, call: Call) -> None:
    shapes, _ = split(call, [operand.dims for operand in ctx.operands])
    (batch, queries, *heads), (_, rows, *more_heads) = shapes.query, shapes.key
    if call.has_pages and not isinstance(rows, int):
        raise ctx.unsupported_error("the size of a page is part of every position", [rows])
    keys = key_size(shapes.key, shapes.pages)
    ragged = [dim for dim in (*heads, *more_heads, *shapes.value[2:]) if not isinstance(dim, int)]
    if ragged:
        raise ctx.unsupported_error("heads and their sizes are part of every score", ragged)
    fitting = {"B": batch, "T": queries, "S": keys}
    leaves = zip(
        (*axes_of_leaves(call.mask), *axes_of_leaves(call.bias)),
        (*shapes.mask, *shapes.bias),
        strict=True,
    )
    for axes, shape in leaves:
        for axis, dim in zip(axes, shape, strict=False):
            if not isinstance(dim, int) and not (axis in fitting and fitting[axis] == dim):
                raise ctx.unsupported_error(
                    "an array of the mask or bias has a padded axis that is none of the call's"
                    " examples, queries or keys",
                    [dim],
                )
