"""`Exec.analysis`: what is in it, beside what was called; as a string, a plot and JSON."""

import importlib.util
import json
import math

import numpy as np
import pytest
from scipy import stats

import shapeexec as sx
from shapeexec.execution.analysis._measures import distance, entropy
from tests.execution.support import ones
from tests.tolerance import FEW, tolerance

CALLS = [(1, 5), (2, 17), (2, 30), (3, 60), (4, 64), (3, 50), (2, 17)]
ROUNDING = tolerance(np.float64, loose=FEW)


def smooth(x):  # x: f32[b, s]
    return x - x.mean(axis=1, keepdims=True)


def called(calls=CALLS, **options):
    buckets = {"b": sx.Pow2(), "s": sx.Linear(32)}
    run = sx.Exec(smooth, ("b, s",), **({"buckets": buckets} | options))
    for b, s in calls:
        run(ones(b, s))
    return run


def test_each_call_is_counted_by_its_sizes_and_its_buckets():
    found = called().analysis()
    assert (found.symbols, found.calls) == (("b", "s"), len(CALLS))
    assert found.sizes == {call: CALLS.count(call) for call in sorted(set(CALLS))}
    uses = {tuple(use.buckets.values()): use for use in found.uses}
    assert {at: use.calls for at, use in uses.items()} == {(1, 32): 1, (2, 32): 3, (4, 64): 3}
    assert uses[4, 64].waste == {"b": 1 - 10 / 12, "s": 1 - 174 / 192}
    assert (uses[4, 64].graphs, uses[4, 64].hits, found.stats.hits) == (1, 2, 4)
    assert found.waste == found.stats.waste


def test_seconds_are_told_where_they_are_known():
    run = called()
    found = run.analysis()
    rows = {row.sizes: row for row in run.graphs}
    (use,) = [use for use in found.uses if use.buckets == {"b": 4, "s": 64}]
    row = rows["b=4, s=64"]
    assert use.made_seconds == row.seconds.total - row.seconds.trace > 0
    assert use.run_seconds == row.run_seconds > 0
    assert found.uses[-1].buckets == {"b": 1, "s": 32}
    assert found.uses[-1].run_seconds == 0  # the call that made it is none of its hits


def test_calls_of_graphs_that_are_gone_are_counted():
    run = called(limits=sx.CacheLimits(graphs=1))
    uses = run.analysis().uses
    assert sum(use.calls for use in uses) == len(CALLS)
    assert sum(use.graphs for use in uses) == 1


def test_examples_of_maps_are_calls_at_the_buckets_of_their_graph():
    run = sx.Exec(lambda x: x.sum(), ("s",))
    run.map([ones(3), ones(7), ones(2)])
    found = run.analysis()
    assert found.sizes == {(2,): 1, (3,): 1, (7,): 1}
    assert [(use.buckets, use.calls) for use in found.uses] == [({"s": 8}, 3)]


def test_a_symbol_that_a_call_does_not_have_is_0():
    def add(x, y=None):
        return x.sum() if y is None else x.sum() + y.sum()

    run = sx.Exec(add, ("s", "t"))
    run(ones(3))
    run(ones(3), ones(5))
    found = run.analysis()
    assert found.sizes == {(3, 0): 1, (3, 5): 1}
    assert json.loads(found.to_json())["sizes"][0] == {"s": 3, "t": 0, "calls": 1}


def test_an_exec_that_was_not_called_has_an_analysis():
    run = sx.Exec(smooth, ("b, s",))
    found = run.analysis()
    assert (found.calls, found.entropy, found.uses, found.windows) == (0, 0.0, (), ())
    assert str(found) == "smooth: 0 calls, 0.0% hits, 0 graphs, 0 evictions, 0.0% padding"


def test_warmed_graphs_without_calls_have_a_row():
    run = called()
    run.warmup(b=8, s=64)
    (use,) = [use for use in run.analysis().uses if not use.calls]
    assert (use.buckets, use.graphs, use.waste) == ({"b": 8, "s": 64}, 1, {})


@pytest.mark.parametrize(
    ("counts", "bits"),
    [([], 0.0), ([7], 0.0), ([1, 1], 1.0), ([3, 0, 3, 3, 3], 2.0), ([1, 2, 1], 1.5)],
)
def test_entropy_is_in_bits(counts, bits):
    assert entropy(counts) == bits


def test_entropy_is_scipys():
    counts = np.random.default_rng(0).integers(0, 9, size=50)
    np.testing.assert_allclose(
        entropy(counts), stats.entropy(counts, base=2), rtol=ROUNDING, atol=ROUNDING
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_is_scipys_wasserstein_distance(seed):
    random = np.random.default_rng(seed)
    one, other = ({int(s): int(n) for s, n in random.integers(1, 99, (20, 2))} for _ in range(2))
    known = stats.wasserstein_distance([*one], [*other], [*one.values()], [*other.values()])
    np.testing.assert_allclose(distance(one, other), known, rtol=ROUNDING, atol=ROUNDING)
    assert distance(one, one) == 0


def test_windows_tell_how_sizes_change():
    run = sx.Exec(lambda x: x + 1, ("s",))
    for size in [10] * 256 + [30] * 256:
        run(ones(size))
    found = run.analysis()
    assert [(w.calls, w.mean["s"], w.shift["s"]) for w in found.windows] == [
        (256, 10, 0.5),  # half of the calls are 20 away, and the mean is 20
        (256, 30, 0.5),
    ]
    assert [w.entropy for w in found.windows] == [0, 0]
    assert found.entropy == 1
    assert sum(hour.calls for hour in found.hours.values()) == 512


TEXT = """\
smooth: 7 calls, 57.1% hits, 3 graphs, 0 evictions, 27.5% padding
  padding by symbol: b 10.5%, s 24.1%
  entropy: 2.52 bits of sizes (6 of them), 1.45 bits of buckets
"""


@pytest.mark.parametrize("has_rich", [True, False])
def test_an_analysis_prints_its_buckets(has_rich, monkeypatch):
    if not has_rich:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = str(called().analysis())
    assert text.startswith(TEXT)
    heads, *_ = text[len(TEXT) :].splitlines()
    assert heads.split() == "bucket calls share padding graphs hits made a hit".split()
    rows = [line.split()[:5] for line in text.splitlines()[-3:]]
    assert rows[0] == ["b=2,", "s=32", "3", "42.9%", "0%,"]
    assert max(map(len, text.splitlines())) <= 110


def test_an_analysis_is_json():
    found = called().analysis()
    told = json.loads(found.to_json())
    assert told["sizes"][1] == {"b": 2, "s": 17, "calls": 2}
    assert told["hit_rate"] == found.stats.hit_rate
    assert math.isclose(told["entropy"], found.entropy)
    assert told["uses"][0]["buckets"] == {"b": 2, "s": 32}
    assert told["windows"][0]["calls"] == len(CALLS)


def test_an_analysis_is_drawn():
    figure = called().analysis().plot()
    left, right = figure.axes
    assert [patch.get_width() for patch in left.patches] == [1, 3, 3]
    assert [line.get_label() for line in right.lines] == ["b", "s"]


@pytest.mark.parametrize(
    ("run", "figure", "what", "fix"),
    [
        (sx.Exec(smooth, ("b, s",)), None, "plot: no call had a size.", "call the Exec before"),
        (called(CALLS[:1]), 3, "plot: 3 is not a figure.", r"plot\(plt.figure\(\)\)"),
    ],
    ids=("no calls", "no figure"),
)
def test_what_cannot_be_drawn_is_told(run, figure, what, fix):
    with pytest.raises(sx.ConfigError, match=what) as raised:
        run.analysis().plot(figure)
    assert raised.match(f"Fix: +{fix}")
