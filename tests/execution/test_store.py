"""What outlasts a call has one owner: graphs, plans, counters, and whether all is frozen."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import shapeexec as sx
from shapeexec import _compat
from shapeexec.execution import _bounded_table, _making, _monitor
from shapeexec.execution._bind import Binder
from shapeexec.execution._function import runner_of
from shapeexec.execution._monitor import Span
from tests.execution.support import counted, ones, refused

P = sx.Pow2()


def test_larger_graphs_that_are_ready_are_told_the_least_first():
    ex = sx.Exec(lambda x: x.sum(), ("b, s",), buckets=P)
    for b, s in [(1, 3), (4, 16), (4, 8), (2, 3)]:
        ex(ones(b, s))
    ex(ones(4, 32).astype(np.int32))
    ex.map([ones(8, 8)])

    def larger(b, s):
        store, key = runner_of(ex).store, ex.plan(ones(b, s)).key
        return [(g.row.buckets["b"], g.row.buckets["s"]) for g in store.larger(key)]

    assert larger(2, 3) == [(4, 8), (4, 16)]
    assert larger(3, 7) == [(4, 16)]
    assert larger(1, 2) == [(1, 4), (2, 4), (4, 8), (4, 16)]
    assert larger(4, 16) == larger(8, 3) == []
    assert runner_of(ex).store.larger(ex.plan(ones(2, 3)).key)[0].row.least == {"b": 3, "s": 5}


def test_a_table_forgets_all_when_it_is_full(monkeypatch):
    monkeypatch.setattr(_bounded_table, "_MOST", 3)
    table = _bounded_table.BoundedTable()
    for key in "abc":
        table[key] = key
    assert [table.get(key) for key in "abc"] == ["a", "b", "c"]
    table["d"] = "d"
    assert [table.get(key) for key in "abcd"] == [None, None, None, "d"]
    table.clear()
    assert table.get("d") is None


def test_tables_may_be_filled_by_many_threads(monkeypatch):
    monkeypatch.setattr(_bounded_table, "_MOST", 2)
    ex = sx.Exec(lambda x: x * 2, ("s",), buckets={"s": sx.Linear(64)})
    got = {}

    def call(size):
        for _ in range(5):
            got[size] = ex(ones(size)).tolist() == (2 * ones(size)).tolist()

    threads = [threading.Thread(target=call, args=(size,)) for size in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == dict.fromkeys(range(1, 9), True)
    assert ex.stats.compiles == 1


def test_a_span_tells_copies_from_graphs():
    def compile_anew():
        def shapeexec_body(x):
            return x - 1

        jax.jit(shapeexec_body)(1.0)

    _monitor.listen()  # as the first Exec of a process does
    span = Span()
    compile_anew()
    span.copied()
    compile_anew()
    jax.jit(lambda x: x * 2)(1.0)  # as JAX moves an argument
    compile_anew()
    span.ran()
    compile_anew()
    span.restart()
    span.ran()
    assert (span.copies, span.compiles) == (2, 2)


def test_a_span_adds_up_the_seconds_of_graphs_alone():
    span = Span()
    _monitor._on_event(_compat.COMPILE_EVENT, 1.5, fun_name="jit(shapeexec_total)")
    _monitor._on_event(_compat.COMPILE_EVENT, 2.5, fun_name="jit(pad)")
    _monitor._on_event("/jax/core/compile/jaxpr_trace_duration", 4.5, fun_name="jit(total)")
    span.ran()
    assert (span.compiles, span.copies, span.compile_seconds) == (1, 1, 1.5)


@pytest.mark.parametrize("look", ["plan", "explain", "trace", "why_new"])
def test_what_cannot_be_padded_is_found_when_a_plan_is_made(look):
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P)
    with counted() as count, pytest.raises(sx.UnsupportedPrimitiveError, match="`new_ref`"):
        getattr(ex, look)(ones(3))
    assert count.compilations == 0


def test_the_plan_of_what_runs_exactly_tells_so_before_the_first_call():
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P, on_unsupported="exact")
    plan = ex.plan(ones(3))
    assert (plan.buckets, plan.exact) == ({"s": 3}, ("s",))
    assert ex.map.plan([ones(3)]).groups[0].exact == ("s",)
    assert ex.stats.compiles == 0


def test_masks_are_put_in_once_for_a_plan_and_its_call(monkeypatch):
    made = []
    prepare = _making.Making.prepared
    monkeypatch.setattr(
        _making.Making,
        "prepared",
        lambda self, key, make: prepare(self, key, lambda: made.append(1) or make()),
    )
    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P)
    ex.plan(ones(3))
    ex(ones(3))
    ex(ones(4))
    assert len(made) == 1
    ex.map.plan([ones(3)])
    ex.map([ones(3)])
    assert len(made) == 2


@pytest.mark.parametrize("missing", ["wait", "error"])
def test_masks_are_put_in_once_for_calls_that_are_refused(monkeypatch, missing):
    made, prepare = [], _making.prepare
    monkeypatch.setattr(_making, "prepare", lambda outline: made.append(1) or prepare(outline))
    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P, missing=missing)
    if missing == "wait":
        ex.freeze()
    for size in (3, 4, 3):
        with pytest.raises(sx.FrozenError):
            ex(ones(size))
    assert len(made) == 1
    ex.plan(ones(3))
    assert len(made) == 1
    if missing == "error":
        ex.warmup(ones(3), s=[3])
        assert (len(made), float(ex(ones(3)))) == (1, 3.0)


def warm(ex):
    ex.warmup(ones(3), s=[3])
    ex.freeze()
    assert ex.stats.compiles == 1
    with counted() as count:
        ex(ones(3))
    assert count.compilations == 0


def test_a_plan_from_before_jax_forgot_its_trace_compiles_once():
    ex = sx.Exec(lambda x: x.max(), ("s",), buckets=P)
    ex.plan(ones(3))
    jax.clear_caches()
    warm(ex)


def test_a_graph_that_could_not_be_lowered_is_compiled_once_later():
    fails = [True]

    def lowered(_, operand):
        if fails:
            raise RuntimeError(fails.pop())
        return [operand]

    primitive = _compat.Primitive("lowered_later")
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(primitive, lowered)
    ex = sx.Exec(lambda x: primitive.bind(x.max()), ("s",), buckets=P)
    with pytest.raises(RuntimeError, match="True"):
        ex(ones(3))
    warm(ex)


PLACED = {
    "put on purpose": lambda x: jax.device_put(x, jax.devices()[0]),
    "on a mesh": lambda x: jax.device_put(
        x, jax.NamedSharding(jax.make_mesh((1,), ("d",)), jax.P())
    ),
}


RUNS = {"a call": lambda ex, w, x: ex(w, x), "a map": lambda ex, w, x: ex.map(w, [x, x])}


@pytest.mark.parametrize("put", PLACED.values(), ids=PLACED)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_is_shared_may_be_put_elsewhere_and_no_graph_compiles_twice(put, run):
    ex = sx.Exec(lambda w, x: (x * w["w"]).sum(), (None, "s"), buckets=P)
    run(ex, {"w": jnp.float32(2)}, ones(3))
    assert ex.graphs[-1].shardings == {}
    for _ in range(3):
        run(ex, {"w": put(jnp.float32(2))}, ones(3))
    assert [len(row.shardings) for row in ex.graphs] == [0, 1]
    ex.freeze()
    run(ex, {"w": put(jnp.float32(3))}, ones(3))
    run(ex, {"w": jnp.float32(2)}, ones(4))
    with refused(sx.FrozenError, "no graph is compiled", "do not freeze"):
        run(ex, {"w": put(jnp.ones(1))}, ones(3))
    assert ex.stats.compiles == 2


@pytest.mark.parametrize("tree", [lambda x: x, lambda x: {"x": x}], ids=["array", "tree"])
def test_an_array_that_was_put_on_purpose_and_one_that_was_not_are_planned_once_each(
    tree, monkeypatch
):
    ex = sx.Exec(lambda x: jax.tree.map(jnp.sum, x), ("s",), buckets=P)
    given = [tree(jnp.ones(3)), tree(jax.device_put(jnp.ones(3), jax.devices()[0]))]
    for x in given:
        ex(x)
    bound, bind = [], Binder.bind
    told = lambda self, call, **seen: bound.append(call) or bind(self, call, **seen)
    monkeypatch.setattr(Binder, "bind", told)
    for x in given * 2:
        ex(x)
    assert [row.hits for row in ex.graphs] == [2, 2]
    assert bound == []
