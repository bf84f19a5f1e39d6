"""Convolutions of data that are not finite, beside padding: zero times infinity is NaN.

Where padding of one operand is multiplied by valid elements of the other, a zero in the padding
makes NaN of an infinity. Then a convolution, or a gradient of one, is split along such axes into
its taps or its results, and pairs of a tap and a result that the unpadded convolution lacks are
left out. That takes a step per tap, and so is done only if the data are not finite.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import fill, zero
from shapeexec.masking._products import Product, TapAxis, by_pairs
from shapeexec.masking._windows import WindowAxis

Behind = Literal["taps", "results"]
_MULTIPLIES_BY_ZEROS = frozenset(("float16", "bfloat16", "float32"))


def skips_zeros(params: dict[str, Any], dtype: Any) -> bool:
    """Whether XLA leaves out the zeros between and around data instead of multiplying by them.

    These are the cases on the CPU (seen with jax 0.10.2 and 0.12.0), where XLA turns two groups of
    rows into one more dilated axis. They matter only for a kernel that is not finite.
    """
    steps = (*params["window_strides"], *params["rhs_dilation"])
    is_dilated = any(step != 1 for step in params["lhs_dilation"])
    is_dilated |= params["batch_group_count"] == 2
    if is_dilated and all(step == 1 for step in steps):
        return True
    return np.dtype(dtype).name not in _MULTIPLIES_BY_ZEROS


def tap_axes(
    ctx: RuleContext,
    axes: Sequence[WindowAxis],
    *,
    shapes: Sequence[tuple[Any, ...]],
    behind: Behind,
    skips: bool,
) -> list[TapAxis]:
    """The axes along which data meet zeros that the unpadded convolution does not have.

    Args:
        ctx: An equation with the parameters of a convolution.
        axes: The left operand's axes along which the kernel meets padding.
        shapes: The dims of its left and right operands and of its result.
        behind: Whether these zeros stand behind the taps or behind the results.
        skips: Whether XLA leaves out positions without an element, see `skips_zeros`.
    """
    numbers, params = ctx.params["dimension_numbers"], ctx.params
    found: list[TapAxis] = []
    for each in axes:
        i = numbers.lhs_spec.index(each.axis) - 2
        dims = shapes[0][each.axis], shapes[1][numbers.rhs_spec[2 + i]]
        taps, results = dims[1], shapes[2][numbers.out_spec[2 + i]]
        if not (skips or _meets_data(ctx, i, dims=dims, results=results, behind=behind)):
            continue
        found.append(
            TapAxis(
                i,
                each,
                (ctx.extents.capacity(taps), ctx.extents.length(taps)),
                (ctx.extents.capacity(results), ctx.extents.length(results)),
                params["window_strides"][i],
                params["rhs_dilation"][i],
                skips,
            )
        )
    return found if all(each.taps[0] and each.results[0] for each in found) else []


def _meets_data(
    ctx: RuleContext, i: int, *, dims: tuple[Any, Any], results: Any, behind: Behind
) -> bool:
    """Whether zeros behind the taps or results meet valid data along spatial axis number `i`.

    They do not where the first of them is past the data for all of the others, as in the gradient
    of a convolution with a kernel of 1.
    """
    (dim, window), params = dims, ctx.params
    stride, dilation = params["window_strides"][i], params["rhs_dilation"][i]
    first = window * dilation if behind == "taps" else results * stride
    if isinstance(first, int):
        return False
    past = first - params["padding"][i][0] - (dim - 1) * params["lhs_dilation"][i] - 1
    if isinstance(past, int) and past >= 0:
        return False
    # What is behind the last window is 0 then, see `_without_unread`.
    is_apart = behind == "results" and stride > 1 and isinstance(window, int)
    return not (is_apart and (window - 1) * dilation + 1 <= stride)


def unless_finite(
    ctx: RuleContext,
    operands: dict[int, Array],
    *,
    apart: Sequence[TapAxis],
    product: Product,
    finish: Callable[[Array], Array],
) -> Array:
    """The finished product, taken apart along `apart` if an operand is not finite.

    The whole product runs in any case: XLA on the CPU has fast convolutions outside of branches
    only. Under `vmap` all examples are taken apart if one is not finite, so that the condition
    stays one branch. The condition reads the operands and not the whole product, which is never
    made where examples are added up.

    Args:
        ctx: The equation.
        operands: The operands that must be finite, filled, by number.
        apart: The axes to take the product apart along; empty: it is always whole.
        product: The product of the equation's operands, filled and laid.
        finish: Makes the equation's result from the product's.
    """
    laid = product.compute()
    whole = finish(laid)
    read = [i for i in operands if apart and not ctx.operands[i].known.whole.finite]
    if not read:
        return whole
    total = functools.reduce(lax.add, [_total(ctx, i, x=operands[i]) for i in read])
    is_bad = _of_any(~jnp.isfinite(total))
    struct = jax.ShapeDtypeStruct(laid.shape, laid.dtype)
    return _compat.cond(
        is_bad, lambda: finish(by_pairs(product, apart, struct=struct)), lambda: whole
    )


def _total(ctx: RuleContext, operand: int, *, x: Array) -> Array:
    """The sum of an operand's valid elements, which is not finite if one of them is not.

    A sum compiles several times as fast as `any`. Its dtype is wide, because finite numbers of 16
    bits soon add up to an infinity.
    """
    known = ctx.operands[operand].known.axes
    unknown = [axis for axis in range(x.ndim) if not known[axis].finite]
    valid = fill(x, ctx.operands[operand].lengths, value=zero(x.dtype), axes=unknown)
    return jnp.sum(valid, dtype=jnp.promote_types(x.dtype, np.float32))


@jax.custom_batching.custom_vmap
def _of_any(flag: Array) -> Array:
    """Whether any example of the batch is true: one condition for all of them."""
    return flag


@_of_any.def_vmap
def _of_any_in_batch(_size: int, _in_batched: Any, flag: Array) -> tuple[Array, bool]:
    return _of_any(jnp.any(flag, axis=0)), False
