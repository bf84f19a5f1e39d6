"""A loaded graph behaves as one that was made, and spares masks, lowering and XLA."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.execution import _compile, _warmup
from shapeexec.execution._function import runner_of
from shapeexec.execution.saving import _saved
from tests.execution.saving.support import SPECS, W, attend, data, saved, told
from tests.tolerance import assert_close

X = data()


@pytest.fixture
def loading(monkeypatch):
    """Loads, and fails from then on where a mask is put in."""

    def fail(*args, **kwargs):
        raise AssertionError("a mask was put in")

    def load(*args, **options):
        monkeypatch.setattr(_compile.Recipe, "body", fail)
        return sx.load(*args, trusted=True, **options)

    return load


def test_a_loaded_graph_tells_where_it_came_from(tmp_path, loading):
    saved_run = saved(tmp_path)
    run = loading(tmp_path, attend)
    seen = []
    run.on_event(seen.append)
    run(W, X)
    run(W, X)
    (row,) = run.graphs
    assert (row.origin, row.hits, row.sizes) == ("loaded", 1, "b=4, s=8")
    assert row.seconds.load > 0
    assert (row.seconds.mask, row.seconds.lower, row.seconds.compile) == (0, 0, 0)
    assert row.bytes == saved_run.graphs[0].bytes
    assert [event.kind for event in seen] == ["loaded", "call", "call"]
    stats = run.stats
    assert (stats.loads, stats.compiles, stats.misses, stats.hits) == (1, 0, 1, 1)
    assert stats.load_seconds == row.seconds.load
    assert "loaded" in str(row)
    assert run.last_miss() is None
    assert "HloModule" in row.hlo()


def test_a_preview_reads_no_program_and_explains_the_masks(tmp_path):
    run = saved(tmp_path)
    again = sx.load(tmp_path, attend, trusted=True)
    assert str(again.plan(W, X)) == str(sx.Exec(attend, SPECS).plan(W, X))
    assert again.cache_size == 0
    assert str(again.explain(W, X).program) == str(sx.Exec(attend, SPECS).trace(W, X))
    again(W, X)
    assert again.explain(W, X).masks == run.explain(W, X).masks
    assert again.stats.loads == 1


def test_the_trace_of_a_loaded_graph_is_proven(tmp_path):
    saved(
        tmp_path, fn=lambda w, x: attend(w, x) * (2 if type(x.shape[1]) is int else 1), check="off"
    )
    run = sx.load(
        tmp_path, lambda w, x: attend(w, x) * (2 if type(x.shape[1]) is int else 1), trusted=True
    )
    assert run.settings.check == "off"
    run = run.variant(check="graphs")
    with told() as texts:
        assert_close(run(W, X), 2 * attend(W, X))
    assert run.stats.differences == 1
    assert "at symbolic sizes the function is not the same" in texts[0]


def test_another_dtype_structure_configuration_or_place_is_planned_anew(tmp_path):
    def fn(w, x):
        return attend(w["w"], x)

    run = sx.Exec(fn, SPECS)
    run({"w": W}, X)
    run.save(tmp_path)
    run = sx.load(tmp_path, fn, trusted=True)
    expected = run({"w": W}, X)
    run({"w": W}, X)
    assert (run.stats.loads, run.stats.hits, run.stats.compiles) == (1, 1, 0)
    with told():
        placed = jax.device_put(W, jax.devices()[0])
        np.testing.assert_array_equal(run({"w": placed}, X), expected)
        assert run({"w": W.astype(jnp.bfloat16)}, X).dtype == np.float32
        np.testing.assert_array_equal(run({"w": W, "unused": W}, X), expected)
        with pytest.raises(KeyError):
            run({"v": W}, X)
        with jax.default_matmul_precision("highest"):
            assert_close(run({"w": W}, X), expected)
        with jax.enable_x64(True):
            run({"w": W}, X)
    assert (run.stats.loads, run.stats.compiles) == (1, 5)
    run({"w": W}, X)
    assert (run.stats.loads, run.stats.compiles) == (1, 5)


def test_after_clear_caches_it_runs_on(tmp_path, loading):
    saved(tmp_path)
    run = loading(tmp_path, attend)
    expected = run(W, X)
    jax.clear_caches()
    np.testing.assert_array_equal(run(W, X), expected)
    assert (run.stats.loads, run.stats.compiles) == (1, 0)


def test_donated_arguments_are_taken(tmp_path):
    def add(x, y):
        return x + y

    run = sx.Exec(add, ("s, 4", "s, 4"), donate_argnums=0)
    run(jnp.ones((8, 4)), jnp.ones((8, 4)))
    run.save(tmp_path)
    again = sx.load(tmp_path, add, trusted=True)
    given = jnp.ones((8, 4))
    np.testing.assert_array_equal(again(given, jnp.ones((8, 4))), 2 * np.ones((8, 4)))
    assert given.is_deleted()
    assert again.stats.loads == 1
    given = jnp.ones((8, 4))
    again(given, jnp.ones((8, 4)))
    assert given.is_deleted()
    assert again.stats.hits == 1


def test_handles_go_in_and_come_out(tmp_path, loading):
    def double(x):
        return 2 * x

    run = sx.Exec(double, ("s, 4",))
    run.padded(run.padded(X[0]))
    assert run.save(tmp_path) == 1
    again = loading(tmp_path, double)
    result = again.padded(again.padded(X[0]))
    np.testing.assert_array_equal(np.asarray(result), 4 * X[0])
    assert (again.stats.loads, again.stats.compiles) == (1, 0)


def score(w, x):
    return (jax.nn.softmax(x @ w)[:, None] * x).sum()


@pytest.mark.parametrize("reduce", [None, "sum"])
def test_maps_are_loaded(tmp_path, reduce):
    examples = [data(1, s)[0] for s in (3, 7, 5)]
    run = sx.Exec(jax.value_and_grad(score), (None, "s, 4"))
    expected = run.map(W, examples, reduce=reduce)
    assert run.save(tmp_path) == 1
    again = sx.load(tmp_path, jax.value_and_grad(score), trusted=True)
    for _ in range(2):
        jax.tree.map(np.testing.assert_array_equal, again.map(W, examples, reduce=reduce), expected)
    assert (again.stats.loads, again.stats.compiles, again.stats.hits) == (1, 0, 1)
    assert again.graphs[0].examples == 4


def test_typed_keys_are_returned_and_hit(tmp_path):
    def draw(key, x):
        return jax.random.split(key)[0], x + jax.random.normal(key, x.shape)

    run = sx.Exec(draw, (None, "s, 4"))
    expected = run(jax.random.key(3), X[0])
    run.save(tmp_path)
    again = sx.load(tmp_path, draw, trusted=True)
    for _ in range(3):
        key, x = again(jax.random.key(3), X[0])
    np.testing.assert_array_equal(x, expected[1])
    assert key == expected[0]
    assert (again.stats.loads, again.stats.compiles, again.stats.hits) == (1, 0, 2)
    key, _ = again(jax.random.key(3), X[0].astype(jnp.bfloat16))
    assert again.stats.compiles == 1


def branching(w, x):
    return attend(w, x) * (2 if x.shape[1] > 6 else 3)


def test_each_outcome_of_a_guard_is_loaded(tmp_path):
    options = {"buckets": {"b": 4, "s": sx.Ladder([8])}}
    run = saved(tmp_path, (3, 5), (3, 7), fn=branching, **options)
    again = sx.load(tmp_path, branching, trusted=True)
    for s in (5, 7, 4, 8):
        np.testing.assert_array_equal(again(W, data(3, s)), run(W, data(3, s)))
    assert (again.stats.loads, again.stats.compiles) == (2, 0)
    assert again.settings.strategies == run.settings.strategies


def test_static_values_and_dicts_of_arguments_are_told_apart(tmp_path):
    def fn(args, kind):
        return args["x"].sum() * (2 if kind == "double" else 1)

    run = sx.Exec(fn, ({"x": "s, 4"}, None), static_argnums=1)
    values = [run({"x": X[0]}, kind) for kind in ("double", "single")]
    assert run.save(tmp_path) == 2
    again = sx.load(tmp_path, fn, trusted=True)
    assert [again({"x": X[0]}, kind) for kind in ("double", "single")] == values
    assert (again.stats.loads, again.stats.compiles) == (2, 0)


def test_threads_that_call_at_once_load_once(tmp_path, loading):
    saved(tmp_path)
    run = loading(tmp_path, attend)
    start = threading.Barrier(8)
    results = []

    def work():
        start.wait()
        results.append(run(W, X))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert run.stats.loads == 1


def test_a_warm_up_loads_what_was_saved(tmp_path, loading):
    saved(tmp_path, (3, 5), (3, 9), (1, 5))
    run = loading(tmp_path, attend)
    run.warmup(W, X, b=3, s=range(5, 17), workers=2)
    assert (run.stats.loads, run.stats.compiles) == (2, 0)
    run.freeze()
    run(W, data(1, 5))  # it is compiled already, in a file
    assert run.stats.loads == 3


@pytest.mark.parametrize("trusted", [True, False])
def test_a_warm_up_without_sizes_makes_what_was_saved(tmp_path, trusted):
    saved(tmp_path, (3, 5), (3, 9), (1, 5))
    run = sx.load(tmp_path, attend, trusted=trusted)
    assert run.warmup(W, X) == 3
    assert {row.sizes for row in run.graphs} == {"b=4, s=8", "b=4, s=16", "b=1, s=8"}
    assert run.stats.loads == (3 if trusted else 0)


def test_a_warm_up_plans_each_graph_that_was_saved_once(tmp_path, monkeypatch):
    def branching(w, x):
        return attend(w, x) if x.shape[1] % 2 else 2 * attend(w, x)

    saved(tmp_path, (3, 5), (3, 6), (3, 9), fn=branching)
    run = sx.load(tmp_path, branching, trusted=True)
    planned, at_sizes = [], _warmup.at_sizes
    monkeypatch.setattr(
        _warmup,
        "at_sizes",
        lambda *args, sizes: planned.append(sizes) or at_sizes(*args, sizes=sizes),
    )
    run.warmup(W, X)
    assert len(planned) == len(runner_of(run).store.making.saved.sizes) == 3


@pytest.mark.parametrize("options", [{"missing": "larger"}, {"missing": "error"}])
def test_other_ways_of_missing_load(tmp_path, options):
    run = sx.Exec(attend, SPECS, **options)
    run.warmup(W, X, b=4, s=[8, 16])
    assert run.save(tmp_path) == 2
    again = sx.load(tmp_path, attend, trusted=True)
    assert again.settings.missing == options["missing"]
    again(W, X)
    assert (again.stats.loads, again.stats.compiles) == (1, 0)


def test_a_quick_graph_is_not_saved_and_a_tuned_one_serves_at_once(tmp_path):
    run = sx.Exec(attend, SPECS, compiling=sx.Compiling(first="quick"))
    run(W, X)
    while run.graphs[0].origin != "tuned":
        run(W, X)
    assert run.save(tmp_path) == 1
    again = sx.load(tmp_path, attend, trusted=True)
    again(W, X)
    assert again.graphs[0].origin == "loaded"
    assert (again.stats.loads, again.stats.compiles, again.stats.swaps) == (1, 0, 0)


def test_what_a_loaded_exec_saves_is_complete(tmp_path):
    saved(tmp_path / "one")
    run = sx.load(tmp_path / "one", attend, trusted=True)
    run(W, X)
    run(W, data(3, 9))
    assert run.save(tmp_path / "two") == 2
    again = sx.load(tmp_path / "two", attend, trusted=True)
    again(W, X)
    again(W, data(3, 9))
    assert (again.stats.loads, again.stats.compiles) == (2, 0)


def test_a_graph_that_left_the_cache_is_loaded_again(tmp_path):
    saved(tmp_path, (3, 5), (3, 9), limits=sx.CacheLimits(graphs=8))
    with told():
        run = sx.load(tmp_path, attend, trusted=True, limits=sx.CacheLimits(graphs=1))
    for s in (5, 9, 5):
        np.testing.assert_array_equal(run(W, data(3, s)).shape, (3, 4))
    assert (run.stats.loads, run.stats.compiles, run.stats.evictions) == (3, 0, 2)


def test_what_calls_the_host_is_not_saved_and_told(tmp_path):
    def fn(x):
        jax.debug.callback(lambda value: None, x.sum())
        return x.sum()

    run = sx.Exec(fn, ("s, 4",))
    run(X[0])
    with told() as texts:
        assert run.save(tmp_path) == 0
    (text,) = texts
    assert text.startswith(
        "shapeexec: 1 graphs are not saved: s=8: `debug_callback`, which calls a function of this"
    )
    assert "Fix:   nothing is wrong with them: a process that loads makes them anew" in text
    again = sx.load(tmp_path, fn, trusted=True)
    again(X[0])
    assert again.stats.compiles == 1


def test_a_program_that_fails_when_it_first_runs_is_made_anew(tmp_path, monkeypatch):
    saved(tmp_path)
    run = sx.load(tmp_path, attend, trusted=True)

    def fail(self, result):
        raise _compat.JaxRuntimeError("NOT_FOUND: Function dot.1_kernel not found")

    monkeypatch.setattr(_saved.LoadedGraph, "begun", fail)
    with told() as texts:
        np.testing.assert_array_equal(run(W, X), run(W, X))
    assert [row.origin for row in run.graphs] == ["made"]
    assert "JaxRuntimeError: NOT_FOUND: Function dot.1_kernel not found" in texts[0]


def test_a_map_that_fails_when_it_first_runs_is_made_anew(tmp_path, monkeypatch):
    examples = [data(1, s)[0] for s in (3, 7)]
    run = sx.Exec(score, (None, "s, 4"))
    expected = run.map(W, examples)
    assert run.save(tmp_path) == 1
    run = sx.load(tmp_path, score, trusted=True)

    def fail(self, result):
        raise _compat.JaxRuntimeError("NOT_FOUND: Function dot.1_kernel not found")

    monkeypatch.setattr(_saved.LoadedGraph, "begun", fail)
    with told() as texts:
        np.testing.assert_array_equal(run.map(W, examples), expected)
    assert [row.origin for row in run.graphs] == ["made"]
    assert "JaxRuntimeError: NOT_FOUND: Function dot.1_kernel not found" in texts[0]


def test_modules_are_loaded(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    def fn(model, x):
        return model(x).sum(axis=1)

    run = sx.Exec(fn, SPECS)
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    expected = run(model, X)
    assert run.save(tmp_path) == 1
    again = sx.load(tmp_path, fn, trusted=True)
    np.testing.assert_array_equal(again(model, X), expected)
    assert (again.stats.loads, again.stats.compiles) == (1, 0)


def test_the_trace_is_proven_while_the_graph_is_read(tmp_path, monkeypatch):
    saved(tmp_path)
    proven, real = threading.Event(), _saved.read_graph

    def read(*args, **options):
        assert proven.wait(60)  # the proof does not wait for the file
        return real(*args, **options)

    def fn(w, x):
        if type(x.shape[1]) is int:  # it is traced by plain JAX
            proven.set()
        return attend(w, x)

    monkeypatch.setattr(_saved, "read_graph", read)
    run = sx.load(tmp_path, fn, trusted=True)
    with told() as texts:
        assert_close(run(W, X), attend(W, X))
    assert not texts
    (row,) = run.graphs
    assert row.origin == "loaded"
    assert run.stats.check_seconds == row.seconds.check > 0
    assert row.seconds.total < row.seconds.trace + row.seconds.check + row.seconds.load
