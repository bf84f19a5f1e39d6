"""From requests and a cost to the cheapest ladders of all symbols: candidates, limits, the choice.

The search is in `_joint`, and for one symbol in `_fit`. It is a pure function of requests, cost and
options, so it may be called again while a service runs.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shapeexec._errors import ConfigError, sizes_text
from shapeexec.bucketing._fit import Floats, Ints, cheapest_ladders
from shapeexec.bucketing._fitted import FitRow, Fitted
from shapeexec.bucketing._fixed import Ladder
from shapeexec.bucketing._joint import Frontier, Ladders, Problem, lower_bound, solve
from shapeexec.bucketing._requests import Requests

_MOST_CANDIDATES = {1: 1 << 20, 2: 160, 3: 40}
_FEWEST_CANDIDATES = 16
_MARGIN = 8.0  # intermediate sums and differences are at most this many times the total
_ALWAYS_COUNTED = 64  # `by_graphs` goes up to this number even if requests use fewer graphs
_COMPARED = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""The numbers of graphs of several symbols that are compared, where none is given."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """The cost of a call.

    Attributes:
        at: From sizes by symbol, int arrays that broadcast, to the cost at each.
        may_fall: Whether it may fall as a size grows; then its running maximum is used.
        memory: From sizes to the bytes that a call needs; its running maximum is used. None: not
            limited.
    """

    at: Callable[[Mapping[str, Ints]], Floats]
    may_fall: bool = False
    memory: Callable[[Mapping[str, Ints]], Floats] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The constraints of ladders, and the price of graphs.

    Attributes:
        graphs: The greatest number of graphs.
        is_chosen: Whether the options below may choose fewer graphs.
        multiple_of: By symbol the number whose multiples its buckets are.
        must: By symbol the buckets that the ladder must have.
        max_waste: The greatest share of the cost that padding may take; None: any.
        max_memory: The most bytes that a call may need in its bucket.
        seconds_per_graph: The cost of making a graph, in the unit of the cost.
        requests: The number of requests that share this cost.
    """

    graphs: int
    is_chosen: bool
    multiple_of: Mapping[str, int]
    must: Mapping[str, tuple[int, ...]]
    max_waste: float | None = None
    max_memory: float = math.inf
    seconds_per_graph: float = 0.0
    requests: float = 0.0


def fit_requests(requests: Requests, cost: Cost, *, limits: Limits) -> Fitted:
    """Fit ladders to requests.

    Args:
        requests: How often each combination of sizes occurs.
        cost: What a call costs.
        limits: What the ladders must fulfil.

    Raises:
        ConfigError: A limit cannot be kept, or the cost falls as a size grows.
    """
    space = _Space.of(requests, cost, limits=limits)
    asked, limits = limits.graphs, _useful(limits, requests)
    frontier, bounds = _solved(space, limits)
    exact = float(requests.counts @ _at(cost, requests.symbols, sizes=requests.sizes))
    graphs = _chosen(frontier, exact=exact, requests=requests, limits=limits)
    ladders = frontier.ladders(graphs)
    assert ladders is not None
    strategies = {
        symbol: Ladder(space.values[i][index] for index in ladders[i])
        for i, symbol in enumerate(requests.symbols)
    }
    compared = (k for k in _targets(space, limits) if math.isfinite(frontier.cost(k)))
    return Fitted(
        strategies=strategies,
        rows=_rows(requests, cost, strategies=strategies),
        cost=frontier.cost(graphs),
        lower_bound=min(max(bounds[graphs], exact), frontier.cost(graphs)),
        exact_cost=exact,
        requests=float(requests.counts.sum()),
        by_graphs={k: frontier.cost(k) for k in compared} | {asked: frontier.cost(frontier.most)},
    )


def _useful(limits: Limits, requests: Requests) -> Limits:
    """The limits with at most as many graphs as ladders can use: tables have a column for each."""
    most = len(requests.sizes) + sum(map(len, limits.must.values()))
    return dataclasses.replace(limits, graphs=min(limits.graphs, max(most, _ALWAYS_COUNTED)))


def fitted_to(requests: Requests, cost: Cost, *, strategies: Mapping[str, Ladder]) -> Fitted:
    """The cost of requests in given ladders.

    Args:
        requests: How often each combination of sizes occurs.
        cost: What a call costs.
        strategies: The ladder of each symbol; each size has a bucket.
    """
    rows = _rows(requests, cost, strategies=strategies)
    total, exact = (math.fsum(costs) for costs in zip(*map(_costs, rows), strict=True))
    limits = Limits(graphs=len(rows), is_chosen=False, multiple_of={}, must={})
    space = _Space.of(requests, dataclasses.replace(cost, may_fall=True), limits=limits)
    bound = lower_bound(space.relaxed or space.problem, len(rows)).costs[len(rows)]
    return Fitted(
        strategies=strategies,
        rows=rows,
        cost=total,
        lower_bound=min(max(bound, exact), total),
        exact_cost=exact,
        requests=float(requests.counts.sum()),
        by_graphs={len(rows): total},
    )


def _costs(row: FitRow) -> tuple[float, float]:
    return row.cost, row.exact_cost


@dataclasses.dataclass(frozen=True, eq=False)
class _Space:
    """The candidate buckets of each symbol.

    Attributes:
        problem: The requests at them.
        values: By symbol the candidates, ascending.
        relaxed: The requests at the least sizes of each group of sizes that shares a candidate,
            which bound the cost from below; None: each size is a candidate.
    """

    problem: Problem
    values: tuple[Ints, ...]
    relaxed: Problem | None

    @classmethod
    def of(cls, requests: Requests, cost: Cost, *, limits: Limits) -> "_Space":
        """Round sizes up to multiples, and group them if there are too many."""
        symbols = requests.symbols
        most = _MOST_CANDIDATES.get(len(symbols), _FEWEST_CANDIDATES)
        steps = np.array([limits.multiple_of.get(symbol, 1) for symbol in symbols], np.intp)
        sizes = -(-requests.sizes // steps) * steps
        must = [np.array(limits.must.get(symbol, ()), np.intp) for symbol in symbols]
        grouped = [
            _groups(sizes[:, i], requests.counts, must=must[i], most=most)
            for i in range(len(symbols))
        ]
        values = tuple(upper for upper, _ in grouped)
        lower = tuple(low for _, low in grouped)
        columns = [np.searchsorted(values[i], sizes[:, i]) for i in range(len(symbols))]
        at = np.stack(columns, axis=1)
        indices = [np.searchsorted(values[i], must[i]) for i in range(len(symbols))]
        own = tuple(frozenset(map(int, found)) for found in indices)
        over = _over(cost, requests, values=values, max_memory=limits.max_memory)
        _check_that_each_fits(over[tuple(at.T)], requests, sizes=sizes, limits=limits)
        problem = Problem(at, requests.counts, over, own)
        if all(np.array_equal(a, b) for a, b in zip(values, lower, strict=True)):
            return cls(problem, values, None)
        none = tuple(frozenset[int]() for _ in symbols)
        below = _over(cost, requests, values=lower, max_memory=limits.max_memory)
        relaxed = Problem(at, requests.counts, below, none)
        return cls(problem, values, relaxed)


def _groups(sizes: Ints, counts: Floats, *, must: Ints, most: int) -> tuple[Ints, Ints]:
    """The greatest and the least size of each group of neighbours that shares a candidate."""
    distinct, place = np.unique(np.concatenate([sizes, must]), return_inverse=True)
    if len(distinct) <= most:
        return distinct, distinct
    weights = _totals(place, np.concatenate([counts, np.zeros(len(must))]))
    required = np.searchsorted(distinct, must)
    ladders = cheapest_ladders(weights, distinct.astype(float), graphs=most, must=[*required])
    ends = np.array(ladders[-1][1], np.intp)
    begins = np.concatenate([[0], ends[:-1] + 1])
    return distinct[ends], distinct[begins]


def _totals(place: Ints, weights: Floats, *, count: int = 0) -> Floats:
    """The sum of the weights at each place."""
    return np.bincount(place, weights, minlength=count).astype(float)


def _check_that_each_fits(
    costs: Floats, requests: Requests, *, sizes: Ints, limits: Limits
) -> None:
    beyond = np.flatnonzero(np.isinf(costs))
    if not len(beyond):
        return
    request = zip(requests.symbols, map(int, sizes[beyond[0]]), strict=True)
    raise ConfigError(
        f"max_memory={limits.max_memory:.0f} is too little for a request: it needs more bytes.",
        option="max_memory",
        got=sizes_text(dict(request)),
        fix="a larger max_memory=, or requests that are split, such as smaller batches",
    )


def _over(cost: Cost, requests: Requests, *, values: Sequence[Ints], max_memory: float) -> Floats:
    """The cost at all combinations of candidates; infinite where memory does not suffice."""
    symbols = requests.symbols
    grid = np.meshgrid(*values, indexing="ij", sparse=True)
    found = cost.at(dict(zip(symbols, grid, strict=True)))
    costs = np.broadcast_to(found, tuple(map(len, values))).astype(float)
    greatest, total = float(costs.max()), float(requests.counts.sum())
    if not math.isfinite(_MARGIN * greatest * total):
        raise ConfigError(
            f"the cost of {total:g} requests is beyond what a float holds.",
            option="cost",
            got=f"a cost of up to {greatest:g} each",
            fix="cost= in a larger unit, or smaller counts",
        )
    for axis in range(len(symbols)):
        falls = np.argwhere(np.diff(costs, axis=axis) < 0)
        if len(falls) and not cost.may_fall:
            raise _falling(costs, symbols, values=values, axis=axis, place=falls[0])
        costs = np.maximum.accumulate(costs, axis=axis)
    if cost.memory is None:
        return costs
    needed = np.broadcast_to(cost.memory(dict(zip(symbols, grid, strict=True))), costs.shape)
    for axis in range(len(symbols)):
        needed = np.maximum.accumulate(needed, axis=axis)
    return np.where(needed > max_memory, np.inf, costs)


def _falling(
    costs: Floats, symbols: Sequence[str], *, values: Sequence[Ints], axis: int, place: Ints
) -> ConfigError:
    texts: list[str] = []
    for step in (0, 1):
        index = tuple(int(at) + (step if i == axis else 0) for i, at in enumerate(place))
        at = [own[i] for own, i in zip(values, index, strict=True)]
        texts.append(f"cost({sizes_text(dict(zip(symbols, at, strict=True)))}) = {costs[index]:g}")
    return ConfigError(
        f"cost falls as `{symbols[axis]}` grows.",
        option="cost",
        got=", yet ".join(texts),
        fix="pass a cost that never falls, such as the running maximum of a measured one",
    )


def _at(cost: Cost, symbols: Sequence[str], *, sizes: Ints) -> Floats:
    """The cost at each of int[n, symbols]."""
    costs = cost.at({symbol: sizes[:, i] for i, symbol in enumerate(symbols)})
    return np.broadcast_to(costs, len(sizes)).astype(float)


def _targets(space: _Space, limits: Limits) -> list[int]:
    """The numbers of graphs that are compared, ascending."""
    if not limits.is_chosen:
        return [limits.graphs]
    if space.problem.symbols == 1:
        return list(range(1, limits.graphs + 1))
    return sorted({k for k in (*_COMPARED, limits.graphs) if k <= limits.graphs})


def _solved(space: _Space, limits: Limits) -> tuple[Frontier, Sequence[float]]:
    """The cheapest ladders by number of graphs, and lower bounds of the cost."""
    if space.problem.symbols == 1:
        frontier = _of_one(space.problem, limits.graphs)
        return frontier, [frontier.cost(k) for k in range(limits.graphs + 1)]
    targets = _targets(space, limits)
    bound = lower_bound(space.problem, limits.graphs)
    frontier, is_optimal = solve(space.problem, targets, bound=bound)
    if space.relaxed is not None:
        # Requests that share a candidate may run in different graphs, so the cheapest ladders of
        # the relaxed problem may need more graphs. The bounds by one symbol at a time still hold.
        return frontier, lower_bound(space.relaxed, limits.graphs).costs
    if not is_optimal:
        return frontier, bound.costs
    proven = [min(target for target in targets if target >= k) for k in range(limits.graphs + 1)]
    return frontier, [max(bound.costs[k], frontier.cost(n)) for k, n in enumerate(proven)]


def _of_one(problem: Problem, graphs: int) -> Frontier:
    counts = _totals(problem.at[:, 0], problem.counts, count=len(problem.costs))
    found = cheapest_ladders(counts, problem.costs, graphs=graphs, must=sorted(problem.must[0]))
    frontier = Frontier(graphs)
    for number, (cost, ladder) in enumerate(found, start=1):
        ladders: Ladders = (tuple(ladder),)
        frontier.add(cost, ladders, graphs=number)
    return frontier


def _chosen(frontier: Frontier, *, exact: float, requests: Requests, limits: Limits) -> int:
    """The number of graphs: the greatest, or the one that pays."""
    possible = [k for k in range(1, frontier.most + 1) if frontier.ladders(k) is not None]
    if not possible:
        raise _too_few(limits)
    if limits.max_waste is not None:
        cheap = [k for k in possible if exact >= frontier.cost(k) * (1 - limits.max_waste)]
        if not cheap:
            best = 1 - exact / frontier.cost(possible[-1])
            raise ConfigError(
                f"max_waste={limits.max_waste:g} needs more than {frontier.most} graphs.",
                option="max_waste",
                got=f"{best:.1%} of the cost is padding with {frontier.most} graphs",
                fix="a larger max_waste=, or more graphs: graphs= or max_graphs=",
            )
        possible = cheap
    if not limits.is_chosen:
        return possible[-1]
    share = limits.requests / float(requests.counts.sum())
    totals = {k: frontier.cost(k) * share + k * limits.seconds_per_graph for k in possible}
    if not all(map(math.isfinite, totals.values())):
        raise ConfigError(
            "the time of all calls and compiles is beyond what a float holds.",
            option="horizon",
            got=f"{limits.requests:g} requests, and {limits.seconds_per_graph:g} s for a graph",
            fix="a shorter horizon=, or none of the three options and graphs= instead",
        )
    return min(possible, key=lambda k: totals[k])


def _too_few(limits: Limits) -> ConfigError:
    if math.isfinite(limits.max_memory):
        return ConfigError(
            f"graphs={limits.graphs}: no ladders were found that keep to"
            f" max_memory={limits.max_memory:.0f}.",
            option="max_memory",
            got="each request fits alone, but not in a bucket that it shares",
            fix="a larger graphs= or max_memory=, or fewer buckets in must=",
        )
    return ConfigError(
        f"graphs={limits.graphs} are too few for the buckets that must be there.",
        option="graphs",
        got="; ".join(f"{symbol}: {list(own)}" for symbol, own in limits.must.items()),
        fix="a larger graphs=, or fewer buckets in must=",
    )


def _rows(
    requests: Requests, cost: Cost, *, strategies: Mapping[str, Ladder]
) -> tuple[FitRow, ...]:
    """The requests in each graph, the costliest first."""
    symbols = requests.symbols
    columns = [
        _buckets(strategies[symbol], requests.sizes[:, i]) for i, symbol in enumerate(symbols)
    ]
    occurs = requests.counts > 0
    counts = requests.counts[occurs]
    used, graph = np.unique(np.stack(columns, axis=1)[occurs], axis=0, return_inverse=True)
    each = _at(cost, symbols, sizes=used)
    exact = _totals(graph, counts * _at(cost, symbols, sizes=requests.sizes[occurs]))
    number = _totals(graph, counts)
    rows = [
        FitRow(
            buckets=dict(zip(symbols, map(int, used[i]), strict=True)),
            requests=float(number[i]),
            cost=float(number[i] * each[i]),
            exact_cost=float(exact[i]),
        )
        for i in range(len(used))
    ]
    return tuple(sorted(rows, key=lambda row: -row.cost))


def _buckets(ladder: Ladder, sizes: Ints) -> Ints:
    values = np.array(ladder.buckets, np.intp)
    return values[np.searchsorted(values, sizes)]
