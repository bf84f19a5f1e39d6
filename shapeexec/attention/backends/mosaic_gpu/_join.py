"""Joins the parts of softmaxes that `_few` makes, in a fixed order.

Whichever program is done with a list last joins its parts, in the kernel itself, by `Joint`. A warp
joins a row: a thread sees its own numbers, as in `_threads`. The interpreter has none, so there
`joined` does it; of these operations XLA would make two kernels.
"""

# Pallas has partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._reals import (
    Real,
    choose,
    load_real,
    real,
    store_rounded,
)
from shapeexec.attention.backends.mosaic_gpu._shares import Shares
from shapeexec.attention.backends.mosaic_gpu._threads import (
    WARP,
    WARPGROUP,
    Number,
    repeat,
    thread,
    when,
    where,
)
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, Packing
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights

_WARPS = WARPGROUP // WARP
_AT_A_TIME = 4
"""The number of parts of a row that are loaded together: a load takes half a microsecond."""
_ROWS_TOGETHER = 4
"""The most rows of a warp whose parts are loaded together."""


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


@dataclasses.dataclass(frozen=True)
class Joint:
    """How a warpgroup of a kernel joins the parts of a list: the static part.

    Attributes:
        weights: The formulas of the weights.
        packing: The queries and heads that the rows hold.
        columns: V.
        parts: The most parts of a list.
    """

    weights: Weights | BiasedWeights
    packing: Packing
    columns: int
    parts: int

    def join(
        self,
        warpgroup: Array,
        places: tuple[Array, Array],
        first_head: Array,
        results: Sequence[Ref],
        out: Ref,
    ) -> None:
        """Join the parts of this warpgroup's rows of a list.

        Args:
            warpgroup: The number of the warpgroup, which has rows of its own.
            places: The place of the list's first part and the number of its parts, which may be 0.
            first_head: The first head of the list.
            results: The parts f32[places, rows, columns], and their statistics f32[places, rows]
                each, in device memory.
            out: The output of the example, [T, N, V] of 16 bits, in device memory.
        """
        scalars = warpgroup, *places, first_head
        types = (plgpu.Layout.WG_SPLAT,) * len(scalars) + (plgpu.RefType(),) * (len(results) + 1)
        inline: Any = plgpu.inline_mgpu(arg_types=types)(functools.partial(_join, self))
        inline(*scalars, *results, out)

    @property
    def numbers(self) -> int:
        """The most queries of all heads that a warpgroup's rows hold."""
        rows, pitch = self.packing.rows, self.packing.pitch
        if rows <= ROWS:
            return self.packing.heads * self.packing.queries
        return ROWS // pitch * self.packing.queries if ROWS % pitch == 0 else ROWS

    @property
    def of_warp(self) -> int:
        """The number of rows that a warp joins together."""
        return min(_ROWS_TOGETHER, -(-self.numbers // _WARPS))


def _join(form: Joint, _: Any, *given: Any) -> None:
    """See `Joint.join`; the context comes behind the static part."""
    warpgroup, place, count, first_head = (Number(x.registers.item()) for x in given[:4])
    parts, *statistics, out = given[4:]
    packing, together = form.packing, form.of_warp
    begin = warpgroup * form.numbers
    last = packing.heads * packing.queries - 1
    warp, lane = thread() // WARP, thread() % WARP
    columns = [lane + first for first in range(0, form.columns, WARP)]
    last_column, last_part = form.columns - 1, where(count > 0, count - 1, 0)

    def join_rows(steps: Sequence[Number], carried: Sequence[Real]) -> Sequence[Real]:
        within = [(steps[0] * together + i) * _WARPS + warp for i in range(together)]
        # A missing row is read as the last one.
        numbers = [(begin + number).at_most(last) for number in within]
        places = [(number // packing.queries, number % packing.queries) for number in numbers]
        rows = [head * packing.pitch + query for head, query in places]

        def add(steps: Sequence[Number], sums: Sequence[Real]) -> Sequence[Real]:
            # A missing part is read as the last one.
            at = [place + step.at_most(last_part) for step in steps]
            loaded = [[[load_real(ref, i, row) for ref in statistics] for i in at] for row in rows]
            values = [
                [[load_real(parts, i, row, c.at_most(last_column)) for c in columns] for i in at]
                for row in rows
            ]
            added = []
            for i, (of_row, of_parts) in enumerate(zip(loaded, values, strict=True)):
                softmaxes = [
                    _softmax(form, step < count, one)
                    for step, one in zip(steps, of_row, strict=True)
                ]
                own = sums[i * width : (i + 1) * width]
                added += _added(own, softmaxes, of_parts)
            return added

        nothing = [real(x) for x in (form.weights.initial, *[0.0] * (1 + len(columns)))]
        width = len(nothing)
        most = form.parts if form.parts <= _AT_A_TIME else count
        sums = repeat(most, add, nothing * together, at_a_time=_AT_A_TIME)
        for i, (head, query) in enumerate(places):
            _, weight, *totals = sums[i * width : (i + 1) * width]
            share = choose(weight.is_not(0.0), weight, 1.0)
            is_row = (within[i] < form.numbers) & (begin + within[i] < last + 1)
            for column, total in zip(columns, totals, strict=True):
                with when(is_row & (column < form.columns)):
                    store_rounded(out, total / share, query, first_head + head, column)
        return carried

    repeat(-(-form.numbers // (together * _WARPS)), join_rows, at_a_time=1)


class _Softmax(NamedTuple):
    """The softmax of a row over a part of the keys; see `Weights.of_parts`.

    Attributes:
        is_there: Whether there is one.
        shift, weight: The shift of the scores, and the sum of the weights.
    """

    is_there: Number
    shift: Real
    weight: Real


def _softmax(form: Joint, is_part: Number, statistics: Sequence[Real]) -> _Softmax:
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
