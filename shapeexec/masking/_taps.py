"""Convolutions of data that are not finite, beside padding: zero times infinity is NaN.

Where padding of one operand meets valid elements of the other, zeros do not leave an infinity or
NaN alone. Then a convolution is taken apart along such axes, into its taps or its results, so that
each pair of a tap and a result that is no pair of the unpadded convolution is left out. That takes
a step per tap, and so is done only if the data are not finite.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import Length, valid_mask, zero
from shapeexec.masking._windows import WindowAxis, by_lhs_axis, lay_all

Behind = Literal["taps", "results"]
_MULTIPLIES_BY_ZEROS = frozenset(("float16", "bfloat16", "float32"))


@dataclasses.dataclass(frozen=True)
class TapAxis:
    """A spatial axis along which a convolution is taken apart.

    Attributes:
        place: Its number among the spatial axes.
        own: The left operand's axis.
        taps: The capacity and the valid length of the kernel.
        results: The capacity and the valid length of the result.
        stride: The distance of windows.
        dilation: The distance of taps.
        skips: Whether positions without an element make no pair.
    """

    place: int
    own: WindowAxis
    taps: tuple[int, Length]
    results: tuple[int, Length]
    stride: int
    dilation: int
    skips: bool

    def is_pair(self, tap: Array, result: Array) -> Array:
        """Whether the unpadded convolution multiplies by these taps for these results."""
        is_pair = (tap < self.taps[1]) & (result < self.results[1])
        if not self.skips:
            return is_pair
        shifted = result * self.stride + tap * self.dilation - self.own.low
        element = jnp.floor_divide(shifted, self.own.dilation)
        is_element = (shifted >= 0) & (shifted % self.own.dilation == 0)
        return is_pair & is_element & (element < self.own.length)


def skips_zeros(params: dict[str, Any], dtype: Any) -> bool:
    """Whether XLA leaves out the zeros between and around data, or multiplies by them.

    As it does on the CPU (seen with jax 0.10.2 and 0.12.0), where two groups of rows are another
    dilated axis. It matters for a kernel that is not finite.
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
    shapes: Sequence[tuple[Any, ...]],
    *,
    behind: Behind,
    skips: bool,
) -> list[TapAxis]:
    """The axes along which zeros that are no zeros of the unpadded convolution meet data.

    Args:
        ctx: An equation with the parameters of a convolution.
        axes: The left operand's axes along which the kernel meets padding.
        shapes: The dims of its left and right operands and of its result.
        behind: What the zeros that meet the left operand's data, or its gradient, stand behind.
        skips: Whether XLA leaves out positions without an element, see `skips_zeros`.
    """
    numbers, params = ctx.params["dimension_numbers"], ctx.params
    found = []
    for each in axes:
        i = numbers.lhs_spec.index(each.axis) - 2
        dims = shapes[0][each.axis], shapes[1][numbers.rhs_spec[2 + i]]
        taps, results = dims[1], shapes[2][numbers.out_spec[2 + i]]
        if not (skips or _meets_data(ctx, i, dims, results, behind)):
            continue
        found.append(
            TapAxis(
                i,
                each,
                (ctx.capacity(taps), ctx.length(taps)),
                (ctx.capacity(results), ctx.length(results)),
                params["window_strides"][i],
                params["rhs_dilation"][i],
                skips,
            )
        )
    return found if all(each.taps[0] and each.results[0] for each in found) else []


def _meets_data(
    ctx: RuleContext, i: int, dims: tuple[Any, Any], results: Any, behind: Behind
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
    operands: Sequence[int],
    apart: Sequence[TapAxis],
    convolve: Callable[..., Array],
    arrays: Sequence[Array],
) -> Array:
    """`convolve((), *arrays)`, or `convolve(apart, *arrays)` if an operand is not finite.

    The former runs in any case: XLA on the CPU has its fast convolutions outside of branches alone.
    Under `vmap` all take the latter if one is not finite, so that it stays a branch.

    Args:
        ctx: The equation.
        operands: The numbers of those that must be finite.
        apart: The axes to take the convolution apart along; if there are none, that is not needed.
        convolve: A convolution, taken apart along its first argument.
        arrays: The equation's operands, filled.
    """
    whole = convolve((), *arrays)
    read = [i for i in operands if apart and not ctx.values[i].known.whole.finite]
    if not read:
        return whole

    def by_pairs(_: Array, *arrays: Array) -> Array:
        return convolve(apart, *arrays)

    flags = [_is_not_finite(ctx, i, arrays[i]) for i in read]
    is_bad = _of_any(functools.reduce(lax.bitwise_or, flags))
    return lax.cond(is_bad, by_pairs, lambda whole, *_: whole, whole, *arrays)


def _is_not_finite(ctx: RuleContext, operand: int, x: Array) -> Array:
    """Whether a valid element of an operand is NaN or infinite."""
    known = ctx.values[operand].known.axes
    unknown = [axis for axis in range(x.ndim) if not known[axis].finite]
    is_bad = ~jnp.isfinite(x)
    mask = valid_mask(x.shape, ctx.in_lengths[operand], unknown)
    return jnp.any(is_bad if mask is None else is_bad & mask)


@jax.custom_batching.custom_vmap
def _of_any(flag: Array) -> Array:
    """Whether one of the batch is true, the same for all of it."""
    return flag


@_of_any.def_vmap
def _of_any_in_batch(_size: int, _in_batched: Any, flag: Array) -> tuple[Array, bool]:
    return _of_any(jnp.any(flag, axis=0)), False


def convolve_laid(
    ctx: RuleContext,
    axes: Sequence[WindowAxis],
    apart: Sequence[TapAxis],
    operands: tuple[Array, Array],
    params: dict[str, Any],
) -> Array:
    """The convolution of a left operand that is laid along `axes`, taken apart along `apart`.

    Args:
        ctx: An equation with the parameters of the convolution.
        axes: The left operand's axes along which the kernel meets padding.
        apart: Those that it is taken apart along.
        operands: The left operand, to be laid, and the kernel.
        params: The parameters at capacity.
    """
    lhs, rhs = operands
    numbers, value = params["dimension_numbers"], zero(lhs.dtype)
    taken = {each.own.axis for each in apart}
    lhs, padding, base = lay_all(
        [each for each in axes if each.axis not in taken],
        lhs,
        value,
        by_lhs_axis(ctx, params["padding"], (0, 0)),
        by_lhs_axis(ctx, params["lhs_dilation"], 1),
    )
    for each in apart:
        lhs = each.own.place(lhs, value)
    space = numbers.lhs_spec[2:]
    steps: dict[str, list[Any]] = {
        "padding": [padding[axis] for axis in space],
        "lhs_dilation": [base[axis] for axis in space],
        "window_strides": list(params["window_strides"]),
        "rhs_dilation": list(params["rhs_dilation"]),
    }
    for each in apart:
        for name, values in steps.items():
            values[each.place] = (0, 0) if name == "padding" else 1
    static = {**params, **{name: tuple(values) for name, values in steps.items()}}

    def convolve(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated_p.bind(x, kernel, **static)

    if not apart:
        return convolve(lhs, rhs)
    taps, results = ([getattr(e, name)[0] for e in apart] for name in ("taps", "results"))
    if math.prod(results) < math.prod(taps):
        return _by_results(apart, numbers, convolve, lhs, rhs)
    return _by_taps(apart, numbers, convolve, lhs, rhs)


def _by_taps(
    apart: Sequence[TapAxis],
    numbers: Any,
    convolve: Callable[[Array, Array], Array],
    lhs: Array,
    rhs: Array,
) -> Array:
    """What each tap adds to all results, added up."""
    kernel_axes = [numbers.rhs_spec[2 + each.place] for each in apart]
    counts = [each.taps[0] for each in apart]

    @jax.checkpoint
    def added(number: Array, kernel: Array) -> Array:
        x, pairs = lhs, []
        for each, tap in zip(apart, _unraveled(number, counts), strict=True):
            results = jnp.arange(each.results[0], dtype=np.int32)
            x = _every(x, each.own.axis, tap * each.dilation, each.stride, each.results[0])
            pairs.append(each.is_pair(tap, results))
        x = _only(x, pairs, [each.own.axis for each in apart])
        out = convolve(x, jnp.expand_dims(kernel, kernel_axes))
        return _only(out, pairs, [numbers.out_spec[2 + each.place] for each in apart])

    kernels = jnp.moveaxis(rhs, kernel_axes, range(len(apart)))
    kernels = kernels.reshape(math.prod(counts), *kernels.shape[len(apart) :])
    tap_numbers = jnp.arange(math.prod(counts), dtype=np.int32)
    result = jax.eval_shape(added, tap_numbers[0], kernels[0])
    wide = jnp.promote_types(result.dtype, np.float32)

    def step(total: Array, tap: tuple[Array, Array]) -> tuple[Array, None]:
        return total + added(*tap).astype(wide), None

    total, _ = lax.scan(step, jnp.zeros(result.shape, wide), (tap_numbers, kernels))
    return total.astype(result.dtype)


def _by_results(
    apart: Sequence[TapAxis],
    numbers: Any,
    convolve: Callable[[Array, Array], Array],
    lhs: Array,
    rhs: Array,
) -> Array:
    """Each result from its window and all taps."""
    kernel_axes = [numbers.rhs_spec[2 + each.place] for each in apart]
    out_axes = [numbers.out_spec[2 + each.place] for each in apart]
    counts = [each.results[0] for each in apart]

    @jax.checkpoint
    def result(number: Array) -> Array:
        x, pairs = lhs, []
        for each, place in zip(apart, _unraveled(number, counts), strict=True):
            taps = jnp.arange(each.taps[0], dtype=np.int32)
            x = _every(x, each.own.axis, place * each.stride, each.dilation, each.taps[0])
            pairs.append(each.is_pair(taps, place))
        x = _only(x, pairs, [each.own.axis for each in apart])
        out = convolve(x, _only(rhs, pairs, kernel_axes))
        return lax.squeeze(out, out_axes)

    def step(carry: None, number: Array) -> tuple[None, Array]:
        return carry, result(number)

    _, outs = lax.scan(step, None, jnp.arange(math.prod(counts), dtype=np.int32))
    outs = outs.reshape(*counts, *outs.shape[1:])
    return jnp.moveaxis(outs, range(len(apart)), out_axes)


def _unraveled(number: Array, counts: Sequence[int]) -> list[Array]:
    """The places along axes of the element with a row-major number."""
    places = []
    for count in reversed(counts):
        places.append(number % count)
        number = number // count
    return places[::-1]


def _every(x: Array, axis: int, start: Array, step: int, count: int) -> Array:
    """`count` elements along `axis` from `start` on, in steps of `step`."""
    x = lax.dynamic_slice_in_dim(x, start, (count - 1) * step + 1, axis)
    return lax.slice_in_dim(x, 0, None, step, axis)


def _only(x: Array, pairs: Sequence[Array], axes: Sequence[int]) -> Array:
    """`x` with 0 where there is no pair along one of `axes`."""
    for is_pair, axis in zip(pairs, axes, strict=True):
        mask = lax.broadcast_in_dim(is_pair, x.shape, (axis,))
        x = lax.select(mask, x, lax.full_like(x, 0))
    return x
