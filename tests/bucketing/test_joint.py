"""Ladders of several symbols against brute force, and what holds of every fit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec.bucketing import Ladder, _fit_joint, _joint
from shapeexec.bucketing._fit_joint import Cost, Limits, fit_requests
from shapeexec.bucketing._requests import read_requests

COSTS = {
    "product": lambda b, s: b * s,
    "attention": lambda b, s: b * (10 * s + s**2) + 7,
    "sum": lambda b, s: 3 * b + s,
    "greater": lambda b, s: np.maximum(2 * b, s),  # padding one makes the other free
}
EXACTNESS = 1e-9  # sums of floats in another order

sizes_of_two = st.dictionaries(
    st.tuples(st.integers(1, 6), st.integers(1, 12)), st.integers(1, 9), min_size=1, max_size=9
)
every_cost = pytest.mark.parametrize("name", COSTS)


def limits(graphs, **options):
    given = {"is_chosen": False, "multiple_of": {}, "must": {}} | options
    return Limits(graphs=graphs, **given)


def fitted(counts, name, graphs, **options):
    requests = read_requests(counts, ("b", "s"))
    cost = Cost(lambda sizes: np.asarray(COSTS[name](**sizes), float))
    return fit_requests(requests, cost, limits=limits(graphs, **options))


def measured(ladders, counts, name):
    """The cost, and the number of graphs, of a ladder of `b` and one of `s`."""
    cells = {
        sizes: tuple(ladder.bucket(size) for ladder, size in zip(ladders, sizes, strict=True))
        for sizes in counts
    }
    cost = sum(count * float(COSTS[name](*cells[sizes])) for sizes, count in counts.items())
    return cost, len(set(cells.values()))


def ladders_of(sizes, must=()):
    """All ladders that end at the greatest size and have the buckets that must be there."""
    *inner, last = sorted({*sizes, *must})
    for number in range(len(inner) + 1):
        for chosen in itertools.combinations(inner, number):
            if {*must} <= {*chosen, last}:
                yield Ladder([*chosen, last])


def brute_force(counts, name, graphs, must=()):
    """The least cost of at most so many graphs."""
    batches, lengths = ({sizes[i] for sizes in counts} for i in (0, 1))
    pairs = itertools.product(ladders_of(batches), ladders_of(lengths, must))
    found = (measured(pair, counts, name) for pair in pairs)
    return min((cost for cost, used in found if used <= graphs), default=None)


@pytest.mark.parametrize("alternates", [True, False])
@every_cost
@settings(max_examples=10)
@given(counts=sizes_of_two, graphs=st.integers(1, 6))
def test_no_ladders_are_cheaper_than_the_fitted_ones(name, alternates, counts, graphs):
    with pytest.MonkeyPatch.context() as patch:
        if not alternates:  # which leaves all the work to the bounds
            patch.setattr(_joint, "_alternate", lambda *_, **__: None)
        fit = fitted(counts, name, graphs)
    cost, used = measured(fit.strategies.values(), counts, name)
    assert used == fit.graphs <= graphs
    assert cost == pytest.approx(fit.cost, rel=EXACTNESS)
    assert fit.is_optimal
    assert cost == pytest.approx(brute_force(counts, name, graphs), rel=EXACTNESS)


@every_cost
@settings(max_examples=15)
@given(counts=sizes_of_two, graphs=st.integers(1, 4))
def test_a_bound_by_one_symbol_at_a_time_is_below_every_cost(name, counts, graphs):
    batches, lengths = (sorted({sizes[i] for sizes in counts}) for i in (0, 1))
    at = np.array([[batches.index(b), lengths.index(s)] for b, s in counts])
    costs = np.array([[float(COSTS[name](b, s)) for s in lengths] for b in batches])
    weights = np.array(list(counts.values()), float)
    problem = _joint.Problem(at, weights, costs, (frozenset(), frozenset()))
    bound = _joint.lower_bound(problem, graphs).costs[graphs]
    assert bound <= brute_force(counts, name, graphs) * (1 + EXACTNESS)


@settings(max_examples=12)
@given(counts=sizes_of_two, graphs=st.integers(4, 8), must=st.sets(st.integers(1, 12), max_size=2))
def test_buckets_that_must_be_there_are_and_nothing_allowed_is_cheaper(counts, graphs, must):
    must = sorted(bucket for bucket in must if bucket <= max(s for _, s in counts))
    fit = fitted(counts, "attention", graphs, must={"s": tuple(must)})
    assert {*must} <= {*fit.strategies["s"].buckets}
    least = brute_force(counts, "attention", graphs, must)
    assert fit.cost == pytest.approx(least, rel=EXACTNESS)


@pytest.mark.parametrize("enumerated", [True, False])
@every_cost
@settings(max_examples=10)
@given(counts=sizes_of_two)
def test_more_graphs_never_cost_more_and_no_bound_is_above_the_cost(name, enumerated, counts):
    with pytest.MonkeyPatch.context() as patch:
        if not enumerated:  # as where there are too many ladders
            patch.setattr(_joint, "MOST_LADDERS", 0)
        fits = [fitted(counts, name, graphs) for graphs in (1, 2, 3, 5, 8)]
    costs = [fit.cost for fit in fits]
    assert costs == sorted(costs, reverse=True)
    for graphs, fit in zip((1, 2, 3, 5, 8), fits, strict=True):
        least = brute_force(counts, name, graphs)
        assert fit.exact_cost <= fit.lower_bound * (1 + EXACTNESS)
        assert fit.lower_bound <= least * (1 + EXACTNESS)
        assert least <= fit.cost * (1 + EXACTNESS)


@pytest.mark.parametrize("most", [3, 5])
@settings(max_examples=15)
@given(counts=sizes_of_two, graphs=st.integers(1, 6))
def test_the_bound_holds_where_sizes_share_candidates(most, counts, graphs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fit_joint, "_MOST_CANDIDATES", {2: most})
        fit = fitted(counts, "attention", graphs)
    cost, used = measured(fit.strategies.values(), counts, "attention")
    assert used == fit.graphs <= graphs
    assert cost == pytest.approx(fit.cost, rel=EXACTNESS)
    least = brute_force(counts, "attention", graphs)
    assert fit.lower_bound <= least * (1 + EXACTNESS)
    assert least <= fit.cost * (1 + EXACTNESS)


@given(counts=st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=9))
def test_a_fit_of_one_symbol_is_the_fitted_ladder(counts):
    requests = read_requests(counts, ("s",))
    cost = Cost(lambda sizes: sizes["s"].astype(float))
    for graphs in (1, 3, 9):
        fit = fit_requests(requests, cost, limits=limits(graphs))
        assert fit.strategies == {"s": Ladder.fit(counts, graphs)}
        assert fit.is_optimal
        assert fit.waste == pytest.approx(fit.strategies["s"].expected_waste(counts), abs=EXACTNESS)


@given(
    counts=st.dictionaries(st.integers(1, 30), st.integers(1, 9), min_size=1, max_size=7),
    must=st.sets(st.integers(1, 30), max_size=3),
    graphs=st.integers(5, 7),
)
def test_buckets_of_one_symbol_that_must_be_there_cost_the_least_they_can(counts, must, graphs):
    must = tuple(bucket for bucket in sorted(must) if bucket <= max(counts))
    requests = read_requests(counts, ("s",))
    cost = Cost(lambda sizes: sizes["s"].astype(float))
    fit = fit_requests(requests, cost, limits=limits(graphs, must={"s": must}))
    allowed = [each for each in ladders_of(counts, must) if len(each.buckets) <= graphs]
    least = min(sum(n * each.bucket(size) for size, n in counts.items()) for each in allowed)
    assert {*must} <= {*fit.strategies["s"].buckets}
    assert fit.cost == least


def test_three_symbols_are_fitted_together():
    cost = Cost(lambda sizes: (sizes["a"] * sizes["b"] * sizes["c"]).astype(float))
    points = [(a, b, c) for a in (1, 2) for b in (3, 9) for c in (5, 50)]
    requests = read_requests(points, ("a", "b", "c"))
    fit = fit_requests(requests, cost, limits=limits(8))
    assert fit.waste == 0
    assert {symbol: each.buckets for symbol, each in fit.strategies.items()} == {
        "a": (1, 2),
        "b": (3, 9),
        "c": (5, 50),
    }
    one = fit_requests(requests, cost, limits=limits(2))
    assert one.strategies["c"] == Ladder([5, 50])
    assert one.is_optimal
