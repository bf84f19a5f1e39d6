"""Advice on buckets: other ladders, more of them for one symbol, and bounds where branches are.

The cost model tells what calls cost; `bucketing` finds the ladders.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec._code import code
from shapeexec.bucketing import Adaptive, Ladder, Strategy
from shapeexec.bucketing._fit_joint import Limits, fit_requests
from shapeexec.execution._key import kind_of
from shapeexec.execution._row import GraphRow
from shapeexec.execution._settings import given_to
from shapeexec.execution.analysis._advice import AdviceLine
from shapeexec.execution.analysis._facts import Facts, Ladders

_MOST_GRAPHS = 32
_LEAST_SHARE = 0.05  # of the cost, below which other buckets are not worth the trouble
_MOST_BOUNDS = 4  # of branches on one symbol; a parity has one at each size


def strategy(facts: Facts) -> Iterator[AdviceLine]:
    """Fitted ladders with as many graphs beside the present ones."""
    requests = facts.requests
    if requests is None or facts.model is None or facts.typical is None:
        return
    present = _graphs(facts, facts.ladders)
    limits = Limits(graphs=min(present, _MOST_GRAPHS), is_chosen=False, multiple_of={}, must={})
    found = fit_requests(requests, facts.cost, limits=limits)
    ladders = {
        symbol: _with_early(ladder.buckets, symbol, facts=facts)
        for symbol, ladder in found.strategies.items()
    }
    graphs = _graphs(facts, ladders)
    number = "at most as many" if graphs <= present else str(graphs)
    before, after = _seconds(facts, facts.ladders), _seconds(facts, ladders)
    if before - after <= _LEAST_SHARE * before:
        return
    yield _line(
        "strategy",
        f"buckets fitted to {facts.calls} take {after / before:.0%} of their time,"
        f" with {number} graphs; padding in bytes falls to {_ratio(facts, ladders):.0%}",
        facts=facts,
        ladders=ladders,
        seconds=before - after,
    )


def waste(facts: Facts) -> Iterator[AdviceLine]:
    """Twice as many buckets of the symbol for which they spare most."""
    requests = facts.requests
    if requests is None or facts.model is None or facts.typical is None or facts.learns:
        return
    before, graphs = _seconds(facts, facts.ladders), _graphs(facts, facts.ladders)
    best: tuple[float, str, Ladders] | None = None
    for i, symbol in enumerate(requests.symbols):
        own = facts.ladders[symbol]
        sizes = {int(n): 0.0 for n in requests.sizes[:, i]}
        for n, count in zip(requests.sizes[:, i], requests.counts, strict=True):
            sizes[int(n)] += count
        finer = Ladder.fit(sizes, graphs=2 * len(own))
        ladders = {**facts.ladders, symbol: _with_early(finer.buckets, symbol, facts=facts)}
        made = (_graphs(facts, ladders) - graphs) * facts.analysis.graph_seconds
        spared = before - _seconds(facts, ladders) - made
        if best is None or spared > best[0]:
            best = spared, symbol, ladders
    if best is None or best[0] <= _LEAST_SHARE * before:
        return
    spared, symbol, ladders = best
    more = _graphs(facts, ladders) - graphs
    yield _line(
        "waste",
        f"{facts.analysis.waste[symbol]:.0%} of `{symbol}` is padding;"
        f" {len(ladders[symbol])} buckets instead of {len(facts.ladders[symbol])} pay for {more}"
        f" graphs more, and padding in bytes falls to {_ratio(facts, ladders):.0%}",
        facts=facts,
        ladders=ladders,
        seconds=spared,
    )


def guards(facts: Facts) -> Iterator[AdviceLine]:
    """Branches on a size within buckets, each of which makes a graph more."""
    if facts.requests is None or facts.typical is None or facts.learns:
        return
    split = _Branches.of(facts, facts.typical)
    for symbol in facts.requests.symbols:
        bounds = split.bounds(symbol)
        if not bounds:
            continue
        if len(bounds) > _MOST_BOUNDS:
            yield from _without_branch(facts, split, symbol=symbol)
        else:
            yield from _at_bounds(facts, split, symbol=symbol, bounds=bounds)


def _at_bounds(
    facts: Facts, split: "_Branches", *, symbol: str, bounds: Sequence[int]
) -> Iterator[AdviceLine]:
    """Buckets that end where the branches change, in the place of the ones below."""
    own = set(facts.ladders[symbol])
    for bound in bounds:
        below = [bucket for bucket in own if bucket < bound and bucket not in bounds]
        if bound not in own and below:
            own = own - {max(below)} | {bound}
    ladders = {**facts.ladders, symbol: _with_early(own, symbol, facts=facts)}
    fewer = split.graphs(facts.ladders) - split.graphs(ladders)
    seconds = fewer * facts.analysis.graph_seconds
    if facts.model is not None:
        seconds += _seconds(facts, facts.ladders) - _seconds(facts, ladders)
    if fewer < 1 or seconds <= 0:
        return
    yield _line(
        "guards",
        f"branches on `{symbol}` ({split.told(symbol)}) make two graphs of a bucket; buckets that"
        f" end at {', '.join(map(str, bounds))} take {fewer} graphs less",
        facts=facts,
        ladders=ladders,
        seconds=seconds,
        saves={"compiles": fewer},
    )


def _without_branch(facts: Facts, split: "_Branches", *, symbol: str) -> Iterator[AdviceLine]:
    """A branch that no buckets can be aligned with."""
    fewer = split.graphs(facts.ladders) - _graphs(facts, facts.ladders)
    if fewer < 1:
        return
    guard = split.of_symbol(symbol)[0]
    condition = str(guard).replace("mod(", "jnp.mod(")
    yield AdviceLine(
        "guards",
        f"a branch on `{symbol}` ({guard.described()}) makes {fewer} graphs more",
        f"jax.lax.cond({condition}, if_so, if_not, x)  # with the size of `{symbol}` as data",
        seconds=fewer * facts.analysis.graph_seconds,
        saves={"compiles": fewer},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Branches:
    """The conditions on sizes that tell the traces of one kind of call apart.

    Attributes:
        facts: What was seen.
        guards: The conditions; some traces hold where they do not.
    """

    facts: Facts
    guards: tuple[Any, ...]

    @classmethod
    def of(cls, facts: Facts, typical: GraphRow) -> "_Branches":
        base, exact = kind_of(typical.key).base, typical.exact
        rows = [
            row
            for row in facts.rows
            if kind_of(row.key).base == base and row.exact == exact and row.trace is not None
        ]
        found = dict.fromkeys(guard for row in rows for guard in row.trace.guards)
        return cls(facts, tuple(found))

    def of_symbol(self, symbol: str) -> list[Any]:
        """The conditions on this symbol alone."""
        return [guard for guard in self.guards if guard.symbols == {symbol}]

    def told(self, symbol: str) -> str:
        """The conditions, one a line of code."""
        by_line = {guard.place: guard.described() for guard in self.of_symbol(symbol)}
        return "; ".join(list(by_line.values())[:2])

    def _outcome(self, sizes: Mapping[str, int]) -> tuple[bool, ...]:
        return tuple(guard.holds(sizes) for guard in self.guards)

    def bounds(self, symbol: str) -> list[int]:
        """The greatest sizes before each change of an outcome, among those that were seen."""
        own = self.of_symbol(symbol)

        def outcome(size: int) -> list[bool]:
            return [guard.holds({symbol: size}) for guard in own]

        requests = self.facts.requests
        assert requests is not None
        seen = np.unique(requests.sizes[:, requests.symbols.index(symbol)])
        found: list[int] = []
        for low, high in zip(map(int, seen[:-1]), map(int, seen[1:]), strict=True):
            if own and outcome(low) != outcome(high):
                found.append(
                    _last(lambda size, low=low: outcome(size) == outcome(low), low, high=high)
                )
        return found

    def graphs(self, ladders: Ladders) -> int:
        """How many graphs the calls use with these buckets."""
        return len(
            {
                (tuple(buckets.items()), self._outcome(sizes))
                for sizes, buckets, _ in self.facts.placed(ladders)
            }
        )


def _last(holds: Callable[[int], bool], low: int, *, high: int) -> int:
    """The greatest size from `low` to below `high` at which something still holds."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _with_early(buckets: Iterable[int], symbol: str, *, facts: Facts) -> tuple[int, ...]:
    return tuple(sorted({*buckets, *facts.early.get(symbol, ())}))


def _graphs(facts: Facts, ladders: Ladders) -> int:
    return len({tuple(buckets.items()) for _, buckets, _ in facts.placed(ladders)})


def _seconds(facts: Facts, ladders: Ladders) -> float:
    """What all requests take in these buckets, by the cost model."""
    requests = facts.requests
    assert requests is not None
    buckets = [own for _, own, _ in facts.placed(ladders)]
    columns = {s: np.array([own[s] for own in buckets], np.intp) for s in requests.symbols}
    each = np.broadcast_to(facts.cost.at(columns), len(buckets))
    return float(requests.counts @ each)


def _ratio(facts: Facts, ladders: Ladders) -> float:
    before = facts.padded_bytes(facts.ladders)
    return facts.padded_bytes(ladders) / before if before else 1.0


def _line(
    kind: str,
    observation: str,
    *,
    facts: Facts,
    ladders: Ladders,
    seconds: float,
    saves: Mapping[str, float] | None = None,
) -> AdviceLine:
    strategies = facts.settings.by_name | {
        symbol: _continued(buckets, given) if buckets != facts.ladders[symbol] else given
        for symbol, buckets in ladders.items()
        for given in [given_to(symbol, facts.settings.strategies)]
    }
    fewer = facts.padded_bytes(facts.ladders) - facts.padded_bytes(ladders)
    return AdviceLine(
        kind,
        observation,
        f"run = run.variant(buckets={code(strategies)})",
        seconds=seconds,
        saves={"padded_bytes": fewer} if saves is None else saves,
        changes={"strategies": strategies},
    )


def _continued(buckets: tuple[int, ...], present: Strategy) -> Strategy:
    """A ladder that goes on as the present strategy does, where that has source.

    One that learns starts with it, and has learned nothing: that was about other buckets.
    """
    if isinstance(present, Adaptive):
        start = _continued(buckets, present.start)
        return dataclasses.replace(present, start=start, learned="")
    beyond = present.beyond if isinstance(present, Ladder) else present
    return Ladder(buckets, beyond=beyond if code(beyond) else None)
