"""Ladders of several symbols against brute force, and what holds of every fit."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shapeexec as sx
from shapeexec._errors import ConfigError
from shapeexec.bucketing import Ladder, _fit_joint, _joint
from shapeexec.bucketing._fit_joint import Cost, Limits, fit_requests
from shapeexec.bucketing._requests import read_requests

COSTS = {
    "product": lambda b, s: b * s,
    "attention": lambda b, s: b * (10 * s + s**2) + 7,
    "sum": lambda b, s: 3 * b + s,
    "greater": lambda b, s: np.maximum(2 * b, s),  # padding one makes the other free
    "capped": lambda b, s: b * np.minimum(s, 7),  # padding beyond the cap is free
}
EXACTNESS = 1e-9  # sums of floats in another order

sizes_of_two = st.dictionaries(
    st.tuples(st.integers(1, 6), st.integers(1, 12)), st.integers(0, 9), min_size=1, max_size=9
).filter(lambda counts: any(counts.values()))
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
        if counts[sizes]
    }
    cost = sum(counts[sizes] * float(COSTS[name](*cell)) for sizes, cell in cells.items())
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
@example(counts={(1, 10): 2, (4, 12): 0}, graphs=1)  # a bucket without requests is no graph
def test_a_bound_by_one_symbol_at_a_time_is_below_every_cost(name, counts, graphs):
    batches, lengths = (sorted({sizes[i] for sizes in counts}) for i in (0, 1))
    at = np.array([[batches.index(b), lengths.index(s)] for b, s in counts])
    costs = np.array([[float(COSTS[name](b, s)) for s in lengths] for b in batches])
    weights = np.array(list(counts.values()), float)
    problem = _joint.Problem(at, weights, costs, (frozenset(), frozenset()))
    bound = _joint.lower_bound(problem, graphs).costs[graphs]
    assert bound <= brute_force(counts, name, graphs) * (1 + EXACTNESS)


@settings(max_examples=12)
@given(counts=sizes_of_two, graphs=st.integers(1, 8), must=st.sets(st.integers(1, 12), max_size=2))
def test_buckets_that_must_be_there_are_and_nothing_allowed_is_cheaper(counts, graphs, must):
    must = sorted(bucket for bucket in must if bucket <= max(s for _, s in counts))
    least = brute_force(counts, "attention", graphs, must)
    if least is None:
        with pytest.raises(ConfigError, match=f"graphs={graphs} are too few for the buckets that"):
            fitted(counts, "attention", graphs, must={"s": tuple(must)})
        return
    fit = fitted(counts, "attention", graphs, must={"s": tuple(must)})
    assert {*must} <= {*fit.strategies["s"].buckets}
    assert fit.cost == pytest.approx(least, rel=EXACTNESS)
    assert fit.is_optimal


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


@pytest.mark.parametrize("most", [2, 3, 5])
@every_cost
@settings(max_examples=10)
@given(counts=sizes_of_two, graphs=st.integers(1, 6))
@example(counts={(1, 5): 2, (6, 7): 4, (3, 12): 7}, graphs=2)  # sharing costs a graph
def test_the_bound_holds_where_sizes_share_candidates(name, most, counts, graphs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fit_joint, "_MOST_CANDIDATES", {2: most})
        fit = fitted(counts, name, graphs)
    cost, used = measured(fit.strategies.values(), counts, name)
    assert used == fit.graphs <= graphs
    assert cost == pytest.approx(fit.cost, rel=EXACTNESS)
    least = brute_force(counts, name, graphs)
    assert fit.lower_bound <= least * (1 + EXACTNESS)
    assert least <= fit.cost * (1 + EXACTNESS)


def test_ladders_of_shared_candidates_are_told_no_optimum_where_others_are_cheaper():
    counts = {(5, 57): 5, (5, 16): 1, (5, 58): 1, (26, 1): 5, (19, 52): 1, (26, 15): 1}
    counts |= {(26, 1000 * i): 5 for i in range(1, 156)}  # one more size than there are candidates
    cost = Cost(lambda sizes: (sizes["b"] * np.minimum(sizes["s"], 999)).astype(float))
    fit = fit_requests(read_requests(counts, ("b", "s")), cost, limits=limits(3))
    cells = {
        sizes: (Ladder([19, 26]).bucket(sizes[0]), Ladder([15, 58, 155000]).bucket(sizes[1]))
        for sizes in counts
    }
    least = sum(
        count * cells[sizes][0] * min(cells[sizes][1], 999) for sizes, count in counts.items()
    )
    assert len(set(cells.values())) == 3
    assert fit.lower_bound <= least < fit.cost
    assert not fit.is_optimal


@every_cost
@settings(max_examples=10)
@given(counts=sizes_of_two, waste=st.sampled_from([0.0, 0.05, 0.2, 0.5]))
def test_a_number_of_graphs_that_was_not_compared_is_told_no_optimum(name, counts, waste):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fit_joint, "_COMPARED", ())
        patch.setattr(_joint, "_alternate", lambda *_, **__: None)
        fit = fitted(counts, name, 9, is_chosen=True, max_waste=waste)
    assert fit.lower_bound <= brute_force(counts, name, fit.graphs) * (1 + EXACTNESS)


def test_a_cost_that_adds_up_only_beside_a_huge_one_does_not_add_up():
    costs = np.array([[2.0, 3.0, 4.0], [3.0, 3.0, 4.0], [4.0, 4.0, 1e12]])
    assert not _joint._adds_up(costs)
    assert _joint._adds_up(np.outer([0.1, 0.3, 1e9], [0.7, 1.1, 3e9]))


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


@pytest.mark.parametrize("chosen", [{"graphs": 10**12}, {"max_graphs": 10**12, "max_waste": 0.0}])
@pytest.mark.parametrize(
    ("sizes", "cost"),
    [([5, 9, 9], lambda s: s), ([(3, 5), (4, 9), (3, 9)], lambda b, s: b * s)],
    ids=["one symbol", "two symbols"],
)
def test_more_graphs_than_requests_can_use_take_no_memory(chosen, sizes, cost):
    found = sx.fit(None, sizes, cost=cost, **chosen)
    assert found.waste == 0
    assert found.by_graphs[10**12] == found.cost
