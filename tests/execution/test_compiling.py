"""XLA's options, and graphs that compile fast and are replaced by tuned ones."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _compiling, _making
from tests.execution.behind import Gate, gate, join_workers
from tests.execution.support import counted, ones, refused, wait_for

P = sx.Pow2()
QUICK = sx.Compiling(first="quick")

__all__ = ["gate"]


def rows(ex):
    return [(row.sizes, row.origin, row.hits) for row in ex.graphs]


def test_a_quick_graph_serves_until_the_tuned_one_takes_its_place(gate: Gate):
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=QUICK)
    assert [float(ex(ones(n))) for n in (5, 6, 5)] == [15, 21, 15]
    assert rows(ex) == [("s=8", "quick", 2)]
    assert str(ex.plan(ones(5))).endswith("; compiled, quick")
    (quick,) = ex.graphs
    gate.settle()
    assert (ex.stats.swaps, ex.stats.compiles) == (1, 2)
    assert rows(ex) == [("s=8", "tuned", 2)]
    assert ex.graphs[0].compiled is not quick.compiled
    assert str(ex.explain(ones(5))).startswith("s=5 in bucket 8 (38% padding); compiled, tuned")
    ex.freeze()
    with counted() as count:
        assert [float(ex(ones(n))) for n in (5, 6, 7)] == [15, 21, 28]
    assert count.compilations == 0
    assert rows(ex) == [("s=8", "tuned", 5)]


def test_graphs_have_the_options_of_their_kind(monkeypatch):
    made = []
    compiled = _making.compile_graph

    def seen(prepared, row, **given):
        made.append((row.origin, dict(prepared.options)))
        return compiled(prepared, row, **given)

    monkeypatch.setattr(_making, "compile_graph", seen)
    own = {"xla_cpu_enable_fast_math": False}
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=sx.Compiling(first="quick", options=own))
    ex(ones(3))
    join_workers()
    ex.variant(compiling=sx.Compiling(options=own))(ones(3))
    ex.variant(compiling=None)(ones(3))
    quick = {**_compiling._QUICK[jax.devices()[0].platform], **own}
    assert made == [("quick", quick), ("tuned", own), ("made", own), ("made", {})]


def test_maps_and_warmups_are_quick_first(gate: Gate):
    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P, compiling=QUICK)
    ex.warmup(ones(1), s=[3, 9])
    ex.map([ones(2), ones(3)])
    assert [row.origin for row in ex.graphs] == ["quick"] * 3
    gate.settle()
    assert [row.origin for row in ex.graphs] == ["tuned"] * 3
    with counted() as count:
        assert [float(x) for x in ex.map([ones(2), ones(3)])] == [2, 3]
        assert float(ex(ones(9))) == 9
    assert count.compilations == 0


def test_a_call_runs_in_a_larger_graph_until_its_quick_one_is_there(gate: Gate):
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, missing="larger", compiling=QUICK)
    gate.opened.set()
    ex(ones(64))
    assert float(ex(ones(5))) == 15
    join_workers()
    assert rows(ex) == [("s=64", "tuned", 0), ("s=8", "tuned", 0)]
    assert (ex.stats.swaps, ex.stats.larger, ex.stats.compiles) == (2, 1, 4)


@pytest.mark.parametrize("own", [{}, {"xla_backend_optimization_level": 0}], ids=["none", "own"])
def test_without_other_options_a_quick_graph_is_compiled_once(own, monkeypatch):
    monkeypatch.setattr(_compiling, "_QUICK", {"cpu": dict(own)})
    compiling = sx.Compiling(first="quick", options=own)
    own["xla_nonsense"] = 1  # too late
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=compiling)
    ex(ones(3))
    join_workers()
    assert (rows(ex), ex.stats.compiles) == ([("s=4", "made", 0)], 1)


def test_a_configuration_of_one_thread_is_compiled_once_and_tuned():
    ex = sx.Exec(lambda x: x @ x, ("s",), buckets=P, compiling=QUICK)
    with jax.default_matmul_precision("float32"):
        ex(ones(3))
    assert (rows(ex), ex.stats.compiles) == ([("s=4", "made", 0)], 1)


FORGETS = {"clear": lambda ex: ex.clear(), "eviction": lambda ex: ex(ones(64))}


@pytest.mark.parametrize("forget", FORGETS.values(), ids=FORGETS)
def test_a_graph_that_is_gone_is_not_replaced(forget, gate: Gate):
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=QUICK, limits=sx.CacheLimits(graphs=1))
    ex(ones(3))
    wait_for(gate.reached)
    forget(ex)
    gate.settle()
    assert [row.sizes for row in ex.graphs if row.sizes == "s=4"] == []
    assert float(ex(ones(3))) == 6


def test_a_quick_graph_that_left_and_came_again_is_tuned(gate: Gate):
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=QUICK, limits=sx.CacheLimits(graphs=1))
    ex(ones(3))
    wait_for(gate.reached)
    ex(ones(5)), ex(ones(3))
    gate.settle()
    assert rows(ex) == [("s=4", "tuned", 0)]
    # Nobody compiles the tuned graph of one that has left before its turn.
    assert gate.compiled_in == ["MainThread", "shapeexec", "MainThread", "MainThread", "shapeexec"]


def test_a_tuned_graph_that_fails_is_told_and_the_quick_one_stays(monkeypatch):
    compiled = _making.compile_graph

    def broken(prepared, row, **given):
        if row.origin == "tuned":
            raise MemoryError("XLA has no room")
        return compiled(prepared, row, **given)

    monkeypatch.setattr(_making, "compile_graph", broken)
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=QUICK)

    def run():
        assert float(ex(ones(5))) == 15
        join_workers()

    with pytest.warns(RuntimeWarning) as told:
        run()
    assert [str(warning.message) for warning in told] == [
        "shapeexec: another thread could not compile the tuned graph for s=5 in bucket 8 "
        "(38% padding); not compiled yet: MemoryError: XLA has no room\n"
        '  Fix:   calls keep the quick one; sx.Compiling(first="tuned") raises the error'
    ]
    run()
    assert rows(ex) == [("s=8", "quick", 1)]


REFUSED = {
    "no option": ({"xla_nonsense": 1}, "No such compile option: 'xla_nonsense'"),
    "a value": ({"xla_backend_optimization_level": "abc"}, "'abc' is not a valid int32 value"),
}


@pytest.mark.parametrize("first", ["quick", "tuned"])
@pytest.mark.parametrize(("options", "text"), REFUSED.values(), ids=REFUSED)
def test_an_option_that_xla_refuses_is_told_with_its_words(first, options, text):
    ex = sx.Exec(jnp.sum, ("s",), buckets=P, compiling=sx.Compiling(first=first, options=options))
    with refused(sx.ConfigError, "compiling: XLA refuses an option.", "one of XLA's flags") as told:
        ex(ones(3))
    assert text in told.value.why
    assert next(iter(options)) in told.value.got
    assert len(ex.graphs) == 0


def test_another_error_of_xla_stays_what_it_is(monkeypatch):
    def broken(*_, **__):
        raise MemoryError("XLA has no room")

    monkeypatch.setattr(jax.stages.Lowered, "compile", broken)
    options = {"xla_cpu_enable_fast_math": False}
    with pytest.raises(MemoryError, match="no room"):
        sx.Exec(jnp.sum, ("s",), buckets=P, compiling=sx.Compiling(options=options))(ones(3))


WRONG = {
    "first": (lambda: sx.Compiling(first="slow"), "first='slow' is not known", '"tuned" or "qui'),
    "a list": (
        lambda: sx.Compiling(options=["a"]),
        "options=['a'] are not XLA",
        "a dict",
    ),
    "a value": (
        lambda: sx.Compiling(options={"a": [1]}),
        "{'a': [1]} are not XLA",
        "a dict",
    ),
    "a name": (lambda: sx.Compiling(options={1: 1}), "{1: 1} are not XLA", "a dict"),
    "a string": (
        lambda: sx.Exec(np.sum, compiling="quick"),
        "compiling='quick' is not a Compiling.",
        'compiling=sx.Compiling(first="quick")',
    ),
}


@pytest.mark.parametrize(("make", "what", "fix"), WRONG.values(), ids=WRONG)
def test_what_is_no_way_to_compile_is_refused(make, what, fix):
    with refused(sx.ConfigError, what, fix):
        make()


def test_options_of_compiling_are_a_copy_that_cannot_change():
    given = {"xla_cpu_enable_fast_math": False}
    compiling = sx.Compiling(options=given)
    given["xla_cpu_enable_fast_math"] = [1]
    assert compiling == sx.Compiling(options={"xla_cpu_enable_fast_math": False})
    assert compiling in {sx.Compiling(options={"xla_cpu_enable_fast_math": False})}
    assert str(compiling) == (
        "Compiling(first='tuned', options={'xla_cpu_enable_fast_math': False})"
    )
    with pytest.raises(TypeError, match="does not support item assignment"):
        compiling.options["xla_cpu_enable_fast_math"] = [1]


def test_compiling_options_travel_with_the_settings():
    compiling = sx.Compiling(first="quick", options={"xla_cpu_enable_fast_math": False})
    ex = sx.Exec(jnp.sum, compiling=compiling)
    assert pickle.loads(pickle.dumps(ex)).settings.compiling == compiling
    assert copy.deepcopy(compiling) == compiling
    assert ex.variant(compiling=None).settings.compiling == sx.Compiling()
