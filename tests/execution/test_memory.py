"""Graphs that do not fit into memory: the numbers are told, and calls go on where asked."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _compile, _making
from tests.execution.support import refused

FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes."


def ones(*shape):
    return np.ones(shape, np.float32)


def total(x):
    return jnp.sum(x) * 2


@pytest.fixture(params=["while it is compiled", "while it runs"])
def full_at(request, monkeypatch):
    """Makes memory run out for graphs of these buckets."""

    def fill(*texts):
        def check(row):
            if row.sizes in texts:
                raise jax.errors.JaxRuntimeError(FULL)

        if request.param == "while it is compiled":
            made = _making.compile_graph

            def compile_graph(prepared, row, **given):
                check(row)
                return made(prepared, row, **given)

            monkeypatch.setattr(_making, "compile_graph", compile_graph)
            return
        for name in ("__call__", "retraced"):
            own = getattr(_compile.Graph, name)

            def run(self, *args, own=own, **named):
                check(self.row)
                return own(self, *args, **named)

            monkeypatch.setattr(_compile.Graph, name, run)

    return fill


def test_memory_that_a_device_misses_while_it_runs_is_told_by_the_call():
    def gram(x):
        return jnp.sort(jnp.outer(x, x), axis=0).sum()

    vast = sx.Linear(2**24)  # all pairs of it take more bytes than there are addresses
    with refused(sx.OutOfMemoryError, "the graph s=16777216 does not fit", "a finer strategy"):
        sx.Exec(gram, ("s",), buckets=vast)(ones(5))
    with refused(sx.OutOfMemoryError, "the graph map of 2: s=16777216", "map fewer examples"):
        sx.Exec(gram, ("s",), buckets=vast).map([ones(3), ones(5)])
    run = sx.Exec(gram, ("s",), buckets=vast, on_memory="exact")
    assert [float(run(ones(size))) for size in (5, 5, 3)] == [25, 25, 9]
    assert (run.stats.exact, run.cache_size) == ({"s": 3}, 2)


def test_by_default_the_error_tells_the_numbers_and_the_way_out(full_at):
    run = sx.Exec(total, ("s",))
    full_at("s=8")
    with refused(sx.OutOfMemoryError, "the graph s=8 does not fit", 'on_memory="exact"') as caught:
        run(ones(5))
    error = caught.value
    assert (error.sizes, error.buckets) == ({"s": 5}, {"s": 8})
    assert FULL in error.got
    assert isinstance(error, MemoryError)
    if error.bytes is not None:  # it was compiled
        assert error.bytes > 0
        assert "MiB temporaries" in error.got
    assert run(ones(9)) == 18  # other buckets are as they were


def test_a_bucket_that_does_not_fit_runs_exactly_and_others_do_not(full_at):
    run, seen = sx.Exec(total, ("s",), on_memory="exact"), []
    run.on_event(seen.append)
    full_at("s=8")
    assert [float(run(ones(n))) for n in (5, 6, 5, 3, 9)] == [10, 12, 10, 6, 18]
    assert [row.sizes for row in run.graphs] == ["s=5 exact", "s=6 exact", "s=4", "s=16"]
    assert run.stats.exact == {"s": 3}
    told = [event for event in seen if event.kind == "exact"]
    assert [(event.sizes, event.reason) for event in told] == [
        ({"s": 5}, "the graph s=8 does not fit into memory.")
    ]
    assert "s is exact: the graph s=8 does not fit" in str(run.explain(ones(7)))
    assert run.graphs[{"s": 5}].sizes == "s=5 exact"


def test_two_calls_that_run_out_of_memory_at_once_both_run_exactly(monkeypatch):
    run, seen = sx.Exec(total, ("s",), on_memory="exact"), []
    both = threading.Barrier(2, timeout=60)
    run(ones(7))
    own = _compile.Graph.__call__

    def fail_together(self, *args, **named):
        if self.row.sizes != "s=8":
            return own(self, *args, **named)
        both.wait()
        raise jax.errors.JaxRuntimeError(FULL)

    monkeypatch.setattr(_compile.Graph, "__call__", fail_together)
    run.on_event(seen.append)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(map(float, pool.map(run, [ones(7), ones(7)]))) == [14, 14]
    assert [event.kind for event in seen].count("exact") == 1


def test_only_calls_of_that_bucket_of_all_symbols_are_exact(full_at):
    run = sx.Exec(total, ("b, s",), on_memory="exact")
    full_at("b=4, s=8")
    assert run(ones(3, 5)) == 30
    assert run(ones(3, 9)) == 54
    assert run(ones(2, 5)) == 20
    assert [row.sizes for row in run.graphs] == ["b=3 exact, s=5 exact", "b=4, s=16", "b=2, s=8"]


def test_where_nothing_is_padded_it_raises(full_at):
    run = sx.Exec(total, ("s",), on_memory="exact")
    full_at("s=8", "s=5 exact")
    for size in (8, 5):
        with refused(sx.OutOfMemoryError, f"the graph s={size}", "a smaller batch"):
            run(ones(size))
    assert run.cache_size <= 2
    assert run(ones(6)) == 12


def test_a_hit_that_does_not_fit_any_more_is_given_up_too(full_at):
    run = sx.Exec(total, ("s",), on_memory="exact")
    assert run(ones(5)) == 10
    full_at("s=8")
    if run(ones(5)) == 10:
        run.clear()
        assert run(ones(5)) == 10


def test_arguments_that_are_donated_may_be_gone_so_it_raises(full_at):
    run = sx.Exec(lambda x: x * 2, ("s",), on_memory="exact", donate_argnums=0)
    full_at("s=8")
    with pytest.raises(sx.OutOfMemoryError):
        run(jnp.ones(5))


def test_a_map_tells_the_numbers(full_at):
    run = sx.Exec(total, ("s",))
    full_at("map of 2: s=8")
    with refused(sx.OutOfMemoryError, "the graph map of 2: s=8 does not fit", "map fewer"):
        run.map([ones(5), ones(3)])


def test_the_larger_graph_that_does_not_fit_any_more_is_passed_over_with_an_event(full_at):
    run, seen = sx.Exec(total, ("s",), missing="larger"), []
    run.on_event(seen.append)
    assert run(ones(9)) == 18
    full_at("s=16")
    assert run(ones(5)) == 10
    if not run.stats.larger:  # it could not run there
        assert "s=8" in [row.sizes for row in run.graphs]
        (failed,) = [event for event in seen if event.kind == "failed"]
        assert failed.graph.sizes == "s=16"
        assert failed.reason == "the graph s=16 does not fit into memory."


def test_other_errors_of_the_runtime_are_jaxs_own(monkeypatch):
    run = sx.Exec(total, ("s",), on_memory="exact")

    def fails(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: no such thing")

    monkeypatch.setattr(_compile.Graph, "retraced", fails)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such thing"):
        run(ones(5))


def test_what_is_no_choice_is_refused():
    with refused(sx.ConfigError, "on_memory='smaller'", "exact"):
        sx.Exec(total, ("s",), on_memory="smaller")
