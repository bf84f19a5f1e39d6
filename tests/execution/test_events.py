"""What an Exec tells those who watch it: events, the logger, seconds by part, the last miss."""

import itertools
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.behind import gate  # noqa: F401 - a fixture
from tests.execution.support import refused


def ones(*shape):
    return np.ones(shape, np.float32)


def total(x):
    return jnp.sum(x)


def listening(**options):
    """An Exec, and the list of its events."""
    run, seen = sx.Exec(total, ("s",), **options), []
    run.on_event(seen.append)
    return run, seen


def kinds(seen):
    return [event.kind for event in seen]


@pytest.fixture
def _ticks(monkeypatch):
    """A clock that goes on by one second whenever it is read, here and in JAX."""
    tick = itertools.count(1).__next__
    for clock in ("perf_counter", "time"):
        monkeypatch.setattr(time, clock, lambda: float(tick()))


@pytest.mark.usefixtures("_ticks")
def test_a_miss_is_told_with_its_graph_and_latency():
    run, seen = listening()
    run(ones(5))
    assert kinds(seen) == ["compiling", "compiled", "call"]
    begun, made, call = seen
    assert (begun.graph.sizes, begun.graph.bytes, begun.seconds) == ("s=8", None, None)
    assert made.seconds == made.graph.seconds.total >= 4  # its parts are a tick each at least
    assert made.graph.bytes is not None
    assert (call.sizes, call.is_hit, call.graph.sizes) == ({"s": 5}, False, "s=8")
    assert call.seconds > made.seconds


def test_a_hit_is_told_with_its_size_and_bucket():
    run, seen = listening()
    run(ones(5)), run(ones(7))
    *_, call = seen
    assert kinds(seen) == ["compiling", "compiled", "call", "call"]
    assert (call.sizes, call.is_hit) == ({"s": 7}, True)
    assert str(call).startswith("total: call s=7 in s=8 hit ")
    assert call.to_dict()["graph"]["buckets"] == {"s": 8}


def test_who_stops_hears_nothing_more_and_others_do():
    run, seen = listening()
    again = []
    stop = run.on_event(again.append)
    run(ones(5))
    stop()
    stop()
    run(ones(5))
    assert (len(seen), len(again)) == (4, 3)


def test_a_graph_that_leaves_is_told_after_the_one_that_takes_its_place():
    run, seen = listening(limits=sx.CacheLimits(graphs=1))
    run(ones(3)), run(ones(9))
    assert kinds(seen)[3:] == ["compiling", "compiled", "evicted", "call"]
    assert [event.graph.sizes for event in seen[3:]] == ["s=16", "s=16", "s=4", "s=16"]


def test_a_graph_that_cannot_be_made_is_told_with_the_reason(monkeypatch):
    run, seen = listening(compiling=sx.Compiling(options={"no_such_option": 1}))
    with pytest.raises(sx.ConfigError):
        run(ones(3))
    assert kinds(seen) == ["compiling", "failed"]
    assert "ConfigError: " in seen[-1].reason


def test_symbols_that_become_exact_are_told_with_the_reason():
    def columns(x):
        return jnp.stack([column * 2 for column in x.T])

    run, seen = sx.Exec(columns, ("b, s",), on_unsupported="exact"), []
    run.on_event(seen.append)
    run(ones(3, 5))
    assert kinds(seen) == ["exact", "compiling", "compiled", "call"]
    assert seen[0].graph is None
    assert seen[0].reason.startswith("s: ")
    assert seen[-1].graph.sizes == "b=4, s=5 exact"


def test_sizes_at_which_the_function_is_another_are_told():
    run, seen = sx.Exec(lambda x: x * (2 if type(x.shape[0]) is int else 3), ("s",)), []
    run.on_event(seen.append)
    with pytest.warns(RuntimeWarning, match="at symbolic sizes the function is not the same"):
        run(ones(5))
    assert (seen[-1].kind, seen[-1].graph.sizes) == ("call", "s=5 exact")
    assert {"s": 5} in [event.sizes for event in seen if event.kind == "exact"]


def test_a_tuned_graph_that_takes_the_place_of_a_quick_one_is_told(gate):  # noqa: F811 - the fixture
    run, seen = listening(compiling=sx.Compiling(first="quick"))
    run(ones(5))
    gate.settle()
    told = [(event.kind, event.graph.origin) for event in seen]
    assert ("compiled", "quick") in told
    assert told[-2:] == [("compiled", "tuned"), ("swapped", "tuned")]


def test_maps_are_told_by_graph():
    run, seen = listening()
    run.map([ones(3), ones(5)])
    assert kinds(seen) == ["compiling", "compiled", "call"]
    assert seen[-1].graph.sizes == "map of 2: s=8"
    assert seen[-1].sizes == {}


def test_an_error_of_a_callback_stops_nothing_and_is_logged(caplog):
    run = sx.Exec(total, ("s",))

    def fails(event):
        raise ValueError("of the callback")

    seen = []
    run.on_event(fails)
    run.on_event(seen.append)
    with caplog.at_level(logging.ERROR, "shapeexec"):
        assert run(ones(5)) == 5
    assert kinds(seen) == ["compiling", "compiled", "call"]
    assert "a callback of on_event failed at total: call s=5 in s=8 miss" in caplog.text
    assert "of the callback" in caplog.text


def test_a_callback_that_asks_for_the_graph_that_is_being_made_does_not_wait_for_itself(caplog):
    run = sx.Exec(total, ("s",))
    run.on_event(lambda event: run(ones(5)) if event.kind == "compiling" else None)
    with caplog.at_level(logging.ERROR, "shapeexec"):
        assert run(ones(5)) == 5
    assert "this thread requested a graph while it was compiling that graph" in caplog.text


def test_callbacks_that_ask_for_one_anothers_graphs_do_not_wait_in_a_circle(caplog):
    both, nested = threading.Barrier(2, timeout=60), threading.local()
    runs = [sx.Exec(jnp.cumsum, ("s",)), sx.Exec(jnp.cumprod, ("s",))]

    def call_the_other(number):
        def callback(event):
            if event.kind == "compiling" and not getattr(nested, "is_on", False):
                nested.is_on = True
                both.wait()  # each thread compiles, and asks for what the other one compiles
                runs[1 - number](ones(5))

        return callback

    for number, run in enumerate(runs):
        run.on_event(call_the_other(number))
    threads = [threading.Thread(target=run, args=(ones(5),), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert "for which the thread of that graph waits" in caplog.text
    assert "do not call an Exec in a callback of on_event" in caplog.text
    assert [run.stats.compiles for run in runs] == [1, 1]


def test_the_logger_has_calls_at_debug_and_graphs_at_info(caplog):
    run = sx.Exec(total, ("s",))
    with caplog.at_level(logging.INFO, "shapeexec"):
        run(ones(5))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.records[0].getMessage().startswith("total: compiled s=8 ")
    with caplog.at_level(logging.DEBUG, "shapeexec"):
        run(ones(6))
    assert caplog.records[-1].getMessage().startswith("total: call s=6 in s=8 hit ")


def test_what_is_no_callback_is_refused():
    with refused(sx.ConfigError, "on_event: 'print' cannot be called.", "run.on_event(lambda"):
        sx.Exec(total, ("s",)).on_event("print")


def test_events_of_many_threads_are_all_told():
    run, seen = listening()
    run.warmup(ones(8), s=8)
    seen.clear()
    threads = [threading.Thread(target=lambda: [run(ones(5)) for _ in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kinds(seen) == ["call"] * 160


@pytest.mark.usefixtures("_ticks")
def test_seconds_are_told_by_part_in_stats_and_explain():
    run = sx.Exec(total, ("s",))
    run(ones(5))
    stats, (row,) = run.stats, run.graphs
    for part in ("trace", "mask", "lower", "compile"):
        assert getattr(stats, f"{part}_seconds") == getattr(row.seconds, part) >= 1
    run(ones(9))
    assert run.stats.trace_seconds == stats.trace_seconds  # the buckets share a trace
    assert run.stats.mask_seconds == stats.mask_seconds + run.graphs[1].seconds.mask
    said = str(run.explain(ones(5)))
    assert f"its graph was made in {row.seconds}" in said
    assert f"(trace {row.seconds.trace:.2f} s, " in str(row.seconds)
    assert "its graph" not in str(run.explain(ones(17)))


def test_the_last_miss_says_which_size_dtype_or_number_of_examples_was_new():
    run = sx.Exec(total, ("s",))
    assert run.last_miss() is None
    run(ones(5))
    assert str(run.last_miss()) == "no graph of a call is compiled yet"
    run(ones(9)), run(ones(5))
    assert run.last_miss().missing == ("s=16",)
    run(np.ones(5, np.int32))
    assert run.last_miss().missing == ("i32 as the dtype of args[0]",)
    run.map([ones(5)] * 2)
    assert str(run.last_miss()) == "no graph of a map is compiled yet"
    run.map([ones(5)] * 3)
    assert run.last_miss().missing == ("4 as the number of examples",)
    run.clear()
    assert run.last_miss() is None


def test_a_graph_has_the_name_of_its_function_and_bucket_in_profiles():
    run = sx.Exec(total, ("s",))
    run(ones(5))
    run.map([ones(3), ones(5)])
    names = [row.hlo().split(",")[0] for row in run.graphs]
    assert names == [
        "HloModule jit_shapeexec_total_s8",
        "HloModule jit_shapeexec_total_map_of_2_s8",
    ]
    assert run.stats.compiles == 2


def test_the_name_of_a_lambda_is_one_too():
    run = sx.Exec(lambda x: x * 2, ("s",))
    run(jax.numpy.ones(5))
    assert run.graphs[0].hlo().startswith("HloModule jit_shapeexec_lambda_s8")
