"""The dynamic program of `Ladder.fit`: from sizes, counts and costs to the cheapest buckets.

Strategies are not known here.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shapeexec._errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_COSTS: dict[str, Callable[[int], float]] = {
    "linear": float,
    "quadratic": lambda bucket: float(bucket) ** 2,
}


def costs_of(sizes: Sequence[int], cost: object) -> Floats:
    """Evaluate a cost at ascending sizes.

    Raises:
        ConfigError: `cost` is neither a known name nor a function, or the function returns
            something other than a finite number, or a smaller cost for a larger bucket.
    """
    function = _COSTS.get(cost) if isinstance(cost, str) else cost
    if not callable(function):
        raise ConfigError(
            f"cost={cost!r} is not a cost.",
            option="cost",
            fix='"linear", "quadratic", or a function from bucket to cost',
        )
    costs = np.array([_cost_at(size, function) for size in sizes])
    falls = np.flatnonzero(np.diff(costs) < 0)
    if falls.size:
        first = int(falls[0])
        raise ConfigError(
            "cost falls as the bucket grows.",
            option="cost",
            got=f"cost({sizes[first]}) = {costs[first]}, yet "
            f"cost({sizes[first + 1]}) = {costs[first + 1]}",
            fix="pass a cost that never falls, such as the running maximum of a measured one",
        )
    return costs


def _cost_at(size: int, function: Callable[[int], object]) -> float:
    value = function(size)
    try:
        cost = float(value)  # pyright: ignore[reportArgumentType] - TypeError is the check
    except (TypeError, ValueError):
        cost = math.nan
    if not math.isfinite(cost):
        raise ConfigError(
            f"cost({size}) = {value!r} is not a finite number.",
            option="cost",
            fix="return a finite number for each bucket",
        )
    return cost


def cheapest_buckets(counts: Mapping[int, float], costs: Floats, *, graphs: int) -> list[int]:
    """Choose at most `graphs` of the sizes as buckets, at the least total cost.

    Args:
        counts: How often each size occurs, by ascending size.
        costs: f64[n], the cost of a call at each size; never falls.
        graphs: The maximal number of buckets, at least 1.

    Returns:
        The buckets, ascending; the last is the largest size.
    """
    sizes, n = list(counts), len(counts)
    if graphs >= n and all(counts.values()) and bool(np.all(np.diff(costs) > 0)):
        return sizes
    ladders = cheapest_ladders(np.array(list(counts.values()), float), costs, graphs=graphs)
    best = min(ladders, key=lambda ladder: ladder[0])  # the first of equal ones is the shortest
    return [sizes[index] for index in best[1]]


def cheapest_ladders(
    counts: Floats,
    costs: Floats,
    *,
    graphs: int,
    must: Sequence[int] = (),
    prices: Floats | float = 0.0,
) -> list[tuple[float, list[int]]]:
    """Find the cheapest ladder of each number of buckets.

    The cost never falls, so each bucket can be the largest size in it. So a ladder splits the
    ascending sizes into runs; the run of the sizes i to j - 1 costs

        run(i, j) = costs[j - 1] * (seen[j] - seen[i]),    seen[i] = calls at the first i sizes.

    Let `least[j]` be the least cost of the first `j` sizes in k runs. In k + 1 runs it is the
    minimum over i < j of `least[i] + run(i, j)`. The quadrangle inequality holds: for a <= b < c
    <= d

        run(a, c) + run(b, d) - run(a, d) - run(b, c) =
            (costs[c - 1] - costs[d - 1]) * (seen[b] - seen[a]) <= 0.

    Hence the best i never decreases as j grows, and divide and conquer over j takes `n log n` steps
    per bucket instead of `n**2`. A bucket that must be there ends a run: a run across it pays more
    than any ladder costs, once for each, which leaves the inequality as it is. A price of a bucket
    is the same for all i, and changes no best i.

    Args:
        counts: f64[n], how often each size occurs, by ascending size.
        costs: f64[n], the cost of a call at each size; never falls.
        graphs: The maximal number of buckets, at least 1.
        must: Indices of sizes that are buckets in any case.
        prices: f64[n], what each size costs once if it is a bucket; infinite: it is none.

    Returns:
        For 1 to `graphs` buckets, n at most, the total cost, infinite where `must` has more, and
        the buckets as indices, ascending; the last is the largest size.

    Source:
        F. F. Yao, "Efficient dynamic programming using quadrangle inequalities", STOC 1980;
        Z. Galil and K. Park, "Dynamic programming with convexity, concavity and sparsity",
        Theoretical Computer Science 92, 1992.
    """
    n = len(counts)
    seen = np.concatenate([[0.0], np.cumsum(counts)])
    ends = np.zeros(n)
    ends[[*must]] = 1.0
    passed = np.concatenate([[0.0], np.cumsum(ends)])
    fine = 1.0 + 2.0 * float(seen[-1] * np.abs(costs).max())
    least = np.full(n + 1, np.inf)
    least[0] = 0.0
    starts: list[Ints] = []
    found: list[tuple[float, list[int]]] = []
    for _ in range(min(graphs, n)):
        least, start = _add_run(least, seen=seen, costs=costs, passed=passed * fine)
        least[1:] += prices
        starts.append(start)
        end, buckets = n, list[int]()
        for each in reversed(starts):
            buckets.append(end - 1)
            end = int(each[end])
        is_allowed = set(must) <= set(buckets)
        found.append((float(least[n]) if is_allowed else math.inf, buckets[::-1]))
    return found


def _add_run(least: Floats, *, seen: Floats, costs: Floats, passed: Floats) -> tuple[Floats, Ints]:
    """Find the cheapest start of one more run for the first j sizes, for all j, and its cost.

    In each level, every j halfway between two solved ones searches only between their starts. A
    level has about n candidates, which are evaluated at once.
    """
    n = len(costs)
    longer, start = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.intp)
    step = 1 << n.bit_length()
    while step := step // 2:
        ends = np.arange(step, n + 1, 2 * step)
        low = start[ends - step]
        after = ends + step
        high = np.where(after <= n, start[np.minimum(after, n)], n)
        widths = np.minimum(high, ends - 1) - low + 1
        offsets = np.cumsum(widths) - widths
        run = np.repeat(np.arange(len(ends)), widths)
        candidates: Ints = np.arange(int(widths.sum())) - offsets[run] + low[run]
        cost = least[candidates] + costs[ends - 1][run] * (seen[ends][run] - seen[candidates])
        cost += passed[ends - 1][run] - passed[candidates]
        longer[ends] = np.minimum.reduceat(cost, offsets)
        is_best = np.flatnonzero(cost == longer[ends][run])
        leftmost = is_best[np.searchsorted(is_best, offsets)]
        start[ends] = candidates[leftmost]
    return longer, start
