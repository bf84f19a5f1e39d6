"""Windows: convolutions, pooling, and what their gradients are made of.

A window that reaches past the valid length must find there what it finds past the end of the
unpadded operand: the identity. How far windows reach is told by the capacity of the result.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import Length, highest, lowest, valid_mask, zero
from shapeexec.masking._interpret import conform
from shapeexec.masking._pairs import of_valid
from shapeexec.masking._registry import register

_IDENTITY: dict[str, Callable[[Any], Any]] = {
    "reduce_window_sum": zero,
    "reduce_window_max": lowest,
    "reduce_window_min": highest,
}
# By the comparison that selects within a window: what is selected only if all else is as bad.
_LOSER: dict[str, Callable[[Any], Any]] = {"ge": lowest, "le": highest}


_STATIC_STEPS = "strides and dilations are static"
_EXACT_WHEN = "a base dilation is static"

# Windows along one axis


@dataclasses.dataclass(frozen=True)
class _Axis:
    """An axis of an operand along which windows meet padding.

    Attributes:
        axis: The operand's axis.
        length: The operand's valid length.
        low: How many positions the first window begins in front of the operand.
        dilation: The distance of the operand's elements.
        reach: How many positions the windows cover together, at capacity.
        limit: How many of them are read; None: all.
        windows: The windows one after the other, in the place of the operand, where their size or
            their distance is ragged; None: they lie in the operand.
    """

    axis: int
    length: Length
    low: Length
    dilation: int
    reach: int
    limit: Length | None = None
    windows: "_Windows | None" = None

    @property
    def is_placed(self) -> bool:
        """Whether the elements have to be moved to the positions that the windows read.

        If not, a constant (lo, hi) does, for the primitive to apply. A negative lo is not left to
        it: convolutions of XLA on the CPU as of jax 0.10 get some of them wrong.
        """
        if self.limit is not None or self.windows or not isinstance(self.low, int):
            return True
        return not 0 <= self.low < self.reach

    def lay(self, x: Array, value: Any) -> tuple[Array, tuple[int, int], int]:
        """`x`, whose padding is `value`, with (lo, hi) and dilation so that it covers `reach`.

        It is cut rather than given a negative hi, which not every primitive takes.
        """
        if self.is_placed:
            return self.place(x, value), (0, 0), 1
        assert isinstance(self.low, int)
        width = min(x.shape[self.axis], (self.reach - self.low - 1) // self.dilation + 1)
        x = lax.slice_in_dim(x, 0, width, axis=self.axis)
        stretched = max(0, (width - 1) * self.dilation + 1)
        return x, (self.low, self.reach - self.low - stretched), self.dilation

    def place(self, x: Array, value: Any) -> Array:
        """The `reach` positions themselves, with `value` where no valid element stands."""
        source, is_element = self.sources()
        return _take(x, source, is_element, self.axis, value)

    def sources(self) -> tuple[Array, Array]:
        """i32[reach] and bool[reach]: which element stands at a position, and whether one does."""
        position = jnp.arange(self.reach, dtype=np.int32)
        is_read = None if self.limit is None else position < self.limit
        if self.windows is not None:
            position, is_read = self.windows.positions(position)
        shifted = position - self.low
        source = jnp.floor_divide(shifted, self.dilation)
        is_element = (shifted >= 0) & (shifted % self.dilation == 0) & (source < self.length)
        return source, is_element if is_read is None else is_element & is_read


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Windows of a ragged size, or at a ragged distance, along one axis.

    Attributes:
        capacity: The most elements of a window.
        size: Its valid elements.
        stride: The distance of windows.
        dilation: The distance of elements of a window.
    """

    capacity: int
    size: Length
    stride: Length
    dilation: Length

    def positions(self, place: Array) -> tuple[Array, Array]:
        """What each of the windows' places reads, counted from the first window; and whether."""
        capacity = max(1, self.capacity)
        window, within = place // capacity, place % capacity
        return window * self.stride + within * self.dilation, within < self.size


def _take(x: Array, index: Array, is_element: Array, axis: int, value: Any) -> Array:
    """The elements of `x` at `index` along `axis`, and `value` where `is_element` is False."""
    x = conform(x, (*x.shape[:axis], max(1, x.shape[axis]), *x.shape[axis + 1 :]))
    moved = jnp.take(x, index, axis=axis, mode="clip")
    mask = lax.broadcast_in_dim(is_element, moved.shape, (axis,))
    return lax.select(mask, moved, lax.full_like(moved, value))


def _reduced_axes(ctx: RuleContext, windows_in: tuple[Any, ...]) -> list[_Axis]:
    """The axes along which a windowed reduction reads across padding.

    Args:
        ctx: An equation whose last operand or, if general, each of the first half is windowed.
        windows_in: Per axis the number of windows: a dim.
    """
    params = ctx.params
    shape = ctx.in_shapes[0] if ctx.primitive == "reduce_window" else ctx.in_shapes[-1]
    ones = (1,) * len(shape)
    strides, padding = params["window_strides"], params["padding"]
    base = params.get("base_dilation", ones)
    dilations = params.get("window_dilation", ones)
    axes = []
    for axis, (dim, window, count) in enumerate(
        zip(shape, params["window_dimensions"], windows_in, strict=True)
    ):
        pads = tuple(padding[axis])
        if not holds_dim((dim, window, pads, count)):
            continue
        steps = (window, strides[axis], base[axis], *pads)
        if not holds_dim(steps) and steps == (1, 1, 1, 0, 0):
            continue  # each window is an element of its own
        length, low = ctx.length(dim), ctx.length(pads[0])
        if holds_dim(base[axis]):
            raise ctx.unsupported("a base dilation of ragged size has no rule", [base[axis]])
        if holds_dim((window, strides[axis], dilations[axis])) and not (
            isinstance(count, int) and count == 1 and dilations[axis] == 1
        ):
            size, reach = ctx.capacity(window), ctx.capacity(count) * ctx.capacity(window)
            steps = (ctx.length(strides[axis]), ctx.length(dilations[axis]))
            windows = _Windows(size, ctx.length(window), *steps)
            axes.append(_Axis(axis, length, low, base[axis], reach, windows=windows))
            continue
        limit = None if isinstance(window, int) else ctx.length(window)
        covered = (ctx.capacity(window) - 1) * dilations[axis] + 1
        reach = max(0, (ctx.capacity(count) - 1) * ctx.capacity(strides[axis]) + covered)
        axes.append(_Axis(axis, length, low, base[axis], reach, limit))
    return axes


def _steps(axes: Sequence[_Axis], params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with the steps of windows that have been laid one after the other."""
    params, steps = dict(params), [each for each in axes if each.windows]
    for name in ("window_strides", "window_dilation"):
        if name in params and steps:
            values = list(params[name])
            for each in steps:
                assert each.windows is not None
                values[each.axis] = each.windows.capacity if name == "window_strides" else 1
            params[name] = tuple(values)
    return params


def _lay_all(
    axes: Sequence[_Axis], x: Array, value: Any, padding: Any, dilation: Sequence[int]
) -> tuple[Array, tuple[tuple[int, int], ...], tuple[int, ...]]:
    """`x` laid along each of `axes`, with the padding and the dilation of all its axes."""
    pads, steps = [tuple(pair) for pair in padding], list(dilation)
    for each in axes:
        x, pads[each.axis], steps[each.axis] = each.lay(x, value)
    return x, tuple(pads), tuple(steps)


def _in_place(axes: Sequence[_Axis]) -> list[int]:
    """The axes whose padding is read where it is, and so has to be filled."""
    return [each.axis for each in axes if not each.is_placed]


# Windowed reductions


@register(*_IDENTITY, exact_when=_EXACT_WHEN)
def reduce_window_monoid(
    ctx: RuleContext, operand: Array, *, padding: Any, base_dilation: Any, **params: Any
) -> Array:
    """Fill: the identity, as far as the windows reach; other axes keep their padding.

    Where the first window's start depends on a size (SAME with a stride), elements are moved.
    Windows of a ragged size that move are laid one after the other, which takes memory for each
    element of each window.
    """
    axes = _reduced_axes(ctx, ctx.out_shapes[0])
    identity = _IDENTITY[ctx.primitive](operand.dtype)
    operand = ctx.fill(0, identity, _in_place(axes))
    operand, padding, base_dilation = _lay_all(axes, operand, identity, padding, base_dilation)
    steps = _steps(axes, params)
    return ctx.bind(operand, padding=padding, base_dilation=base_dilation, **steps)


@register("reduce_window", exact_when=_EXACT_WHEN)
def reduce_window(
    ctx: RuleContext, *operands: Array, jaxpr: Any, consts: Any, **params: Any
) -> Any:
    """Fill: pairs (valid, value) are reduced, for the computation need not have an identity.

    With f' = "f if both are valid, else the valid one" an element of padding counts as one past
    the end of the operand does.
    """
    axes = _reduced_axes(ctx, ctx.out_shapes[0])
    if not axes:
        return ctx.bind(*operands, jaxpr=jaxpr, consts=consts, **params)
    count = len(operands) // 2
    closed = _compat.ClosedJaxpr(jaxpr, consts)

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        return ctx.interpret(closed, *left, *right)

    return _reduce_valid(ctx, axes, operands[:count], operands[count:], combine, **params)


@register("select_and_gather_add", exact_when=_EXACT_WHEN)
def select_and_gather_add(
    ctx: RuleContext, tangents: Array, operand: Array, *, select_prim: Any, **params: Any
) -> Array:
    """Fill: as in `reduce_window`, for of a NaN and padding the comparison selects the latter."""
    axes = _reduced_axes(ctx, ctx.out_shapes[0])
    if not axes:
        return ctx.bind(tangents, operand, select_prim=select_prim, **params)

    def combine(left: Sequence[Array], right: Sequence[Array]) -> Sequence[Array]:
        is_left = select_prim.bind(left[1], right[1])
        return [lax.select(is_left, x, y) for x, y in zip(left, right, strict=True)]

    loser = _LOSER[select_prim.name](operand.dtype)
    inits = (zero(tangents.dtype), loser)
    return _reduce_valid(ctx, axes, (tangents, operand), inits, combine, **params)[0]


def _reduce_valid(
    ctx: RuleContext,
    axes: Sequence[_Axis],
    operands: Sequence[Array],
    inits: Sequence[Any],
    combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
    *,
    padding: Any,
    base_dilation: Any,
    **params: Any,
) -> Sequence[Array]:
    """`combine` over the valid elements of windows that reach into padding along `axes`."""
    shape = operands[0].shape
    mask = valid_mask(shape, ctx.in_lengths[0], [each.axis for each in axes])
    mask = jnp.ones(shape, np.bool_) if mask is None else mask
    laid = [_lay_all(axes, x, zero(x.dtype), padding, base_dilation) for x in (mask, *operands)]
    (_, padding, base_dilation), *_ = laid

    _, *results = lax.reduce_window(
        tuple(x for x, *_ in laid),
        (np.bool_(True), *inits),
        of_valid(combine),
        padding=padding,
        base_dilation=base_dilation,
        **_steps(axes, params),
    )
    return results


@register("select_and_scatter_add", exact_when=_EXACT_WHEN)
def select_and_scatter_add(
    ctx: RuleContext,
    source: Array,
    operand: Array,
    *,
    select_prim: Any,
    padding: Any,
    **params: Any,
) -> Array:
    """Fill: 0 in the source of windows behind the valid ones; the operand with what never wins."""
    axes = _reduced_axes(ctx, ctx.in_shapes[0])
    shape = operand.shape
    source = ctx.fill(0, zero(source.dtype), [each.axis for each in axes])
    loser = _LOSER[select_prim.name](operand.dtype)
    operand = ctx.fill(1, loser, _in_place(axes))
    operand, padding, _ = _lay_all(axes, operand, loser, padding, (1,) * operand.ndim)
    steps = _steps(axes, params)
    out = ctx.bind(source, operand, select_prim=select_prim, padding=padding, **steps)
    for each in axes:
        if each.windows is not None:
            out = _added_up(out, each, shape[each.axis])
            continue
        # An element that no window reaches gets nothing.
        shift = each.low if each.is_placed else 0
        position = jnp.arange(shape[each.axis], dtype=np.int32) + shift
        is_reached = (position >= 0) & (position < out.shape[each.axis])
        out = _take(out, position, is_reached, each.axis, zero(out.dtype))
    return out


def _added_up(x: Array, axis: _Axis, capacity: int) -> Array:
    """What windows one after the other give to each element that they read, added up."""
    source, is_element = axis.sources()
    index = (*(slice(None),) * axis.axis, jnp.where(is_element, source, capacity))
    sums = jnp.zeros((*x.shape[: axis.axis], capacity, *x.shape[axis.axis + 1 :]), x.dtype)
    return sums.at[index].add(x, mode="drop")


# Convolutions


@register("conv_general_dilated", exact_when=_STATIC_STEPS)
def conv_general_dilated(
    ctx: RuleContext,
    lhs: Array,
    rhs: Array,
    *,
    padding: Any,
    lhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **params: Any,
) -> Array:
    """Fill: 0 along windows and contracted features, in both operands, since 0 * NaN is NaN.

    Groups of a ragged size are spread to their capacity first, and those of the result closed up.
    With a ragged number of groups the padded ones hold 0 too: XLA may run them as one dense
    convolution.
    """
    (
        (lhs_batch, lhs_feature, *_),
        (rhs_out, rhs_feature, *rhs_space),
        (out_batch, out_feature, *_),
    ) = dimension_numbers
    groups, batch_groups = ctx.params["feature_group_count"], ctx.params["batch_group_count"]
    axes = _spatial_axes(ctx)
    lhs_fill, rhs_fill = [*_in_place(axes), lhs_feature], [*rhs_space, rhs_feature]
    if holds_dim((groups, batch_groups)):
        lhs_fill.append(lhs_batch)
        rhs_fill.append(rhs_out)
    lhs = ctx.fill(0, zero(lhs.dtype), lhs_fill)
    rhs = ctx.fill(1, zero(rhs.dtype), rhs_fill)
    lhs, padding, lhs_dilation = _lay_all(
        axes,
        lhs,
        zero(lhs.dtype),
        _by_lhs_axis(ctx, padding, (0, 0)),
        _by_lhs_axis(ctx, lhs_dilation, 1),
    )
    space = dimension_numbers.lhs_spec[2:]
    features, results = ctx.in_shapes[1][rhs_feature], ctx.in_shapes[1][rhs_out]
    rows = ctx.out_shapes[0][out_batch]
    per_group = results // (groups * batch_groups)
    group_count = feature_group_count * batch_group_count
    lhs = _spread_groups(ctx, lhs, lhs_feature, feature_group_count, features)
    lhs = _spread_groups(ctx, lhs, lhs_batch, batch_group_count, rows)
    rhs = _spread_groups(ctx, rhs, rhs_out, group_count, per_group)
    out = ctx.bind(
        lhs,
        rhs,
        padding=tuple(padding[axis] for axis in space),
        lhs_dilation=tuple(lhs_dilation[axis] for axis in space),
        dimension_numbers=dimension_numbers,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        **params,
    )
    return _close_up_groups(ctx, out, out_feature, group_count, per_group)


def _by_lhs_axis(ctx: RuleContext, spatial: Sequence[Any], other: Any) -> list[Any]:
    """What is given per spatial axis, by the axes of the left operand."""
    by_axis = [other] * len(ctx.in_shapes[0])
    for axis, given in zip(ctx.params["dimension_numbers"].lhs_spec[2:], spatial, strict=True):
        by_axis[axis] = given
    return by_axis


def _spatial_axes(ctx: RuleContext) -> list[_Axis]:
    """The left operand's axes along which the kernel meets padding."""
    params = ctx.params
    strides, base, dilations = (
        params[name] for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    if holds_dim((tuple(strides), tuple(base), tuple(dilations))):
        raise ctx.unsupported("strides and dilations of ragged size have no rule")
    numbers = params["dimension_numbers"]
    axes = []
    for i, (axis, rhs_axis, out_axis) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        dim, window = ctx.in_shapes[0][axis], ctx.in_shapes[1][rhs_axis]
        count, pads = ctx.out_shapes[0][out_axis], tuple(params["padding"][i])
        if holds_dim((dim, window, count, pads)):
            covered = (ctx.capacity(window) - 1) * dilations[i] + 1
            reach = max(0, (ctx.capacity(count) - 1) * strides[i] + covered)
            axes.append(_Axis(axis, ctx.length(dim), ctx.length(pads[0]), base[i], reach))
    return axes


def _spread_groups(ctx: RuleContext, x: Array, axis: int, groups: int, size: Any) -> Array:
    """Groups of `size` elements along `axis`, each widened to its capacity."""
    if groups == 1 or isinstance(size, int):
        return x
    capacity, length = ctx.capacity(size), ctx.length(size)
    position = jnp.arange(groups * capacity, dtype=np.int32)
    group, within = position // max(1, capacity), position % max(1, capacity)
    return _take(x, group * length + within, within < length, axis, zero(x.dtype))


def _close_up_groups(ctx: RuleContext, x: Array, axis: int, groups: int, size: Any) -> Array:
    """The inverse of `_spread_groups`."""
    if groups == 1 or isinstance(size, int):
        return x
    capacity, length = ctx.capacity(size), jnp.maximum(ctx.length(size), 1)
    position = jnp.arange(x.shape[axis], dtype=np.int32)
    source = position // length * capacity + position % length
    return jnp.take(x, source, axis=axis, mode="clip")
