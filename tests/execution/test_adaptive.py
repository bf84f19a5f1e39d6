"""An Exec whose buckets learn while it serves: `sx.Adaptive`."""

import copy
import logging
import pickle
import re
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _making
from shapeexec.execution._learning import EVERY
from tests.execution.behind import NAME, gate, join_workers
from tests.execution.support import until
from tests.tolerance import assert_close

__all__ = ["gate"]  # a fixture

RULE = sx.Adaptive(graphs=2, compile_calls=1.0, min_usage=0.02)
SIZES = (5, 9)
LADDER = (5, 9)


def mean(x):  # x: f32[s]
    return x.mean()


def serve(run, sizes, *, calls=EVERY):
    """Call with each size in turn, check each result, and wait for all workers."""
    for number in range(calls):
        x = np.arange(sizes[number % len(sizes)], dtype=np.float32)
        assert_close(run(x), x.mean())
    join_workers()


def make(rule=RULE, fn=mean, **options):
    run, seen = sx.Exec(fn, ("s",), buckets=rule, **options), []
    run.on_event(seen.append)
    return run, seen


def buckets(run):
    return sorted(graph.buckets["s"] for graph in run.graphs)


def test_calls_change_over_when_the_new_graphs_are_there(gate):
    run, seen = make()
    for number in range(EVERY):
        run(np.ones(SIZES[number % 2], np.float32))
    until(lambda: run.stats.ladders)  # the thread that learns has changed the ladder
    assert run.settings.strategy("s") == sx.Ladder(LADDER, beyond=sx.Pow2())
    x = np.ones(5, np.float32)
    assert float(run(x)) == 1.0  # in the old graph: its own is being made
    assert run.plan(x).runs_in.buckets == {"s": 8}
    assert "s=5 in bucket 5 (0% padding); not compiled yet, runs in s=8 until then" in str(
        run.plan(x)
    )
    assert run.stats.larger == 1
    gate.settle()
    assert float(run(x)) == 1.0
    assert run.plan(x).runs_in.buckets == {"s": 5}
    serve(run, SIZES)
    assert gate.compiled_in.count(NAME) == 2
    assert run.stats.compiles == 4
    (change,) = [event for event in seen if event.kind == "ladder"]
    assert change.reason == (
        "s: 2 buckets in the place of 2 after request 32: padding 41.7% -> 0.0%; the old ones cost "
        "22.9 mean calls more, 2 new graphs cost 2"
    )
    assert f"ladder of {change.reason}" in str(run.explain(x)).splitlines()
    assert str(change) == f"mean: ladder: {change.reason}"


def test_a_graph_that_is_not_on_the_ladder_leaves_when_it_serves_no_call():
    run, seen = make()
    serve(run, SIZES)
    serve(run, SIZES)
    assert buckets(run) == [5, 8, 9, 16]
    serve(run, SIZES, calls=3 * EVERY)
    assert buckets(run) == [5, 9]
    gone = [event for event in seen if event.kind == "evicted"]
    assert sorted(event.graph.buckets["s"] for event in gone) == [8, 16]
    assert {event.reason for event in gone} == {"it is not on the ladder"}


def test_a_pinned_graph_stays():
    run, _ = make(limits=sx.CacheLimits(pin=[{"s": 8}]))
    serve(run, SIZES)  # waits for the ladder
    serve(run, SIZES)  # waits for its graphs: until they are there calls run in the old ones
    serve(run, SIZES, calls=5 * EVERY)
    assert buckets(run) == [5, 8, 9]


def test_the_same_calls_learn_the_same():
    sizes = np.random.default_rng(0).integers(33, 50, 4 * EVERY).tolist()
    learned: list[sx.Strategy] = []
    for _ in range(2):
        run, _ = make()
        for start in range(0, len(sizes), EVERY):
            serve(run, sizes[start : start + EVERY])
        learned.append(run.settings.strategy("s"))
    assert learned[0] == learned[1] != sx.Pow2()


def test_frozen_it_learns_no_more():
    run, _ = make()
    serve(run, (5, 9, 16, 8), calls=EVERY - 1)
    run.freeze()
    serve(run, SIZES, calls=2 * EVERY)
    assert run.stats.ladders == 0
    assert run.settings.strategies == RULE


def test_cleared_it_keeps_what_it_has_learned():
    run, _ = make()
    serve(run, SIZES)
    run.clear()
    serve(run, SIZES)
    assert buckets(run) == [5, 9]


def test_a_graph_that_cannot_be_made_keeps_the_ladder_before(monkeypatch):
    compile_graph = _making.compile_graph

    def failing(prepared, row, **given):
        if row.buckets["s"] == 5:
            raise RuntimeError("too small for this machine")
        return compile_graph(prepared, row, **given)

    monkeypatch.setattr(_making, "compile_graph", failing)
    run, seen = make()
    serve(run, SIZES)
    text = "another thread could not compile the graph for s=5 in bucket 5"
    fix = "Fix:   the ladder before it stays"
    with pytest.warns(RuntimeWarning, match=f"{text}(.|\n)*{fix}"):
        serve(run, (5,), calls=1)
    serve(run, (5,), calls=1)
    assert run.settings.strategy("s") == sx.Pow2()
    told = [event.reason for event in seen if event.kind == "ladder"]
    assert told[1:] == ["s: back from bucket 5, whose graph could not be made"]
    serve(run, SIZES, calls=4 * EVERY)
    assert run.settings.strategy("s") == sx.Ladder([8, 9], beyond=sx.Pow2())


def test_a_strategy_that_raises_keeps_the_ladder(caplog):
    class Odd:
        def bucket(self, size):
            if threading.current_thread().name == NAME:
                raise ZeroDivisionError("of mine")
            return size

    run, _ = make(sx.Adaptive(start=Odd()))
    with caplog.at_level(logging.WARNING, logger="shapeexec"):
        serve(run, SIZES)
    assert "mean: failed: ZeroDivisionError: of mine" in caplog.text
    assert run.stats.ladders == 0


def test_many_threads_call_while_ladders_change():
    run, _ = make(sx.Adaptive(graphs=3, compile_calls=0.5, horizon=100.0))
    errors = []

    def work(seed):
        generator = np.random.default_rng(seed)
        for number in range(3 * EVERY):
            x = np.arange(generator.integers(1, 20 + number // 3), dtype=np.float32)
            if not np.isclose(run(x), x.mean()):
                errors.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join_workers()
    assert not errors
    assert run.stats.ladders
    assert run.stats.hits + run.stats.misses == 4 * 3 * EVERY


WAYS = {
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
    "a pickle": lambda run: pickle.loads(pickle.dumps(run)),
    "a variant": lambda run: run.variant(check="off"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_was_learned_goes_with(way):
    run, _ = make()
    serve(run, SIZES)
    other = way(run)
    assert other.settings.strategies == run.settings.strategies
    serve(other, SIZES)
    assert buckets(other) == [5, 9]


def test_what_was_learned_is_saved_and_loaded(tmp_path):
    run, _ = make({"s": RULE})
    serve(run, SIZES)
    serve(run, SIZES)
    run.save(tmp_path)
    again = sx.load(tmp_path, mean, trusted=True)
    assert again.settings.strategies == run.settings.strategies != {"s": RULE}
    serve(again, SIZES)
    assert buckets(again) == [5, 9]
    assert again.stats.compiles == 0


def test_each_symbol_learns_by_itself():
    def total(x, y):
        return x.sum() + y.sum()

    run = sx.Exec(total, ("a", "b"), buckets=sx.Adaptive(graphs=1, compile_calls=1.0))
    for _ in range(EVERY):
        assert float(run(np.ones(5, np.float32), np.ones(33, np.float32))) == 38
    join_workers()
    assert run.settings.strategy("a") == sx.Ladder([5], beyond=sx.Pow2())
    assert run.settings.strategy("b") == sx.Ladder([33], beyond=sx.Pow2())
    named = run.variant(buckets={"a": RULE, "b": sx.Linear(10)})
    assert named.settings.strategy("b") == sx.Linear(10)


def test_maps_teach_their_longest_example_and_run_on_the_ladder():
    run = sx.Exec(mean, ("s",), buckets=RULE)
    examples = [np.arange(size, dtype=np.float32) for size in (3, 9)]
    for _ in range(EVERY):
        run.map(examples)
    join_workers()
    assert run.settings.strategy("s") == sx.Ladder([9], beyond=sx.Pow2())
    assert_close(np.stack(run.map(examples)), np.array([1, 4], np.float32))
    assert sorted(graph.buckets["s"] for graph in run.graphs) == [9, 16]


def test_warmup_makes_the_graphs_of_the_ladder():
    run, _ = make()
    serve(run, SIZES)
    assert run.warmup(np.ones(5, np.float32)) == 2
    assert buckets(run) == [5, 8, 9, 16]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"masking": False}, "results may depend on the bucket, and so on what was learned"),
        ({"missing": "error"}, "a ladder that changes needs graphs that no call may make"),
    ],
    ids=["masking", "missing"],
)
@pytest.mark.parametrize("given", [RULE, {"s": RULE}], ids=["all symbols", "one symbol"])
def test_what_forbids_a_ladder_to_change_is_refused(options, why, given):
    ((name, value),) = options.items()
    shown = str(value) if value is False else f'"{value}"'
    what = f"buckets=sx.Adaptive() with {name}={shown}."
    with pytest.raises(sx.ConfigError, match=re.escape(what)) as caught:
        sx.Exec(jnp.sum, ("s",), buckets=given, **options)
    assert f"Why:   {why}" in str(caught.value)
    assert f"Fix:   leave {name}= out, or give what was learned as it stands" in str(caught.value)
