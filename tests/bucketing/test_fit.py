"""The fitted ladder against brute force, on a real-looking histogram, and its errors."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing import Ladder, Linear, Pow2

COSTS = {
    "linear": float,
    "quadratic": lambda bucket: float(bucket**2),
    "tiles": lambda bucket: float(-(-bucket // 8)),
    "constant": lambda bucket: 1.0,
}
NAMED = ("linear", "quadratic")


def total(ladder, counts, cost):
    return sum(count * cost(ladder.bucket(size)) for size, count in counts.items())


def brute_force(counts, graphs, cost):
    """The least total cost over all ladders of the given sizes that reach the largest."""
    *inner, last = sorted(counts)
    return min(
        total(Ladder([*chosen, last]), counts, cost)
        for k in range(min(graphs, len(counts)))
        for chosen in itertools.combinations(inner, k)
    )


histograms = st.dictionaries(st.integers(1, 60), st.integers(0, 9), min_size=1, max_size=9).filter(
    lambda counts: any(counts.values())
)


@pytest.mark.parametrize("name", COSTS)
@settings(deadline=None)
@given(counts=histograms, graphs=st.integers(1, 10))
def test_no_ladder_is_cheaper_than_the_fitted_one(name, counts, graphs):
    ladder = Ladder.fit(counts, graphs, cost=name if name in NAMED else COSTS[name])
    assert len(ladder.buckets) <= graphs
    assert ladder.buckets[-1] == max(counts)
    assert total(ladder, counts, COSTS[name]) == brute_force(counts, graphs, COSTS[name])


@pytest.mark.parametrize("name", COSTS)
@settings(deadline=None)
@given(counts=histograms)
def test_of_equally_cheap_ladders_the_shortest_is_fitted(name, counts):
    ladder = Ladder.fit(counts, 20, cost=COSTS[name])
    if len(ladder.buckets) > 1:
        fewer = brute_force(counts, len(ladder.buckets) - 1, COSTS[name])
        assert fewer > total(ladder, counts, COSTS[name])


@pytest.mark.parametrize(
    "call",
    [
        lambda sizes: Ladder.fit(sizes, graphs=5),
        lambda sizes: Ladder.fit(np.array(sizes), graphs=5),
        lambda sizes: Ladder.fit(iter(sizes), graphs=5),
        lambda sizes: Ladder.fit({size: sizes.count(size) for size in sizes}, graphs=5),
        lambda sizes: Ladder.fit({size: sizes.count(size) / 8 for size in sizes}, graphs=5),
        lambda sizes: Ladder.fit(sizes, graphs=5, cost=lambda bucket: bucket),
        lambda sizes: Ladder.fit(sizes, graphs=5, cost=np.float32),
    ],
)
def test_sizes_and_counts_of_sizes_and_equal_costs_give_the_same_ladder(call):
    generator = random.Random(0)
    sizes = [generator.randrange(1, 500) for _ in range(300)]
    assert call(sizes) == Ladder.fit(sizes, 5)


def quadratic_program(counts, graphs):
    """The least sum of buckets, by the plain dynamic program over all pairs."""
    sizes = np.array(sorted(counts))
    seen = np.concatenate([[0], np.cumsum([counts[int(size)] for size in sizes])])
    least = np.where(np.arange(len(seen)) == 0, 0.0, np.inf)
    runs = np.concatenate([[0], sizes])[None, :] * (seen[None, :] - seen[:, None])
    runs = np.where(np.tri(len(seen), k=0, dtype=bool), np.inf, runs)
    best = np.inf
    for _ in range(graphs):
        least = np.min(least[:, None] + runs, axis=0)
        best = min(best, least[-1])
    return best


@pytest.mark.parametrize("graphs", [1, 2, 7, 16])
def test_a_fit_of_many_sizes_is_as_cheap_as_the_plain_program(graphs):
    generator = random.Random(graphs)
    sizes = [1 + int(generator.lognormvariate(5.5, 1)) for _ in range(2000)]
    counts = {size: sizes.count(size) for size in set(sizes)}
    assert len(counts) > 400
    ladder = Ladder.fit(counts, graphs)
    assert total(ladder, counts, float) == quadratic_program(counts, graphs)


# Request lengths of a long-tailed kind: how many requests of 1000 have up to so many tokens.
LENGTHS = {40: 30, 90: 70, 180: 160, 350: 210, 610: 150, 1010: 170, 1500: 90, 2300: 70, 4100: 50}


def test_a_fitted_ladder_wastes_less_than_powers_of_two_and_than_even_steps():
    counts = {size - 3 * k: n for size, n in LENGTHS.items() for k in range(10)}
    fitted = Ladder.fit(counts, graphs=9)
    assert fitted.expected_waste(counts) < 0.05
    assert Pow2().expected_waste(counts) > 0.2
    assert len({Pow2().bucket(size) for size in counts}) >= 8
    assert Linear(4100 // 9 + 1).expected_waste(counts) > 0.2


def test_a_ladder_reaches_a_size_of_count_zero():
    ladder = Ladder.fit({10: 5, 20: 5, 100: 0}, graphs=3)
    assert ladder == Ladder([10, 20, 100])
    assert Ladder.fit({10: 5, 20: 5, 100: 0}, graphs=1) == Ladder([100])
    with pytest.raises(BucketOverflowError):
        ladder.bucket(101)


def test_as_many_graphs_as_sizes_leave_no_padding():
    assert Ladder.fit([5, 3, 9], graphs=1000) == Ladder([3, 5, 9])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: Ladder.fit([1], 0),
            "graphs=0 is not an integer of at least 1.\n  Fix:   pass graphs as an int, 1 or more",
        ),
        (
            lambda: Ladder.fit([]),
            "sizes is empty: no size was seen.\n  Fix:   pass at least one size",
        ),
        (
            lambda: Ladder.fit([3, 0]),
            "size=0 is not an integer of at least 1.\n  Fix:   pass size as an int, 1 or more",
        ),
        (
            lambda: Ladder.fit([1], cost="cubic"),
            "cost='cubic' is not a cost.\n"
            '  Fix:   "linear", "quadratic", or a function from bucket to cost',
        ),
        (
            lambda: Ladder.fit([1], cost=3),
            "cost=3 is not a cost.\n"
            '  Fix:   "linear", "quadratic", or a function from bucket to cost',
        ),
        (
            lambda: Ladder.fit([1, 2, 5], cost=lambda bucket: -bucket),
            "cost falls as the bucket grows.\n"
            "  Got:   cost(1) = -1.0, yet cost(2) = -2.0\n"
            "  Fix:   pass a cost that never falls, such as the running maximum of a measured one",
        ),
        (
            lambda: Ladder.fit([7], cost=lambda bucket: math.nan),
            "cost(7) = nan is not a finite number.\n"
            "  Fix:   return a finite number for each bucket",
        ),
        (
            lambda: Ladder.fit([7], cost=lambda bucket: None),
            "cost(7) = None is not a finite number.\n"
            "  Fix:   return a finite number for each bucket",
        ),
    ],
)
def test_an_argument_that_cannot_work_is_told_with_a_way_out(call, text):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == text
