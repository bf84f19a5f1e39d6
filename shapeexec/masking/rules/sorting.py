"""Sorting: padding comes after every valid element, whatever the order and whatever the values.

Finding a position by value, as `argmax` does, is in `reductions`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import fill, highest, lowest
from shapeexec.masking._registry import register


@register("sort")
def sort(
    ctx: RuleContext,
    *operands: Array,
    dimension: int,
    num_keys: int,
    is_stable: bool,
    **params: Any,
) -> Any:
    """Move: a first key, whether a position is padding, leaves the valid elements in front.

    No fill value would do: NaN and the greatest integer are valid elements too, and with several
    operands equal keys would mix the rows of padding with valid ones. The sort is stable even if
    it need not be, or the order of equal elements would depend on the bucket.
    """
    params |= {"dimension": dimension, "is_stable": True}
    if not ctx.operands[0].padded((dimension,)):
        params["is_stable"] = is_stable
        return ctx.bind(*operands, num_keys=num_keys, **params)
    position = _compat.broadcasted_iota(np.int32, ctx.operands[0].capacities, dimension)
    is_padding = (position >= ctx.operands[0].lengths[dimension]).astype(np.int32)
    whole = map(_in_whole_bytes, operands)
    _, *results = ctx.bind(is_padding, *whole, num_keys=num_keys + 1, **params)
    return [
        result if result.dtype == operand.dtype else result.astype(operand.dtype)
        for result, operand in zip(results, operands, strict=True)
    ]


def _in_whole_bytes(x: Array) -> Array:
    """Integers of 2 or 4 bits as integers of 8: XLA cannot sort them beside wider ones."""
    if jnp.issubdtype(x.dtype, np.integer) and jnp.iinfo(x.dtype).bits < 8:
        return x.astype(np.int8 if jnp.issubdtype(x.dtype, np.signedinteger) else np.uint8)
    return x


@register("top_k")
def top_k(ctx: RuleContext, operand: Array, *, k: int, axis: int, **params: Any) -> Any:
    """Fill: the lowest value, in the total order of the dtype, behind the valid length.

    Floats are compared by their bits, as integers: in the total order a NaN with the sign bit,
    which is what x86 makes of 0 / 0, stands below -inf, and -inf would be preferred to it.
    Equal elements keep their order, so that a valid one is preferred to padding.
    """
    if not ctx.operands[0].padded((axis,)):
        return ctx.bind(operand, k=k, axis=axis, **params)
    if "is_stable" in params:
        params["is_stable"] = True
    k = min(k, ctx.operands[0].capacities[axis])
    if not jnp.issubdtype(operand.dtype, np.floating):
        filled = ctx.fill(0, lowest(operand.dtype), axes=(axis,))
        return ctx.bind(filled, k=k, axis=axis, **params)
    ordered = _ordered(operand)
    keys = fill(ordered, ctx.operands[0].lengths, value=lowest(ordered.dtype), axes=(axis,))
    _, indices = ctx.bind(keys, k=k, axis=axis, **params)
    return [jnp.take_along_axis(operand, indices, axis, mode="clip"), indices]


def _ordered(x: Array) -> Array:
    """Integers in the total order of the floats `x`: i32, or i64 for f64."""
    width = 8 * x.dtype.itemsize
    has_sign = float(_compat.finfo(x.dtype).min) < 0
    bits = lax.bitcast_convert_type(x, np.dtype(f"{'int' if has_sign else 'uint'}{width}"))
    bits = bits.astype(np.dtype(f"int{max(32, width)}"))
    keys = jnp.where(bits < 0, bits ^ (2 ** (width - 1) - 1), bits)
    if x.dtype.itemsize > 1:
        return keys
    # One NaN is as good as another there, and some dtypes have theirs in the place of -0.
    nan = jnp.where(bits < 0, lowest(keys.dtype), highest(keys.dtype))
    return jnp.where(jnp.isnan(x), nan, keys)


@register("approx_top_k", exact_when="its axis is not padded, or the device is not a TPU")
def approx_top_k(
    ctx: RuleContext,
    operand: Array,
    *,
    k: int,
    reduction_dimension: int,
    is_max_k: bool,
    **params: Any,
) -> Any:
    """Fill: as `top_k`, which it is on a CPU and a GPU, with equal elements in their order.

    A TPU misses some elements: which ones depends on the size of the axis, so that is refused.
    """
    axis = reduction_dimension % operand.ndim
    if not ctx.operands[0].padded((axis,)):
        params |= {"reduction_dimension": reduction_dimension, "is_max_k": is_max_k}
        return ctx.bind(operand, k=k, **params)
    if jax.default_backend() == "tpu":
        raise ctx.unsupported_error(
            "which elements a TPU misses depends on the axis' size",
            [ctx.operands[0].dims[axis]],
            fix=f"jax.lax.top_k{'' if is_max_k else ' of -x'}",
        )
    ordered = _ordered(operand) if is_max_k else ~_ordered(operand)
    keys = fill(ordered, ctx.operands[0].lengths, value=lowest(ordered.dtype), axes=(axis,))
    _, indices = lax.top_k(keys, min(k, ctx.operands[0].capacities[axis]), axis=axis)
    return [jnp.take_along_axis(operand, indices, axis, mode="clip"), indices]
