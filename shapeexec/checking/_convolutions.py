"""Normal form of convolutions, whose transposes swap and reverse the operands.

Along a spatial axis, element `a` of one operand and `b` of the other contribute to element `p` of
the result if `x a + y b + z p + c` is 0, with constant `x`, `y`, `z` and `c`. These four numbers
describe strides, dilations, padding and reversed operands or results. Elements that no window reads
are left out, and either operand may be the kernel.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from shapeexec.checking import _strides
from shapeexec.checking._grids import Axis
from shapeexec.checking._normal import Asked, Maker, is_even
from shapeexec.checking._values import Kind, Node, own_params

_SPACE = 3  # of [group, batch, feature, *space]


@dataclasses.dataclass(frozen=True)
class _Law:
    """The contributions along one axis: elements with `x a + y b + z p + c` equal to 0."""

    x: int
    y: int
    z: int
    c: int

    def plain(self, counts: Sequence[int]) -> "_Law":
        """An equal law with the smallest coefficients; 0 for an index that is always 0."""
        factors = (self.x, self.y, self.z)
        x, y, z = (by if n > 1 else 0 for by, n in zip(factors, counts, strict=True))
        sign = -1 if next((by for by in (z, x, y) if by), -1) > 0 else 1
        unit = sign * max(1, math.gcd(x, y, z, self.c))
        return _Law(x // unit, y // unit, z // unit, self.c // unit)

    def turned(self, one: tuple[int, bool], other: tuple[int, bool]) -> "_Law":
        """The law for reversed operands; each argument is (length, whether it is reversed)."""
        x, y, c = self.x, self.y, self.c
        if one[1]:
            x, c = -x, c + x * (one[0] - 1)
        if other[1]:
            y, c = -y, c + y * (other[0] - 1)
        return _Law(x, y, self.z, c)

    def reached(self, counts: Sequence[int]) -> tuple[range, range]:
        """The ranges of elements of both operands that contribute to any result."""
        a, b, p = map(range, counts)
        while True:
            before = a, b
            a = _solutions(self.x, a, c=self.c, others=((self.y, b), (self.z, p)))
            b = (
                _solutions(self.y, b, c=self.c, others=((self.x, a), (self.z, p)))
                if a
                else range(0)
            )
            if (a, b) == before or not b:
                return a, b


def _solutions(by: int, own: range, *, c: int, others: Sequence[tuple[int, range]]) -> range:
    """The part of a range `own` in which `by i + c` plus the others' terms can be 0."""
    ends = [sorted((factor * each[0], factor * each[-1])) for factor, each in others]
    low, high = (-c - sum(end[i] for end in ends) for i in (1, 0))
    if not by:
        return own if low <= 0 <= high else range(0)
    first, last = sorted((low / by, high / by))
    return range(max(own.start, math.ceil(first)), min(own.stop, math.floor(last) + 1))


def convolved(asked: Asked) -> int | None:
    """A convolution with groups as an axis of its own, whichever operand is the kernel.

    Feature groups and batch groups have the same form: each is the transpose of the other.
    """
    params, maker = asked.params, asked.maker
    if params.get("out_sharding") is not None or not all(map(math.prod, map(asked.shape, (0, 1)))):
        return None
    rank = len(asked.kind.shape)
    numbers, by_batch = params["dimension_numbers"], int(params["batch_group_count"])
    groups = by_batch * int(params["feature_group_count"])
    lhs = maker.transpose(asked.operands[0], numbers.lhs_spec)
    rhs = maker.transpose(asked.operands[1], numbers.rhs_spec)
    lhs = _grouped(maker, lhs, groups=groups, axis=0 if by_batch > 1 else 1)
    rhs = _grouped(maker, rhs, groups=groups, axis=0)
    steps = (params[name] for name in ("lhs_dilation", "rhs_dilation", "window_strides"))
    laws = tuple(
        _Law(int(x), -int(y), -int(z), int(low))
        for x, y, z, (low, _) in zip(*steps, params["padding"], strict=True)
    )
    counts = tuple(asked.kind.shape[axis] for axis in numbers.out_spec[2:])
    rest = {name: params[name] for name in ("precision", "preferred_element_type")}
    asked_for = _Convolution(laws, counts, rest, asked.key(rest))
    made = _made(maker, lhs=lhs, rhs=rhs, asked=asked_for, dtype=asked.kind.dtype)
    if made is None:
        return None
    n, o = (maker.table.kind(value).shape[1] for value in (lhs, rhs))
    turned = maker.transpose(made, [1, 0, *range(2, rank + 1)])
    whole = maker.reshape(turned, (n, groups * o, *counts))
    return maker.transpose(whole, [numbers.out_spec.index(axis) for axis in range(rank)])


def _grouped(maker: Maker, value: int, *, groups: int, axis: int) -> int:
    """`value` with the groups along an axis moved to a new first axis."""
    shape = maker.table.kind(value).shape
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    rest = [place for place in range(len(split)) if place != axis]
    return maker.transpose(maker.reshape(value, split), [axis, *rest])


def _made(maker: Maker, *, lhs: int, rhs: int, asked: "_Convolution", dtype: Any) -> int | None:
    """The normal form of a convolution; None: no elements meet."""
    table, counts = maker.table, asked.counts
    (lhs, turns_lhs), (rhs, turns_rhs) = (_forward(maker, value) for value in (lhs, rhs))
    spaces = [table.kind(value).shape[_SPACE:] for value in (lhs, rhs)]
    laws = [
        law.turned((na, turns_a), (nb, turns_b))
        for law, na, nb, turns_a, turns_b in zip(
            asked.laws, *spaces, turns_lhs, turns_rhs, strict=True
        )
    ]
    reached = [law.reached(n) for law, *n in zip(laws, *spaces, counts, strict=True)]
    if any(not part for pair in reached for part in pair):
        return None  # padding only: NaN in the kernel still reaches the result
    laws = [
        dataclasses.replace(law, c=law.c + law.x * a.start + law.y * b.start)
        for law, (a, b) in zip(laws, reached, strict=True)
    ]
    lhs, rhs = (
        maker.pick(value, _grid(maker, value, parts=[pair[i] for pair in reached]))
        for i, value in enumerate((lhs, rhs))
    )
    is_swapped = lhs > rhs and is_even(asked.rest["precision"])
    if is_swapped:
        lhs, rhs = rhs, lhs
        laws = [_Law(law.y, law.x, law.z, law.c) for law in laws]
    one, other = (table.kind(value).shape for value in (lhs, rhs))
    laws = [
        law.plain(n) for law, *n in zip(laws, one[_SPACE:], other[_SPACE:], counts, strict=True)
    ]
    kind = Kind((one[0], one[1], other[1], *counts), dtype)
    bound = dataclasses.replace(asked, laws=tuple(laws))
    (made,) = table.make(_OP, (("laws", bound),), operands=[lhs, rhs], kinds=[kind], run=bound.run)
    return maker.transpose(made, [0, 2, 1, *range(_SPACE, len(kind.shape))]) if is_swapped else made


_OP = "conv_general_dilated"


def _grid(maker: Maker, value: int, *, parts: Sequence[range]) -> list[Axis]:
    shape = maker.table.kind(value).shape
    return [(0, 1, n) for n in shape[:_SPACE]] + [(part.start, 1, len(part)) for part in parts]


def _forward(maker: Maker, value: int) -> tuple[int, list[bool]]:
    """An operand without reversed spatial axes, and which of its axes were reversed."""
    shape = maker.table.kind(value).shape
    view = _strides.view_of(maker.table, value)
    along = view.by_axis(shape)
    if along is None:
        return value, [False] * len(shape[_SPACE:])
    turns = [bool(own) and all(loop.stride < 0 for loop in own) for own in along[_SPACE:]]
    grid = [(0, 1, n) for n in shape[:_SPACE]] + [
        (n - 1, -1, n) if turned else (0, 1, n)
        for n, turned in zip(shape[_SPACE:], turns, strict=True)
    ]
    return maker.pick(value, grid), turns


def picked_convolution(maker: Maker, node: Node, axes: Sequence[Axis]) -> int | None:  # noqa: PLR0917 - `_PICKED` calls it
    """The elements of a convolution on a grid of its spatial axes.

    None: the grid concerns other axes, too, or the convolution has no normal form.
    """
    bound = own_params(node).get("laws")
    if bound is None or [*axes[:_SPACE]] != [(0, 1, n) for n in node.kind.shape[:_SPACE]]:
        return None
    laws = [
        dataclasses.replace(law, z=law.z * step, c=law.c + law.z * start)
        for law, (start, step, _) in zip(bound.laws, axes[_SPACE:], strict=True)
    ]
    counts = tuple(count for *_, count in axes[_SPACE:])
    part = dataclasses.replace(bound, laws=tuple(laws), counts=counts)
    return _made(
        maker, lhs=node.operands[0], rhs=node.operands[1], asked=part, dtype=node.kind.dtype
    )


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """A convolution of two arrays [group, batch, feature, *space].

    Attributes:
        laws: One per spatial axis.
        counts: The sizes of the result's spatial axes.
        rest: The other parameters, by name.
        key: The key of `rest`.
    """

    laws: tuple[_Law, ...]
    counts: tuple[int, ...]
    rest: Mapping[str, Any] = dataclasses.field(compare=False)
    key: Hashable

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The result, [group, batch of one, batch of the other, *counts]."""
        lhs, rhs = jnp.asarray(arrays[0]), jnp.asarray(arrays[1])
        groups, n, features, *space = lhs.shape
        laws = [*self.laws]
        for axis, law in enumerate(laws):
            place = axis + _SPACE
            if law.x < 0:
                lhs = jnp.flip(lhs, place)
            if law.y > 0:
                rhs = jnp.flip(rhs, place)
            turns = (space[axis], law.x < 0), (rhs.shape[place], law.y > 0)
            laws[axis] = law.turned(*turns)
        steps = [(law.x or 1, -law.y or 1, -law.z or 1) for law in laws]
        padding = [
            (law.c, by_p * (p - 1) + by_b * (b - 1) - by_a * (a - 1) - law.c)
            for law, (by_a, by_b, by_p), p, a, b in zip(
                laws, steps, self.counts, space, rhs.shape[_SPACE:], strict=True
            )
        ]
        whole = lax.conv_general_dilated(
            jnp.moveaxis(lhs, 0, 1).reshape(n, groups * features, *space),
            rhs.reshape(-1, *rhs.shape[2:]),
            [by for *_, by in steps],
            padding,
            [by for by, *_ in steps],
            [by for _, by, _ in steps],
            feature_group_count=groups,
            **self.rest,
        )
        split = whole.reshape(n, groups, -1, *self.counts)
        return [jnp.moveaxis(split, 1, 0)]
