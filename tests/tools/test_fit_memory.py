"""`sx.fit` under `max_memory`: no graph that runs needs more, and no such ladders are cheaper."""

import itertools
import math

import numpy as np
import pytest

import shapeexec as sx
from tests.tools.test_fit import area, called

LONG_OR_WIDE = [(1, 2048), (1, 1500), (64, 16), (60, 20), (8, 128)]


@pytest.mark.parametrize("graphs", [2, 3, 5])
def test_no_graph_that_runs_needs_more_memory_than_there_is(graphs):
    free = sx.fit(None, LONG_OR_WIDE, graphs=graphs, cost=constant_cost)
    limited = {"max_memory": 3000, "memory": area}
    if graphs == 2:
        with pytest.raises(sx.ConfigError) as caught:
            sx.fit(None, LONG_OR_WIDE, graphs=2, cost=constant_cost, **limited)
        assert caught.value.what == "graphs=2: no ladders were found that keep to max_memory=3000."
        assert caught.value.fix == "a larger graphs= or max_memory=, or fewer buckets in must="
        return
    found = sx.fit(None, LONG_OR_WIDE, graphs=graphs, cost=constant_cost, **limited)
    assert max(area(**row.buckets) for row in found.rows) <= 3000
    assert max(area(**row.buckets) for row in free.rows) > 3000


def constant_cost(b, s):
    return 1.0


def test_memory_is_that_of_the_cost_model_where_no_function_tells_it():
    model = called().cost_model()
    needed = [model(**row.buckets).memory for row in fit_of(model).rows]
    found = fit_of(model, max_memory=max(needed) - 1)
    assert max(model(**row.buckets).memory for row in found.rows) < max(needed)
    assert fit_of(model, max_memory=max(needed)) == fit_of(model)


def fit_of(model, **options):
    return sx.fit(model, [(1, 90), (8, 10), (8, 12)], graphs=2, cost=constant_cost, **options)


def test_requests_that_are_counted_zero_times_fit_into_memory_too():
    counts = {(1, 2048): 0, (64, 16): 3, (1, 16): 1}
    found = sx.fit(None, counts, graphs=3, cost=area, max_memory=2048, memory=area)
    strategies = found.strategies
    assert strategies["b"].bucket(1) * strategies["s"].bucket(2048) <= 2048


@pytest.mark.parametrize("seed", range(3))
def test_ladders_that_keep_to_a_memory_are_the_cheapest_that_there_are(seed):
    random = np.random.default_rng(seed)
    sizes = [tuple(map(int, random.integers(1, 7, 2))) for _ in range(6)]
    most = max(b * s for b, s in sizes) + int(random.integers(0, 6))
    best = min(_costs_within(sizes, graphs=4, most=most), default=math.inf)
    try:
        cost = sx.fit(None, sizes, graphs=4, cost=area, max_memory=most, memory=area).cost
    except sx.ConfigError:
        cost = math.inf
    assert cost == best


def _costs_within(sizes, *, graphs, most):
    """What requests cost in all ladders whose graphs are few, and small enough."""
    values = [sorted(set(column)) for column in zip(*sizes, strict=True)]
    for chosen in itertools.product(*map(_ladders, values)):
        placed = [
            tuple(min(x for x in own if x >= n) for own, n in zip(chosen, size, strict=True))
            for size in sizes
        ]
        if len(set(placed)) <= graphs and max(b * s for b, s in placed) <= most:
            yield sum(b * s for b, s in placed)


def _ladders(values):
    for count in range(len(values)):
        for some in itertools.combinations(values[:-1], count):
            yield (*some, values[-1])
