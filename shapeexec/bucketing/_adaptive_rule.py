"""When a ladder that learns changes: the rent-or-buy rule of `Adaptive`, as a pure function.

A step takes a state, the sizes of some requests and the time, and returns the next state and, if it
pays, a change of ladder. It has no clock and no threads, and makes no graphs.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from shapeexec.bucketing._adaptive import Adaptive, State
from shapeexec.bucketing._base import Strategy
from shapeexec.bucketing._fit import Floats, cheapest_ladders

_FORGOTTEN = 1e-3
"""A size with less weight is forgotten."""

_MOST_CANDIDATES = 512
"""The most sizes that are considered as buckets, so that a look takes milliseconds."""

_LOOK = 0.25
"""The least cost of padding between two looks, relative to the price of a graph."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of ladder, and why it pays; `str` describes it.

    Attributes:
        before: The buckets that the remembered requests used, ascending.
        after: The new ladder.
        made: How many graphs the change needs.
        padding: The share of padding of the remembered requests, before and after.
        saving: The extra cost of the old ladder on these requests, in calls of the mean size.
        price: The cost of making the graphs, in calls of the mean size.
        request: The number of requests before the change.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    made: int
    padding: tuple[float, float]
    saving: float
    price: float
    request: int

    def __str__(self) -> str:
        before, after = self.padding
        return (
            f"{len(self.after)} buckets in the place of {len(self.before)} after request "
            f"{self.request}: padding {before:.1%} -> {after:.1%}; the old ones cost "
            f"{self.saving:.3g} mean calls more, {self.made} new graphs cost {self.price:.3g}"
        )


def step(
    rule: Adaptive, state: State, *, sizes: Sequence[int], now: float
) -> tuple[State, Change | None]:
    """Learn the sizes of some requests, and change the ladder if that pays.

    Let C(L) be the cost of all remembered requests, each with its weight, on a ladder L, and
    P(L, M) the price of the graphs that M needs and L does not hold. The ladder L stays as long as
    `C(L) <= C(M) + P(L, M)` for every M that reaches the largest size, and changes to the M that is
    cheapest otherwise. So L is left when its excess cost equals the cost of the change: the
    break-even rule of ski rental. Proofs and consequences: docs/adr/0027.

    It looks for M only when the padding since the last look has cost enough that a change may pay,
    and at least a quarter of the price of a graph.

    Args:
        rule: The options.
        state: The state before.
        sizes: The sizes of the requests since the last step, each at least 1.
        now: The time in seconds, by a clock that is not set back.

    Returns:
        The next state; the change, or None.

    Raises:
        BucketOverflowError: A size is past the last bucket of the rule's `start`.

    Source:
        A. R. Karlin, M. S. Manasse, L. Rudolph and D. D. Sleator, "Competitive snoopy caching",
        Algorithmica 3, 1988.
    """
    state, padded = _learned(rule, state, sizes=sizes, now=now)
    due = state.due - padded
    if due > 0 or not state.weights:
        return dataclasses.replace(state, due=due), None
    return _looked(rule, state)


def refuse(state: State, *, ladder: Sequence[int], buckets: Sequence[int]) -> State:
    """Go back to a ladder, since the graphs of some buckets could not be made.

    Args:
        state: The state before.
        ladder: The ladder to go back to.
        buckets: The buckets that are not tried again.
    """
    held = tuple(sorted({*state.held, *ladder} - {*buckets}))
    refused = tuple(sorted({*state.refused, *buckets}))
    return dataclasses.replace(state, ladder=tuple(ladder), held=held, refused=refused, due=0.0)


def _learned(
    rule: Adaptive, state: State, *, sizes: Sequence[int], now: float
) -> tuple[State, float]:
    """The state with the sizes of requests, and the cost of their padding."""
    fade = len(sizes) / rule.horizon
    if rule.horizon_seconds is not None and state.now is not None:
        fade += max(0.0, now - state.now) / rule.horizon_seconds
    kept = math.exp(-fade)
    weights = {size: held * kept for size, held in state.weights.items()}
    for size in sizes:
        weights[size] = weights.get(size, 0.0) + 1.0
    used = buckets_of(sizes, state.ladder, start=rule.start)
    new = {*used}.difference(state.held)
    padded = float((_costs(rule, used) - _costs(rule, sizes)).sum())
    learned = dataclasses.replace(
        state,
        weights={size: weights[size] for size in sorted(weights) if weights[size] > _FORGOTTEN},
        held=tuple(sorted({*state.held, *new})),
        requests=state.requests + len(sizes),
        compiles=state.compiles + len(new),
        now=now,
        # New graphs make a change cheaper than it was at the last look.
        due=0.0 if new else state.due * kept,
    )
    return learned, padded


def _looked(rule: Adaptive, state: State) -> tuple[State, Change | None]:
    """The state after a look for a better ladder, and the change if there is one."""
    sizes, weights = list(state.weights), np.array([*state.weights.values()])
    exact = float(_costs(rule, sizes) @ weights)
    mean = exact / float(weights.sum())
    price = rule.compile_calls * mean

    def judged(ladder: tuple[int, ...]) -> tuple[float, set[int]]:
        used = buckets_of(sizes, ladder, start=rule.start)
        return float(_costs(rule, used) @ weights), {*used, *ladder}

    present, before = judged(state.ladder)
    if present - exact < price:  # no change takes fewer graphs than one
        return dataclasses.replace(state, due=price - (present - exact)), None
    found = [(ladder, *judged(ladder)) for ladder in _candidates(rule, state, price=price)]
    totals = [cost + price * len(used.difference(state.held)) for _, cost, used in found]
    best = min(range(len(found)), key=totals.__getitem__, default=None)
    if best is None or totals[best] >= present:
        lacking = price if best is None else totals[best] - present
        return dataclasses.replace(state, due=max(lacking, price * _LOOK)), None
    ladder, cost, used = found[best]
    made = len(used.difference(state.held))
    change = Change(
        before=tuple(sorted(before)),
        after=ladder,
        made=made,
        padding=(1 - exact / present, 1 - exact / cost),
        saving=(present - cost) / mean,
        price=rule.compile_calls * made,
        request=state.requests,
    )
    changed = dataclasses.replace(
        state,
        ladder=ladder,
        held=tuple(sorted(used)),
        compiles=state.compiles + made,
        changes=state.changes + 1,
        due=price * _LOOK,
    )
    return changed, change


def _candidates(rule: Adaptive, state: State, *, price: float) -> list[tuple[int, ...]]:
    """Ladders of which one is the cheapest, with the price of its new graphs.

    Candidates for buckets are sizes, and buckets whose graphs are compiled. The largest sizes, if
    rarer than `min_usage` together, need no bucket. Of very many sizes only some are candidates.
    """
    sizes, weights = np.array([*state.weights]), np.array([*state.weights.values()])
    rarer = np.cumsum(weights[::-1])[::-1] < rule.min_usage * weights.sum()
    sizes, weights = sizes[~rarer], weights[~rarer]
    last = int(sizes[-1])
    chosen = np.unique(np.linspace(0, len(sizes) - 1, _MOST_CANDIDATES).round().astype(int))
    inner = sorted({*sizes[chosen].tolist(), *(bucket for bucket in state.held if bucket < last)})
    past = [bucket for bucket in state.held if bucket > last][:1]
    found: list[tuple[int, ...]] = []
    for ends in (inner, [*inner, *past])[: 1 + len(past)]:
        prices = [_price(state, end, price=price) for end in ends]
        places = np.searchsorted(ends, sizes)
        counts: Floats = np.bincount(places, weights, minlength=len(ends)).astype(float)
        ladders = cheapest_ladders(
            counts, _costs(rule, ends), graphs=rule.graphs, prices=np.array(prices)
        )
        total, indices = min(ladders, key=lambda ladder: ladder[0])
        if math.isfinite(total):
            found.append(tuple(ends[index] for index in indices))
    return found


def _price(state: State, bucket: int, *, price: float) -> float:
    if bucket in state.refused:
        return math.inf
    return 0.0 if bucket in state.held else price


def buckets_of(sizes: Sequence[int], ladder: Sequence[int], *, start: Strategy) -> list[int]:
    """The bucket of each size: on the ladder, or by `start` past its end."""
    places = np.searchsorted(np.asarray(ladder, int), sizes).tolist()
    return [
        ladder[place] if place < len(ladder) else start.bucket(size)
        for place, size in zip(places, sizes, strict=True)
    ]


def _costs(rule: Adaptive, buckets: Sequence[int]) -> Floats:
    sizes = np.asarray(buckets, float)
    return sizes if rule.cost == "linear" else sizes * sizes
