"""Ladders made better step by step: buckets removed, merged and split.

`_fit_joint` fits ladders from scratch; here each change is small and reported.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from shapeexec.bucketing._fit import Ints
from shapeexec.bucketing._fit_joint import Cost, fitted_to
from shapeexec.bucketing._fitted import Fitted
from shapeexec.bucketing._fixed import Ladder
from shapeexec.bucketing._requests import Requests

_MOST_SPLITS = 32  # sizes at which a bucket may be split: quantiles of its requests
_MOST_CHANGES = 256

Ladders = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class BucketChange:
    """One change of a ladder.

    Attributes:
        kind: `"remove"`: a bucket that is hardly used is removed. `"merge"`: a bucket is removed
            whose calls cost less in the next bucket than its graph costs. `"split"`: a bucket is
            added, and takes calls from the next one.
        symbol: The symbol of the bucket.
        bucket: The bucket that is removed or added.
        cost: The change in the cost of all requests.
        graphs: The change in the number of graphs.

    Example:
        >>> change = BucketChange("split", symbol="s", bucket=48, cost=-0.5, graphs=1)
        >>> print(change)
        split s at 48: cost -0.5, graphs +1
    """

    kind: Literal["remove", "merge", "split"]
    symbol: str
    bucket: int
    cost: float
    graphs: int

    def __str__(self) -> str:
        where = "at" if self.kind == "split" else "bucket"
        what = f"{self.kind} {self.symbol} {where} {self.bucket}"
        return f"{what}: cost {self.cost:+.3g}, graphs {self.graphs:+d}"


@dataclasses.dataclass(frozen=True)
class Optimized:
    """Improved buckets, and the effect of each change; `print` it.

    Attributes:
        before: The buckets before, and the cost of the requests in them.
        fitted: The buckets after all changes: `run.variant(buckets=fitted.strategies)`.
        changes: The changes, in the order in which they were made.

    Example:
        >>> run = sx.Exec(lambda x: x * 2, ("s",), buckets=[10, 11, 100])
        >>> cost = lambda s: float(s)
        >>> sizes = {10: 20, 11: 20, 40: 20, 100: 20}
        >>> found = sx.optimize(run, sizes, cost=cost, graph_cost=50.0)
        >>> found.fitted.strategies["s"], [change.kind for change in found.changes]
        (Ladder([11, 40, 100]), ['merge', 'split'])
    """

    before: Fitted
    fitted: Fitted
    changes: tuple[BucketChange, ...]

    @property
    def strategies(self) -> Mapping[str, Ladder]:
        """The ladder of each symbol, to be passed as `buckets=`."""
        return self.fitted.strategies

    def __str__(self) -> str:
        before, after = self.before, self.fitted
        lines = [
            f"{before.requests:g} requests: cost {before.cost:.4g} to {after.cost:.4g}, padding"
            f" {before.waste:.1%} to {after.waste:.1%}, {before.graphs} to {after.graphs} graphs"
        ]
        lines += [f"  {change}" for change in self.changes]
        return "\n".join(lines + [f"  {s}: {ladder!r}" for s, ladder in after.strategies.items()])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which changes are made.

    Attributes:
        remove: Buckets with less than this share of the requests are removed.
        merge: Whether to remove buckets whose calls cost less in the next bucket than a graph.
        split: Buckets with more than this share of padding in their cost are split, if that pays
            for the graphs.
        graph_cost: The cost of a graph, in the unit of the cost.
        keep: By symbol the buckets that are never removed; missing ones are added first.
    """

    remove: float
    merge: bool
    split: float
    graph_cost: float
    keep: Mapping[str, tuple[int, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[int, ...]]
    )

    def missing(self, ladders: Ladders) -> Iterator[tuple[str, int]]:
        """The buckets in `keep` that a ladder lacks."""
        for symbol, buckets in self.keep.items():
            yield from ((symbol, bucket) for bucket in buckets if bucket not in ladders[symbol])

    def may_go(self, ladders: Ladders) -> Iterator[tuple[str, int]]:
        """The buckets that may be removed: all but the greatest and those in `keep`."""
        for symbol, held in ladders.items():
            kept = self.keep.get(symbol, ())
            yield from ((symbol, bucket) for bucket in held[:-1] if bucket not in kept)


def improve(requests: Requests, cost: Cost, *, ladders: Ladders, wanted: Wanted) -> Optimized:
    """Improve ladders, one change at a time, the best one first.

    Args:
        requests: How often each combination of sizes occurs.
        cost: What a call costs.
        ladders: By symbol the buckets; each size of the requests has one.
        wanted: Which changes are made.
    """
    scores = _Scores(requests, cost)
    changes: list[BucketChange] = []
    own = dict(ladders)
    for at in [*wanted.missing(own)]:
        change, own = scores.change("split", at, ladders=own)
        changes.append(change)
    for step in (_removed, _merged, functools.partial(_split, before=ladders)):
        while len(changes) < _MOST_CHANGES:
            found = step(scores, own, wanted=wanted)
            if found is None:
                break
            change, own = found
            changes.append(change)
    before, after = (
        fitted_to(requests, cost, strategies={s: Ladder(held) for s, held in each.items()})
        for each in (ladders, own)
    )
    return Optimized(before, after, tuple(changes))


class _Scores:
    """The cost of requests in ladders, and the number of graphs they use.

    Args:
        requests: How often each combination of sizes occurs.
        cost: What a call costs.
    """

    def __init__(self, requests: Requests, cost: Cost) -> None:
        occurs = requests.counts > 0
        self.symbols, self.counts = requests.symbols, requests.counts[occurs]
        self.sizes = requests.sizes[occurs]
        self._cost = cost
        self.exact = self._each(self.sizes)

    def _each(self, sizes: Ints) -> np.ndarray:
        by_symbol = {symbol: sizes[:, i] for i, symbol in enumerate(self.symbols)}
        return np.broadcast_to(self._cost.at(by_symbol), len(sizes)).astype(float)

    def buckets(self, ladders: Ladders) -> Ints:
        """int[n, symbols], the buckets of each request."""
        columns = [np.array(ladders[symbol], np.intp) for symbol in self.symbols]
        own = [held[np.searchsorted(held, self.sizes[:, i])] for i, held in enumerate(columns)]
        return np.stack(own, axis=1)

    def score(self, ladders: Ladders) -> tuple[float, int]:
        """The cost, and the number of graphs."""
        buckets = self.buckets(ladders)
        return float(self.counts @ self._each(buckets)), len(np.unique(buckets, axis=0))

    def change(
        self, kind: Literal["remove", "merge", "split"], at: tuple[str, int], *, ladders: Ladders
    ) -> tuple[BucketChange, Ladders]:
        """The effect of removing or adding a bucket, and the ladders after it."""
        symbol, bucket = at
        held = set(ladders[symbol])
        held = held | {bucket} if kind == "split" else held - {bucket}
        other = {**ladders, symbol: tuple(sorted(held))}
        (cost, graphs), (new_cost, new_graphs) = self.score(ladders), self.score(other)
        made = BucketChange(kind, symbol, bucket, new_cost - cost, new_graphs - graphs)
        return made, other

    def waste(self, ladders: Ladders) -> Iterator[tuple[str, int, float, Ints]]:
        """Per bucket its symbol, the share of its cost that is padding, and its sizes."""
        buckets = self.buckets(ladders)
        cost = self.counts * self._each(buckets)
        exact = self.counts * self.exact
        for i, symbol in enumerate(self.symbols):
            for bucket in ladders[symbol]:
                inside = buckets[:, i] == bucket
                if total := float(cost[inside].sum()):
                    waste = 1 - float(exact[inside].sum()) / total
                    yield symbol, bucket, waste, self.sizes[inside, i]


_Step = tuple[BucketChange, Ladders] | None


def _removed(scores: _Scores, ladders: Ladders, *, wanted: Wanted) -> _Step:
    """Remove the bucket that is used least."""
    buckets, total = scores.buckets(ladders), float(scores.counts.sum())
    column = {symbol: buckets[:, i] for i, symbol in enumerate(scores.symbols)}
    shares = {
        (symbol, bucket): float(scores.counts[column[symbol] == bucket].sum()) / total
        for symbol, bucket in wanted.may_go(ladders)
    }
    rare = min(shares, key=lambda at: shares[at], default=None)
    if rare is None or shares[rare] >= wanted.remove:
        return None
    return scores.change("remove", rare, ladders=ladders)


def _merged(scores: _Scores, ladders: Ladders, *, wanted: Wanted) -> _Step:
    """Remove the bucket whose graphs cost most, less the padding that they save."""
    places = wanted.may_go(ladders) if wanted.merge else ()
    tried = [scores.change("merge", at, ladders=ladders) for at in places]
    return _best(tried, wanted)


def _split(scores: _Scores, ladders: Ladders, *, wanted: Wanted, before: Ladders) -> _Step:
    """Add the bucket that saves most padding, less the graphs that it needs."""
    tried: list[tuple[BucketChange, Ladders]] = []
    for symbol, bucket, waste, sizes in scores.waste(ladders):
        distinct = np.setdiff1d(sizes[sizes < bucket], before[symbol])  # none that was removed
        if waste > wanted.split and len(distinct):
            places = np.unique(np.linspace(0, len(distinct) - 1, _MOST_SPLITS).astype(int))
            ats = [(symbol, int(distinct[place])) for place in places]
            tried += [scores.change("split", at, ladders=ladders) for at in ats]
    return _best(tried, wanted)


def _best(tried: list[tuple[BucketChange, Ladders]], wanted: Wanted) -> _Step:
    def worth(found: tuple[BucketChange, Ladders]) -> float:
        return found[0].cost + wanted.graph_cost * found[0].graphs

    best = min(tried, key=worth, default=None)
    return best if best is not None and worth(best) < 0 else None
