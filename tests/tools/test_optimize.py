"""`sx.optimize`: each kind of change, what it says, and what it refuses."""

import numpy as np
import pytest

import shapeexec as sx

SIZES = {10: 20, 11: 20, 40: 20, 100: 20}


def double(x):  # x: f32[s]
    return x * 2


def length(s):
    return float(s)


def rows(b):
    return float(b)


def run_of(buckets):
    return sx.Exec(double, ("s",), buckets=buckets)


def found(buckets=(10, 11, 100), **options):
    return sx.optimize(
        run_of([*buckets]),
        options.pop("sizes", SIZES),
        **({"cost": length, "graph_cost": 50.0} | options),
    )


CASES = [
    ("merge", {"split": 1}, ["merge s bucket 10: cost +20, graphs -1"], [11, 100]),
    ("nothing merged", {"merge": False, "split": 1}, [], [10, 11, 100]),
    ("dear padding", {"graph_cost": 19.0, "split": 1}, [], [10, 11, 100]),
    ("split", {"merge": False}, ["split s at 40: cost -1.2e+03, graphs +1"], [10, 11, 40, 100]),
    ("too dear to split", {"merge": False, "graph_cost": 1201.0}, [], [10, 11, 100]),
    ("little waste", {"merge": False, "split": 0.31}, [], [10, 11, 100]),
    (
        "remove",
        {"remove": 0.26, "merge": False, "split": 1},
        ["remove s bucket 10: cost +20, graphs -1"],
        [11, 100],
    ),
    ("none rare", {"remove": 0.25, "merge": False, "split": 1}, [], [10, 11, 100]),
]


@pytest.mark.parametrize(
    ("options", "changes", "ladder"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_change_is_made_where_it_pays_and_told(options, changes, ladder):
    result = found(**options)
    assert [*map(str, result.changes)] == changes
    assert result.strategies == {"s": sx.Ladder(ladder)}


def test_the_changes_add_up_to_the_costs_before_and_after():
    result = found(buckets=(1, 2, 3, 10, 11, 100), sizes={n: 3 for n in range(1, 101)})
    assert result.before.cost + sum(c.cost for c in result.changes) == result.fitted.cost
    assert result.before.graphs + sum(c.graphs for c in result.changes) == result.fitted.graphs
    assert {c.kind for c in result.changes} == {"merge", "split"}
    assert result.fitted.lower_bound <= result.fitted.cost


def test_several_symbols_share_the_graphs():
    run = sx.Exec(lambda x: x * 2, ("b, s",), buckets={"b": sx.Exact(), "s": sx.Exact()})
    sizes = {(1, 10): 5, (2, 10): 5, (1, 90): 5, (2, 90): 5}
    result = sx.optimize(run, sizes, cost=lambda b, s: float(b * s), graph_cost=300.0, split=1)
    assert [*map(str, result.changes)] == ["merge b bucket 1: cost +500, graphs -2"]
    assert (result.before.graphs, result.fitted.graphs) == (4, 2)


def test_the_calls_that_were_seen_and_the_seconds_of_a_graph_are_the_defaults():
    run = run_of([4, 5, 100])
    for size in (3, 5, 5, 90, 0):
        run(np.ones(size, np.float32))
    speed = sx.Speed(seconds_per_flop=1e-9, seconds_per_byte=1e-9)
    result = sx.optimize(run, speed=speed)
    assert result.before.requests == 4  # an empty axis needs no bucket
    assert [change.kind for change in result.changes] == ["merge", "merge"]
    assert result.strategies == {"s": sx.Ladder([100])}
    other = run.variant(buckets=result.strategies)
    for size in (3, 5, 90):
        other(np.ones(size, np.float32))
    assert other.stats.compiles == result.fitted.graphs == 1


def test_calls_before_a_symbol_was_found_cannot_be_improved():
    run = sx.Exec(double)
    run(np.ones(3, np.float32))
    with pytest.raises(sx.ConfigError, match="has seen no call whose sizes have buckets") as caught:
        sx.optimize(run, cost=rows, graph_cost=1.0)
    assert caught.value.got == "1 calls, in_shapes=(None,)"


def test_what_was_improved_prints():
    assert str(found()) == (
        "80 requests: cost 4420 to 3240, padding 27.1% to 0.6%, 3 to 3 graphs\n"
        "  merge s bucket 10: cost +20, graphs -1\n"
        "  split s at 40: cost -1.2e+03, graphs +1\n"
        "  s: Ladder([11, 40, 100])"
    )


ERRORS = [
    ({"run": 3}, "optimize: 3 is not an Exec, and has no buckets.", r"sx.optimize\(run\)"),
    ({"run": run_of(8)}, "has seen no call.", "or call run first"),
    ({"remove": 2}, "remove=2 is not a share from 0 to 1.", "remove=0.1"),
    ({"split": None}, "split=None is not a share from 0 to 1.", "split=0.1"),
    ({"graph_cost": -1}, "graph_cost=-1 is not a finite number of at least 0.", "graph_cost=2.0"),
    ({"cost": len}, "optimize: what a graph costs is not known in the unit", "graph_cost=, in"),
]


@pytest.mark.parametrize(("given", "what", "fix"), ERRORS, ids=[what for _, what, _ in ERRORS])
def test_what_cannot_be_improved_is_told(given, what, fix):
    options = dict(given)
    sizes = () if "run" in options else (SIZES,)
    with pytest.raises(sx.ConfigError, match=what) as raised:
        sx.optimize(options.pop("run", run_of(8)), *sizes, **options)
    assert raised.match(f"Fix: +.*{fix}")


def test_a_bucket_that_was_removed_does_not_end_the_splitting_of_others():
    sizes = {10: 9, 100: 10, 500: 1, 1000: 81}
    result = found(buckets=(10, 100, 1000), sizes=sizes, graph_cost=10.0, remove=0.1, split=0.0)
    assert [change.kind for change in result.changes] == ["remove", "split"]
    assert result.strategies == {"s": sx.Ladder([100, 500, 1000])}


def test_sizes_that_ran_exactly_before_the_axis_was_a_symbol_have_buckets():
    run = sx.Exec(double)
    for size in [5, 6] * 10 + [70, 80, 90]:
        run(np.ones(size, np.float32))
    result = sx.optimize(run, cost=rows, graph_cost=1000.0)
    assert {5, 6} <= {*result.strategies["b"].buckets}
    assert result.before.cost + sum(c.cost for c in result.changes) == result.fitted.cost
