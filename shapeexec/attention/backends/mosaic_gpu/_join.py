"""Joins the parts of softmaxes that `_few` makes, in a fixed order.

Of the operations in `joined` XLA makes two kernels, of which the first one finds the largest score,
and both read as many parts as a list may have. The kernel here reads the parts that there are. A
warp joins a row: a thread sees its own numbers, as in `_threads`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._reals import (
    Real,
    choose,
    load_real,
    real,
    store_rounded,
)
from shapeexec.attention.backends.mosaic_gpu._shares import Shares
from shapeexec.attention.backends.mosaic_gpu._start import start_grid
from shapeexec.attention.backends.mosaic_gpu._threads import (
    WARP,
    WARPGROUP,
    Number,
    repeat,
    thread,
    when,
    where,
)
from shapeexec.attention.backends.mosaic_gpu._tiles import Packing
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights

_WARPS = WARPGROUP // WARP
_AT_A_TIME = 4, 8
"""The numbers of parts that are loaded together, where lists have few parts as a rule, and else.

A load takes half a microsecond, but so does looking at parts that a list does not have."""


def joined(
    weights: Weights | BiasedWeights,
    shares: Shares,
    results: list[Array],
    *,
    parts: int,
    rows: int,
) -> tuple[Array, list[Array]]:
    """Join the softmaxes over the parts of each list into the softmax over the whole list.

    Args:
        weights: The formulas of the weights.
        shares: The work of each program.
        results: The output f32[places, rows or more, V] and `Weights.statistics` f32[places, rows
            or more] of each part; see `Shares.parts_of`. Places without a part hold anything.
        parts: The most parts of a list.
        rows: The number of rows to return.

    Returns:
        The output f32[lists, rows, V] and statistics f32[lists, rows] each.
    """
    places, counts = (jnp.asarray(x)[:, None] for x in shares.parts_of(shares.all_lists))
    number = jnp.arange(parts)
    # A missing part is read as the last one, which there is.
    places += jnp.minimum(number, jnp.maximum(counts, 1) - 1)
    out, *statistics = (x[places][:, :, :rows] for x in results)
    shift, weight = weights.of_parts(statistics)
    is_there = (number < counts)[..., None] & (weight != 0)  # NaN is there too
    shift = jnp.where(is_there, shift, weights.initial)
    largest = shift.max(1)
    finite = jnp.where(largest == -jnp.inf, 0.0, largest)  # as -inf - -inf is NaN
    shown = jnp.where(is_there, weight * jnp.exp(shift - finite[:, None]), 0.0)
    value = jnp.where(is_there[..., None], out * shown[..., None], 0.0).sum(1)
    weight = shown.sum(1)
    return value / jnp.where(weight <= 0, 1.0, weight)[..., None], weights.of_all(largest, weight)


def joined_output(
    weights: Weights | BiasedWeights,
    packing: Packing,
    shares: Shares,
    results: Sequence[Array],
    *,
    made: jax.ShapeDtypeStruct,
    parts: int,
) -> Array:
    """The output of `joined` as [B, T, N, V], by a kernel.

    Args:
        weights: The formulas of the weights.
        packing: The queries and heads that the rows hold.
        shares: The work of each program.
        results: See `joined`.
        made: Shape and dtype, of 16 bits, of the output.
        parts: The most parts of a list.
    """
    at_a_time = _AT_A_TIME[int(shares.programs > _AT_A_TIME[1] * shares.lists)]
    # Calls with more parts, of longer caches, have one text.
    form = _Form(weights, packing, made.shape[3], min(parts, at_a_time + 1), at_a_time)
    lists_of_example = made.shape[2] // packing.heads
    groups = -(-packing.heads * packing.queries // _WARPS)

    def attention_join(sums: Ref, *refs: Ref) -> None:
        which, group = lax.axis_index("list"), lax.axis_index("queries")
        of_lists = dataclasses.replace(shares, sums=sums)
        place, count = of_lists.parts_of(which)
        given, of_example = of_lists.given(which), i32.constant(lists_of_example)
        example, head = lax.div(given, of_example), lax.rem(given, of_example)
        out = refs[-1].at[example]
        scalars = group, place, count, head * packing.heads
        types = (plgpu.Layout.WG_SPLAT,) * len(scalars) + (plgpu.RefType(),) * len(refs)
        inline: Any = plgpu.inline_mgpu(arg_types=types)(functools.partial(_join, form))
        inline(*scalars, *refs[:-1], out)

    (out,) = start_grid(
        attention_join,
        operands=[shares.sums, *results],
        results=[made],
        # The last axis is x: along others CUDA has at most 65,535.
        grid={"queries": groups, "list": shares.lists},
        key=(form, shares.groups, shares.alike, shares.programs, lists_of_example),
    )
    return out


@dataclasses.dataclass(frozen=True)
class _Form:
    """The static part.

    Attributes:
        weights: The formulas of the weights.
        packing: The queries and heads that the rows hold.
        columns: V.
        parts: The most parts of a list, or any number that is larger than `at_a_time`.
        at_a_time: The number of parts that are loaded together.
    """

    weights: Weights | BiasedWeights
    packing: Packing
    columns: int
    parts: int
    at_a_time: int


def _join(form: _Form, _: Any, *given: Any) -> None:
    """Join the parts of four queries of a list.

    Args:
        form: The static part; the context comes behind it.
        *given: i32[] each: the number of the group of queries, the place of the first part, the
            number of parts and the first head. Then the parts, f32[places, rows, columns], their
            statistics, f32[places, rows] each, and the output [T, N, V], in device memory.
    """
    group, place, count, head = (Number(x.registers.item()) for x in given[:4])
    parts, *statistics, out = given[4:]
    number, lane = group * _WARPS + thread() // WARP, thread() % WARP
    head_of_list, query = number // form.packing.queries, number % form.packing.queries
    row = head_of_list * form.packing.pitch + query
    columns = [lane + first for first in range(0, form.columns, WARP)]
    last, last_part = form.columns - 1, where(count > 0, count - 1, 0)

    def add(steps: Sequence[Number], sums: Sequence[Real]) -> Sequence[Real]:
        # A missing part is read as the last one.
        places = [place + step.at_most(last_part) for step in steps]
        loaded = [[load_real(ref, at, row) for ref in statistics] for at in places]
        values = [[load_real(parts, at, row, c.at_most(last)) for c in columns] for at in places]
        softmaxes = [
            _softmax(form, step < count, numbers)
            for step, numbers in zip(steps, loaded, strict=True)
        ]
        return _added(sums, softmaxes, values)

    with when(head_of_list < form.packing.heads):
        nothing = [real(x) for x in (form.weights.initial, *[0.0] * (1 + len(columns)))]
        most = form.parts if form.parts <= form.at_a_time else count
        _, weight, *values = repeat(most, add, nothing, at_a_time=form.at_a_time)
        share = choose(weight.is_not(0.0), weight, 1.0)
        for column, value in zip(columns, values, strict=True):
            with when(column < form.columns):
                store_rounded(out, value / share, query, head + head_of_list, column)


class _Softmax(NamedTuple):
    """The softmax of a row over a part of the keys; see `Weights.of_parts`.

    Attributes:
        is_there: Whether there is one.
        shift, weight: The shift of the scores, and the sum of the weights.
    """

    is_there: Number
    shift: Real
    weight: Real


def _softmax(form: _Form, is_part: Number, statistics: Sequence[Real]) -> _Softmax:
    shift, *more = statistics
    weight = more[0] if more else choose(shift.is_not(-math.inf), 1.0, 0.0)
    is_there = is_part & weight.is_not(0.0)
    return _Softmax(is_there, choose(is_there, shift, form.weights.initial), weight)


def _added(
    sums: Sequence[Real], softmaxes: Sequence[_Softmax], values: Sequence[Sequence[Real]]
) -> list[Real]:
    """Add parts to a shift, a sum of weights, and a weighted sum of each column's values."""
    before, weight, *totals = sums
    largest = functools.reduce(Real.at_least, [one.shift for one in softmaxes], before)
    finite = choose(largest.is_not(-math.inf), largest, 0.0)  # as -inf - -inf is NaN
    decay = (before - finite).exp()
    weight, totals = weight * decay, [total * decay for total in totals]
    for (is_there, shift, own), of_part in zip(softmaxes, values, strict=True):
        shown = choose(is_there, own * (shift - finite).exp(), 0.0)
        weight += shown
        shares = [choose(is_there, value * shown, 0.0) for value in of_part]
        totals = [total + share for total, share in zip(totals, shares, strict=True)]
    return [largest, weight, *totals]
