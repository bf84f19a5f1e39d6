"""Sorting: padding comes after every valid element, whatever the order and whatever the values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import lowest
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
    if not ctx.padded(0, (dimension,)):
        params["is_stable"] = is_stable
        return ctx.bind(*operands, num_keys=num_keys, **params)
    position = lax.broadcasted_iota(np.int32, operands[0].shape, dimension)
    is_padding = (position >= ctx.in_lengths[0][dimension]).astype(np.int32)
    _, *results = ctx.bind(is_padding, *operands, num_keys=num_keys + 1, **params)
    return results


@register("top_k")
def top_k(ctx: RuleContext, operand: Array, *, k: int, axis: int, **params: Any) -> Any:
    """Fill: the lowest value, in the total order of the dtype, behind the valid length.

    Floats are compared by their bits, as integers: in the total order a NaN with the sign bit,
    which is what x86 makes of 0 / 0, stands below -inf, and -inf would be preferred to it.
    Equal elements keep their order, so that a valid one is preferred to padding.
    """
    if not ctx.padded(0, (axis,)):
        return ctx.bind(operand, k=k, axis=axis, **params)
    if "is_stable" in params:
        params["is_stable"] = True
    k = min(k, operand.shape[axis])
    if not jnp.issubdtype(operand.dtype, np.floating):
        filled = ctx.fill(0, lowest(operand.dtype), (axis,))
        return ctx.bind(filled, k=k, axis=axis, **params)
    bits = np.dtype(f"int{8 * operand.dtype.itemsize}")
    valid = lax.broadcasted_iota(np.int32, operand.shape, axis) < ctx.in_lengths[0][axis]
    keys = jnp.where(valid, _ordered(lax.bitcast_convert_type(operand, bits)), lowest(bits))
    values, indices = ctx.bind(keys, k=k, axis=axis, **params)
    return [lax.bitcast_convert_type(_ordered(values), operand.dtype), indices]


def _ordered(bits: Array) -> Array:
    """The bits of floats as integers in the floats' total order, and back."""
    greatest = np.iinfo(bits.dtype).max
    return jnp.where(bits < 0, bits ^ bits.dtype.type(greatest), bits)


@register("approx_top_k", exact_when="the device is no TPU, or the axis has no padding")
def approx_top_k(
    ctx: RuleContext,
    operand: Array,
    *,
    k: int,
    reduction_dimension: int,
    is_max_k: bool,
    **params: Any,
) -> Any:
    """Move: a full sort, which is what XLA makes of it on a device that is no TPU.

    On a TPU, which elements are missed depends on the size of the axis.
    """
    axis = reduction_dimension % operand.ndim
    if not ctx.padded(0, (axis,)):
        params |= {"k": k, "reduction_dimension": axis, "is_max_k": is_max_k}
        return ctx.bind(operand, **params)
    if jax.default_backend() == "tpu":
        raise ctx.unsupported(
            "which elements it misses depends on the size of the axis",
            [ctx.in_shapes[0][axis]],
            fix="jax.lax.top_k; or leave the symbol out of buckets= (exact sizes)",
        )
    position = lax.broadcasted_iota(np.int32, operand.shape, axis)
    is_padding = (position >= ctx.in_lengths[0][axis]).astype(np.int32)
    key = -operand if is_max_k else operand
    arrays = (is_padding, key, operand, position)
    _, _, *results = lax.sort(arrays, dimension=axis, num_keys=2, is_stable=True)
    return [lax.slice_in_dim(x, 0, min(k, x.shape[axis]), axis=axis) for x in results]
