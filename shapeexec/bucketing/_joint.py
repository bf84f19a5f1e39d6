"""The cheapest ladders of several symbols at once, where graphs are the pairs of buckets in use.

Sizes are indices of candidate buckets here, and costs an array over them; `_requests` makes both.
For one symbol `_fit` is faster.

If the ladders of all symbols but one are fixed, dynamic programming finds the ladder of the last.
If the others have few candidates, all their ladders are tried, with bounds; else the symbols take
turns.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shapeexec.bucketing._fit import Floats, Ints

MOST_LADDERS = 4096
"""The most ladders of the other symbols that are compared by their bounds."""
MOST_SOLVED = 300
"""The most ladders of the other symbols that are solved; then a gap to the lower bound remains."""
_MOST_ROUNDS = 8
_STARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

Ladders = tuple[tuple[int, ...], ...]
"""By symbol the indices of its buckets, ascending; the last is the last candidate."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Requests at candidate buckets.

    Attributes:
        at: int[n, symbols], the candidate of each request.
        counts: f64[n], how often each occurs.
        costs: f64[candidates of symbol 0, ...], the cost of a call; never falls along an axis.
            Infinite: no request may run there, not even one that is counted 0 times.
        must: By symbol the candidates that are buckets in any case.
    """

    at: Ints
    counts: Floats
    costs: Floats
    must: tuple[frozenset[int], ...]

    @property
    def symbols(self) -> int:
        """How many symbols there are."""
        return self.costs.ndim

    @property
    def exact_cost(self) -> float:
        """The cost without padding."""
        return self._total(self.at)

    def buckets(self, ladders: Ladders) -> Ints:
        """int[n, symbols], the buckets of each request."""
        columns = [_raised(self.at[:, i], ladder) for i, ladder in enumerate(ladders)]
        return np.stack(columns, axis=1)

    def cost(self, ladders: Ladders) -> float:
        """The cost with these ladders."""
        return self._total(self.buckets(ladders))

    def _total(self, at: Ints) -> float:
        costs = self.costs[tuple(at.T)]
        return float(self.counts @ costs) if np.isfinite(costs).all() else math.inf


class Frontier:
    """The cheapest ladders found so far, by the number of graphs.

    Args:
        most: The greatest number of graphs.
    """

    def __init__(self, most: int) -> None:
        self._found: list[tuple[float, Ladders | None]] = [(math.inf, None)] * (most + 1)

    @property
    def most(self) -> int:
        """The greatest number of graphs."""
        return len(self._found) - 1

    def cost(self, graphs: int) -> float:
        """The least cost of at most so many graphs."""
        return self._found[graphs][0]

    def ladders(self, graphs: int) -> Ladders | None:
        """The ladders of that cost; None: none was found."""
        return self._found[graphs][1]

    def add(self, cost: float, ladders: Ladders, *, graphs: int) -> None:
        """Keep ladders where they are cheaper than what is known."""
        for number in range(graphs, self.most + 1):
            if cost < self._found[number][0]:
                self._found[number] = cost, ladders


@dataclasses.dataclass(frozen=True)
class Bound:
    """Lower bounds of the cost, by the number of graphs, and ladders that relax the problem.

    Attributes:
        costs: By the number of graphs; index 0 is infinite.
        excess: By symbol and number of graphs, a lower bound of the cost of its padding.
        starts: By symbol and number of buckets, the ladder of that cost.
    """

    costs: tuple[float, ...]
    excess: tuple[tuple[float, ...], ...]
    starts: tuple[tuple[tuple[int, ...], ...], ...]


def lower_bound(problem: Problem, most: int) -> Bound:
    """Bound the cost from below: each symbol has all the graphs for itself.

    k graphs use at most k buckets of each symbol. The best k buckets of one symbol are known if the
    others are not padded. The costs of all symbols add up if the cost of padding one symbol never
    falls as another one grows, as in a product of sizes; else the largest is the bound.
    """
    exact = problem.exact_cost
    excess: list[tuple[float, ...]] = []
    starts: list[tuple[tuple[int, ...], ...]] = []
    for axis in range(problem.symbols):
        solver = _OneSymbolSolver(problem, axis, ladders=None)
        found = list(itertools.accumulate(solver.solve(most), min))  # at most so many
        excess.append((math.inf, *(max(cost - exact, 0.0) for cost, _ in found)))
        starts.append(tuple(ladder for _, ladder in found))
    add = sum if _adds_up(problem.costs) else max
    costs = tuple(exact + add(parts) for parts in zip(*excess, strict=True))
    return Bound(costs, tuple(excess), tuple(starts))


def solve(problem: Problem, targets: Sequence[int], *, bound: Bound) -> tuple[Frontier, bool]:
    """Find the cheapest ladders.

    Args:
        problem: The requests.
        targets: The numbers of graphs that matter, ascending.
        bound: Of the problem.

    Returns:
        The ladders found, and whether they are proven to be the cheapest for all targets.
    """
    frontier = Frontier(targets[-1])
    largest = max(range(problem.symbols), key=lambda axis: problem.costs.shape[axis])
    others = [axis for axis in range(problem.symbols) if axis != largest]
    choices = [_count_ladders(problem, axis) for axis in others]
    _alternate(problem, targets, bound=bound, frontier=frontier)
    if math.prod(choices) > MOST_LADDERS:
        return frontier, False
    return frontier, _enumerate(problem, targets, bound=bound, axis=largest, frontier=frontier)


def _enumerate(
    problem: Problem, targets: Sequence[int], *, bound: Bound, axis: int, frontier: Frontier
) -> bool:
    """Try all ladders of all symbols but one; whether none is left that may be cheaper."""
    exact = problem.exact_cost
    adds_up = _adds_up(problem.costs)
    ranked: list[tuple[float, Ladders]] = []
    for ladders in _all_ladders(problem, axis):
        ranked.append((problem.cost(ladders) - exact, ladders))
    ranked.sort(key=lambda found: found[0])
    solved = 0
    for excess, ladders in ranked:
        own = bound.excess[axis]
        least = [exact + (excess + own[k] if adds_up else max(excess, own[k])) for k in targets]
        costs = [frontier.cost(k) for k in targets]
        if all(a >= b for a, b in zip(least, costs, strict=True)):
            continue
        if solved == MOST_SOLVED:
            return False
        solved += 1
        _improve(problem, axis, ladders=ladders, frontier=frontier)
    return True


def _alternate(
    problem: Problem, targets: Sequence[int], *, bound: Bound, frontier: Frontier
) -> None:
    """Improve one symbol after the other, from several starts, until none gets cheaper."""
    solved: set[tuple[int, Ladders]] = set()
    for target in targets:
        for count in (number for number in _STARTS if number <= target):
            starts = tuple(own[min(count, len(own)) - 1] for own in bound.starts)
            for first in range(problem.symbols) if all(starts) else ():
                ladders, axis = starts, first
                for _ in range(_MOST_ROUNDS * problem.symbols):
                    key = axis, ladders[:axis] + ladders[axis + 1 :]
                    if key in solved:
                        break
                    solved.add(key)
                    better = _improve(problem, axis, ladders=ladders, frontier=frontier).get(target)
                    if better is None:
                        break
                    ladders, axis = better, (axis + 1) % problem.symbols


def _improve(
    problem: Problem, axis: int, *, ladders: Ladders, frontier: Frontier
) -> dict[int, Ladders]:
    """Find the best ladders of one symbol for given ladders of the others, by number of graphs."""
    found: dict[int, Ladders] = {}
    least, known = math.inf, None
    for graphs, (cost, ladder) in enumerate(
        _OneSymbolSolver(problem, axis, ladders=ladders).solve(frontier.most), start=1
    ):
        if cost < least:
            least, known = cost, (*ladders[:axis], ladder, *ladders[axis + 1 :])
            frontier.add(cost, known, graphs=graphs)
        if known is not None:
            found[graphs] = known
    return found


class _OneSymbolSolver:
    """Dynamic programming over the candidates of one symbol.

    Args:
        problem: The requests.
        axis: The symbol.
        ladders: The ladders of the other symbols; its own entry is not read. None: the others are
            not padded, and each bucket that a request uses is one graph.
    """

    def __init__(self, problem: Problem, axis: int, *, ladders: Ladders | None) -> None:
        self._count = problem.costs.shape[axis]
        rest = [i for i in range(problem.symbols) if i != axis]
        raised = problem.at if ladders is None else problem.buckets(ladders)
        shape = [problem.costs.shape[i] for i in rest]
        flat = np.ravel_multi_index(tuple(raised[:, i] for i in rest), shape) if rest else 0
        cells, cell = np.unique(np.broadcast_to(flat, len(raised)), return_inverse=True)
        seen = np.zeros((self._count + 1, len(cells)))
        np.add.at(seen, (problem.at[:, axis] + 1, cell), problem.counts)
        costs = np.moveaxis(problem.costs, axis, 0).reshape(self._count, -1)[:, cells]
        fits = np.isfinite(costs)
        self._run = _runs(np.cumsum(seen, axis=0), np.where(fits, costs, 0.0))
        if not fits.all():
            occurs = np.zeros_like(seen)
            np.add.at(occurs, (problem.at[:, axis] + 1, cell), 1.0)
            outside = _runs(np.cumsum(occurs, axis=0), np.where(fits, 0.0, 1.0))
            self._run[outside > 0] = np.inf
        self._used = _used(seen[1:].sum(axis=1, keepdims=True) if ladders is None else seen[1:])
        must = sorted(problem.must[axis])
        for end in range(1, self._count + 1):
            inside = [index for index in must if index < end - 1]
            if inside:  # a run from at most there would pass it
                self._run[: inside[-1] + 1, end] = np.inf

    def solve(self, most: int) -> list[tuple[float, tuple[int, ...]]]:
        """The least cost and its ladder, for exactly 1 to `most` graphs; infinite if none fits."""
        n = self._count
        least = np.full((n + 1, most + 1), np.inf)
        least[0, 0] = 0.0
        start = np.zeros((n + 1, most + 1), np.intp)
        graphs = np.arange(most + 1)
        for end in range(1, n + 1):
            before = graphs[None, :] - self._used[:end, end, None]
            costs = np.take_along_axis(least[:end], before.clip(0), axis=1)
            costs = np.where(before >= 0, costs, np.inf) + self._run[:end, end, None]
            start[end] = costs.argmin(axis=0)
            least[end] = costs[start[end], graphs]
        return [
            (float(least[n, k]), self._ladder(start, k) if least[n, k] < np.inf else ())
            for k in range(1, most + 1)
        ]

    def _ladder(self, start: Ints, graphs: int) -> tuple[int, ...]:
        ladder: list[int] = []
        end = self._count
        while end:
            ladder.append(end - 1)
            begin = int(start[end, graphs])
            graphs -= int(self._used[begin, end])
            end = begin
        return tuple(ladder[::-1])


def _runs(seen: Floats, costs: Floats) -> Floats:
    """f64[n + 1, n + 1]: what the candidates i to j - 1 cost in the bucket j - 1."""
    n = len(costs)
    run = np.full((n + 1, n + 1), np.inf)
    inside = (costs * seen[1:]).sum(axis=1)[None, :] - seen[:-1] @ costs.T
    run[:-1, 1:] = np.where(np.tri(n, dtype=bool).T, inside, np.inf)
    return run


def _used(counts: Floats) -> Ints:
    """int[n + 1, n + 1]: how many graphs the candidates i to j - 1 use in one bucket."""
    n, cells = counts.shape
    last: Ints = np.zeros((n + 1, cells), np.intp)  # in which place from 1 on a cell occurs last
    for end in range(1, n + 1):
        last[end] = np.where(counts[end - 1] > 0, end, last[end - 1])
    return np.stack([np.count_nonzero(last > begin, axis=1) for begin in range(n + 1)])


def _raised(at: Ints, ladder: Iterable[int]) -> Ints:
    steps = np.asarray(tuple(ladder), np.intp)
    return steps[np.searchsorted(steps, at)]


def _count_ladders(problem: Problem, axis: int) -> int:
    return 1 << min(len(_free(problem, axis)), 62)


def _free(problem: Problem, axis: int) -> list[int]:
    """The candidates that may be buckets, and need not be."""
    last = problem.costs.shape[axis] - 1
    return [index for index in range(last) if index not in problem.must[axis]]


def _all_ladders(problem: Problem, axis: int) -> Iterator[Ladders]:
    """All ladders of all symbols but one, whose own has every candidate."""
    choices: list[list[tuple[int, ...]]] = []
    for other, count in enumerate(problem.costs.shape):
        if other == axis:
            choices.append([tuple(range(count))])
            continue
        free, always = _free(problem, other), {*problem.must[other], count - 1}
        chosen = itertools.chain.from_iterable(
            itertools.combinations(free, number) for number in range(len(free) + 1)
        )
        choices.append([tuple(sorted({*always, *some})) for some in chosen])
    yield from itertools.product(*choices)


def _adds_up(costs: NDArray[np.float64]) -> bool:
    """Whether the cost of padding one symbol never falls as another one grows."""
    for a, b in itertools.combinations(range(costs.ndim), 2):
        beyond = [slice(1, None) if axis in (a, b) else slice(None) for axis in range(costs.ndim)]
        rounding = 1e-12 * costs[tuple(beyond)]  # of the greatest of the four costs, not of all
        with np.errstate(invalid="ignore"):  # ladders that fit never meet what is infinite
            falls = np.diff(np.diff(costs, axis=a), axis=b) < -rounding
        if falls.any():
            return False
    return True
