"""Windows along axes of an operand: which positions they read, and which elements are there.

A window that reaches past the valid length must find the identity there, as past the end of the
unpadded operand. How far windows reach follows from the capacity of the result. Which value is the
identity is up to the rules.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.masking._context import RuleContext
from shapeexec.masking._extents import holds_dim
from shapeexec.masking._fill import Length, conform, fill, highest, lowest, zero
from shapeexec.masking._moves import sources, take

STATIC_STEPS = "strides and dilations are static"
EXACT_WHEN = "a base dilation is static"
# By the comparison that selects within a window, the value that loses against all others.
LOSER: dict[str, Callable[[Any], Any]] = {"ge": lowest, "le": highest}


@dataclasses.dataclass(frozen=True)
class WindowAxis:
    """An axis of an operand along which windows meet padding.

    Attributes:
        axis: The operand's axis.
        capacity: The operand's capacity there.
        length: The operand's valid length.
        low: How many positions before the operand the first window begins.
        dilation: The distance of the operand's elements.
        reach: How many positions the windows cover together, at capacity.
        limit: How many of these positions are read; None: all.
        windows: Copies of the windows, one after the other, if their size or distance is ragged;
            None: the windows are read in the operand itself.
    """

    axis: int
    capacity: int
    length: Length
    low: Length
    dilation: int
    reach: int
    limit: Length | None = None
    windows: "Windows | None" = None

    @property
    def is_placed(self) -> bool:
        """Whether the elements have to be moved to the positions that the windows read.

        If not, the primitive pads by a constant (lo, hi). It never gets a negative lo, which
        XLA's convolutions on the CPU, as of jax 0.10, sometimes get wrong.
        """
        if self.limit is not None or self.windows or not isinstance(self.low, int):
            return True
        return not 0 <= self.low < self.reach

    def layout(self, width: int) -> tuple[int, tuple[int, int], int]:
        """How many of `width` elements are laid, the padding (lo, hi), and their distance.

        Elements behind the last window are cut off: not every primitive takes a negative hi.
        """
        if self.is_placed:
            return self.reach, (0, 0), 1
        assert isinstance(self.low, int)
        width = min(width, (self.reach - self.low - 1) // self.dilation + 1)
        stretched = max(0, (width - 1) * self.dilation + 1)
        return width, (self.low, self.reach - self.low - stretched), self.dilation

    def lay(self, x: Array, value: Any) -> tuple[Array, tuple[int, int], int]:
        """`x`, whose padding is `value`, with (lo, hi) and dilation so that it covers `reach`."""
        width, pads, dilation = self.layout(self.capacity)
        if self.is_placed:
            return self.place(x, value), pads, dilation
        return lax.slice_in_dim(x, 0, width, axis=self.axis), pads, dilation

    def take_back(self, x: Array, width: int) -> Array:
        """The transpose of laying `width` elements: per element what its position holds, or 0."""
        if self.windows is not None:
            return self._added_up(x, width)
        if self.is_placed:
            position = self.low + lax.iota(np.int32, width) * self.dilation
            is_read = (position >= 0) & (position < self.reach)
            if self.limit is not None:
                is_read &= position < self.limit
            return take(x, position, is_element=is_read, axis=self.axis, value=zero(x.dtype))
        return conform(x, (*x.shape[: self.axis], width, *x.shape[self.axis + 1 :]))

    def place(self, x: Array, value: Any) -> Array:
        """The `reach` positions themselves, with `value` where no valid element stands."""
        source, is_element = self._sources()
        return take(x, source, is_element=is_element, axis=self.axis, value=value)

    def _sources(self) -> tuple[Array, Array]:
        """i32[reach] and bool[reach]: which element stands at a position, and whether one does."""
        position = lax.iota(np.int32, self.reach)
        is_read = None if self.limit is None else position < self.limit
        if self.windows is not None:
            position, is_read = self.windows.positions(position)
        source, is_element = sources(position, low=self.low, step=self.dilation, length=self.length)
        return source, is_element if is_read is None else is_element & is_read

    def _added_up(self, x: Array, width: int) -> Array:
        """Per element the sum over all windows, laid one after the other, that read it."""
        source, is_element = self._sources()
        index = (*(slice(None),) * self.axis, jnp.where(is_element, source, width))
        sums = lax.full((*x.shape[: self.axis], width, *x.shape[self.axis + 1 :]), 0, x.dtype)
        return sums.at[index].add(x, mode="drop")


@dataclasses.dataclass(frozen=True)
class Windows:
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
        """The position that each of the windows' places reads, and whether it reads one."""
        capacity = max(1, self.capacity)
        window, within = place // capacity, place % capacity
        return window * self.stride + within * self.dilation, within < self.size


def stepped(axes: Sequence[WindowAxis], params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with the steps of windows that have been laid one after the other."""
    params, laid = dict(params), [each for each in axes if each.windows]
    for name in ("window_strides", "window_dilation"):
        if name in params and laid:
            values = list(params[name])
            for each in laid:
                assert each.windows is not None
                values[each.axis] = each.windows.capacity if name == "window_strides" else 1
            params[name] = tuple(values)
    return params


def pad_axis(
    ctx: RuleContext,
    x: Array,
    *,
    value: Array,
    axis: int,
    low: Length,
    interior: Length,
    is_cut: bool = False,
) -> Array:
    """`x`, the equation's first operand, with `value` in front of, between and behind elements.

    Args:
        ctx: The equation.
        x: The operand.
        value: The value.
        axis: The axis.
        low: How many values stand in front; if negative, elements are cut off.
        interior: How many values stand between two elements.
        is_cut: Whether no `value` follows the last element, so that padding may stay.
    """
    length, capacity = ctx.operands[0].lengths[axis], ctx.results[0].capacities[axis]
    if not (isinstance(low, int) and isinstance(interior, int)):
        position = lax.iota(np.int32, capacity)
        source, is_element = sources(position, low=low, step=interior + 1, length=length)
        return take(x, source, is_element=is_element, axis=axis, value=value)
    lengths: list[Length] = [1] * x.ndim
    lengths[axis] = length
    width = ctx.operands[0].capacities[axis]
    stretched = width + max(0, width - 1) * interior
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, capacity - low - stretched, interior)
    x = x if is_cut else fill(x, lengths, value=value, axes=(axis,))
    return lax.pad(x, value, config)


def unpad_axis(
    x: Array, axis: int, *, length: Length, place: tuple[Length, Length], width: int
) -> Array:
    """`width` elements of `x` along `axis`, from `place[0]` on in steps of `place[1]`, or 0."""
    low, step = place
    if not (isinstance(low, int) and isinstance(step, int)):
        position = low + lax.iota(np.int32, width) * step
        return take(
            x,
            position,
            is_element=(position >= 0) & (position < length),
            axis=axis,
            value=zero(x.dtype),
        )
    lengths: list[Length] = [1] * x.ndim
    lengths[axis] = length
    x = fill(x, lengths, value=zero(x.dtype), axes=(axis,))
    reach = max(0, (width - 1) * step + 1)
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-low, reach - (x.shape[axis] - low), 0)
    return lax.slice_in_dim(lax.pad(x, zero(x.dtype), config), 0, reach, step, axis)


def reduced_axes(
    ctx: RuleContext, shape: tuple[Any, ...], *, windows_in: tuple[Any, ...]
) -> list[WindowAxis]:
    """The axes along which a windowed reduction reads across padding.

    Args:
        ctx: An equation with the parameters of such a reduction.
        shape: The dims of the array that is reduced.
        windows_in: Per axis the number of windows: a dim.
    """
    found = [
        _reduced_axis(ctx, axis, dim=dim, count=count)
        for axis, (dim, count) in enumerate(zip(shape, windows_in, strict=True))
    ]
    return [each for each in found if each is not None]


def _reduced_axis(ctx: RuleContext, axis: int, *, dim: Any, count: Any) -> WindowAxis | None:
    """The axis of `dim` elements and `count` windows; None: no padding is read along it."""
    params, extents = ctx.params, ctx.extents
    window, stride = params["window_dimensions"][axis], params["window_strides"][axis]
    base, dilation = (
        params[name][axis] if name in params else 1 for name in ("base_dilation", "window_dilation")
    )
    pads = tuple(params["padding"][axis])
    if not holds_dim((dim, window, pads, count)):
        return None
    steps = (window, stride, base, *pads)
    if not holds_dim(steps) and steps == (1, 1, 1, 0, 0):
        return None  # each window is an element of its own
    capacity, length, low = extents.capacity(dim), extents.length(dim), extents.length(pads[0])
    if holds_dim(base):
        raise ctx.unsupported_error("a base dilation of ragged size has no rule", [base])
    is_one = isinstance(count, int) and count == 1 and dilation == 1
    if holds_dim((window, stride, dilation)) and not is_one:
        size, reach = extents.capacity(window), extents.capacity(count) * extents.capacity(window)
        windows = Windows(
            size, extents.length(window), extents.length(stride), extents.length(dilation)
        )
        return WindowAxis(axis, capacity, length, low, base, reach, windows=windows)
    limit = None if isinstance(window, int) else extents.length(window)
    covered = (extents.capacity(window) - 1) * dilation + 1
    reach = max(0, (extents.capacity(count) - 1) * extents.capacity(stride) + covered)
    return WindowAxis(axis, capacity, length, low, base, reach, limit)


def lay_all(
    axes: Sequence[WindowAxis], x: Array, *, value: Any, padding: Any, dilation: Sequence[int]
) -> tuple[Array, tuple[tuple[int, int], ...], tuple[int, ...]]:
    """`x` laid along each of `axes`, with the padding and the dilation of all its axes."""
    pads, steps = [tuple(pair) for pair in padding], list(dilation)
    for each in axes:
        x, pads[each.axis], steps[each.axis] = each.lay(x, value)
    return x, tuple(pads), tuple(steps)


def laid_params(
    params: dict[str, Any], padding: Sequence[tuple[int, int]], *, dilation: Sequence[int]
) -> dict[str, Any]:
    """The parameters of a convolution of a left operand with these paddings and dilations."""
    space: Sequence[int] = params["dimension_numbers"].lhs_spec[2:]
    return {
        **params,
        "padding": tuple(padding[axis] for axis in space),
        "lhs_dilation": tuple(dilation[axis] for axis in space),
    }


def in_place(axes: Sequence[WindowAxis]) -> list[int]:
    """The axes whose padding is read where it is, and so has to be filled."""
    return [each.axis for each in axes if not each.is_placed]


def by_lhs_axis(ctx: RuleContext, spatial: Sequence[Any], *, other: Any) -> list[Any]:
    """Items per spatial axis, by axis of the left operand; `other` for its other axes."""
    by_axis = [other] * len(ctx.params["dimension_numbers"].lhs_spec)
    for axis, given in zip(ctx.params["dimension_numbers"].lhs_spec[2:], spatial, strict=True):
        by_axis[axis] = given
    return by_axis


def spatial_axes(ctx: RuleContext, shapes: Sequence[tuple[Any, ...]]) -> list[WindowAxis]:
    """The left operand's axes along which the kernel meets padding.

    Args:
        ctx: An equation with the parameters of a convolution.
        shapes: The dims of its left and right operands and of its result.
    """
    left, right, result = shapes
    params = ctx.params
    strides, base, dilations = (
        params[name] for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    if holds_dim((tuple(strides), tuple(base), tuple(dilations))):
        raise ctx.unsupported_error("strides and dilations of ragged size have no rule")
    numbers = params["dimension_numbers"]
    axes: list[WindowAxis] = []
    for i, (axis, rhs_axis, out_axis) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        dim, window = left[axis], right[rhs_axis]
        count, pads = result[out_axis], tuple(params["padding"][i])
        if holds_dim((dim, window, count, pads)):
            covered = (ctx.extents.capacity(window) - 1) * dilations[i] + 1
            reach = max(0, (ctx.extents.capacity(count) - 1) * strides[i] + covered)
            axes.append(
                WindowAxis(
                    axis,
                    ctx.extents.capacity(dim),
                    ctx.extents.length(dim),
                    ctx.extents.length(pads[0]),
                    base[i],
                    reach,
                )
            )
    return axes


def spread_groups(ctx: RuleContext, x: Array, *, axis: int, groups: int, size: Any) -> Array:
    """Groups of `size` elements along `axis`, each widened to its capacity."""
    if groups == 1 or isinstance(size, int):
        return x
    capacity, length = ctx.extents.capacity(size), ctx.extents.length(size)
    position = lax.iota(np.int32, groups * capacity)
    group, within = position // max(1, capacity), position % max(1, capacity)
    return take(
        x, group * length + within, is_element=within < length, axis=axis, value=zero(x.dtype)
    )


def close_up_groups(ctx: RuleContext, x: Array, *, axis: int, groups: int, size: Any) -> Array:
    """The inverse of `spread_groups`."""
    if groups == 1 or isinstance(size, int):
        return x
    capacity, length = ctx.extents.capacity(size), jnp.maximum(ctx.extents.length(size), 1)
    position = lax.iota(np.int32, x.shape[axis])
    source = position // length * capacity + position % length
    return jnp.take(x, source, axis=axis, mode="clip")
