"""Exec against the plain function: arguments, results, dtypes, placement."""

import collections
import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, assert_same, counted, ones
from tests.marks import written
from tests.processes import on_devices

P = sx.Pow2()


@pytest.mark.parametrize("make", [ones, lambda n: jnp.asarray(ones(n))], ids=["numpy", "jax"])
@pytest.mark.parametrize(("strategy", "graphs"), [(P, 8), (sx.Linear(8), 13)], ids=repr)
def test_batches_to_100_compile_one_graph_a_bucket_and_nothing_else(make, strategy, graphs):
    double = sx.Exec(lambda x: 2 * x, ("b, ...",), buckets=strategy)
    batches = [make(n) for n in range(1, 101)]
    with counted() as count:
        results = [double(batch) for batch in batches]
    assert count.compilations == double.cache_size == double.stats.compiles == graphs
    assert [len(result) for result in results] == list(range(1, 101))


def test_a_committed_batch_compiles_its_graph_once_as_well():
    double = sx.Exec(lambda x: 2 * x, ("s",), buckets=P)
    batch = jax.device_put(ones(5), jax.devices()[0])
    with counted() as count:
        double(batch)
    assert count.compilations == 1


@pytest.mark.parametrize("size", [1, 3, 4, 5], ids="s={}".format)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.mean(),
        lambda x: x,
        lambda x: (x, x + 1),
        lambda x: {"a": x.max(), "b": [x * 2, None]},
        lambda x: x.reshape(-1),
        lambda x: jnp.concatenate([x, x[:1]]),
        lambda x: jnp.ones(3),
        lambda x: jnp.float32(1),
        lambda x: 1.0,
        lambda x: None,
        lambda x: x.shape[0],
        lambda x: x[:, None] * x[None, :],
        lambda x: jax.lax.scan(lambda c, y: (c + y, c), 0.0, x),
        lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, c: c * 2, 1.0),
    ],
    ids=written,
)
def test_results_are_those_of_the_plain_function(fn, size):
    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(size))


def test_results_may_have_shapes_that_are_expressions_of_sizes():
    def fn(x):
        return x.reshape(-1), jnp.concatenate([x, x], 1), x[0] + jnp.zeros((2, x.shape[1]))

    ex = sx.Exec(fn, ("b, s",), buckets=P)
    for shape in ((3, 5), (1, 1), (4, 8), (2, 3)):
        assert_runs_as(fn, ex, ones(*shape))


def test_a_symbol_may_occur_twice_and_in_expressions_alone():
    def fn(x, y):
        return x @ x.T, y.sum(), y[:1]

    ex = sx.Exec(fn, ("s, s", "2*t + 1"), buckets=P)
    for s, t in ((3, 1), (5, 3), (4, 4)):
        assert_runs_as(fn, ex, ones(s, s), ones(2 * t + 1))


def test_two_symbols_of_one_size_are_two_symbols_still():
    def fn(x):
        return x.sum(0), x.sum(1)

    ex = sx.Exec(fn, ("b, s",), buckets=P)
    for shape in ((3, 3), (3, 4), (4, 3)):
        assert_runs_as(fn, ex, ones(*shape))
    assert ex.stats.traces == 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_axis_of_size_0_runs_exactly(shape):
    def fn(x):
        return x.sum(0), x * 2

    ex = sx.Exec(fn, ("b, s",), buckets=P)
    assert_runs_as(fn, ex, ones(*shape))
    assert_runs_as(fn, ex, ones(3, 3))


# Trees


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    tokens: object
    length: object


Pair = collections.namedtuple("Pair", "left right")


def test_arguments_and_results_may_be_trees_with_nested_specs():
    def fn(params, batch):
        pair = batch["pair"]
        scaled = pair.left * params["w"] + pair.right
        return Pair(scaled, None), {"sum": scaled.sum(), "item": batch["item"].tokens}

    specs = (None, {"pair": Pair("b, s", None), "item": Batch("b", None), "none": None})
    ex = sx.Exec(fn, specs, buckets=P)
    for b, s in ((3, 5), (1, 2)):
        batch = {"pair": Pair(ones(b, s), 2.0), "item": Batch(ones(b), ones(2)), "none": None}
        assert_runs_as(fn, ex, {"w": 3.0}, batch)
        assert_runs_as(fn, ex, {"w": 3.0}, batch)


def test_a_spec_may_stand_for_a_whole_tree():
    def fn(xs):
        return xs["a"].sum() + xs["b"][0].mean()

    assert_runs_as(fn, sx.Exec(fn, ("s, ...",), buckets=P), {"a": ones(3), "b": [ones(3, 2)]})


def test_keywords_may_be_ragged_static_and_passed_in_any_order():
    def fn(x, *, y, z):
        return (x + y).sum() * z["w"]

    ex = sx.Exec(fn, ("s",), buckets=P, kwarg_shapes={"y": "s"})
    for n in (3, 5, 3):
        assert_runs_as(fn, ex, ones(n), y=ones(n) * 2, z={"w": 2.0})
        assert_runs_as(fn, ex, ones(n), z={"w": 3.0}, y=ones(n) * 2)
    assert ex.cache_size == 2


def test_a_keyword_may_name_a_positional_argument():
    def fn(params, x):
        return params * x.sum()

    ex = sx.Exec(fn, (None, "s"), buckets=P)
    for n in (3, 4):
        assert_runs_as(fn, ex, 2.0, x=ones(n))
        assert_runs_as(fn, ex, x=ones(n), params=2.0)
    assert ex.cache_size == 1


def test_without_specs_a_keyword_may_be_an_array_once_and_a_scalar_then():
    def fn(x, *, y):
        return x * y

    ex = sx.Exec(fn)
    assert_runs_as(fn, ex, ones(3), y=ones(3))
    assert_runs_as(fn, ex, ones(3), y=np.float32(2))
    assert_runs_as(fn, ex, ones(5), y=ones(5))


# Static arguments


def test_a_static_argument_has_a_graph_for_each_value():
    def fn(x, n):
        return x * sum(range(n))

    ex = sx.Exec(fn, ("s", None), buckets=P, static_argnums=1)
    for n in (2, 3, 2):
        assert_runs_as(fn, ex, ones(3), n)
    assert ex.cache_size == 2


@pytest.mark.parametrize("option", [{"static_argnums": 1}, {"static_argnames": "n"}], ids=str)
@pytest.mark.parametrize("specs", [None, ("s", None)], ids=["default specs", "specs"])
def test_a_static_argument_is_static_by_position_and_by_name(option, specs):
    def fn(x, n):
        return x * sum(range(n))

    ex = sx.Exec(fn, specs, buckets=P, **option)
    assert_same(ex(ones(3), 3), jnp.asarray(ones(3) * 3))
    assert_same(ex(ones(3), n=3), jnp.asarray(ones(3) * 3))


def test_equal_static_values_of_different_types_are_different():
    def fn(x, n):
        return x * (2 if isinstance(n, bool) else 3)

    ex = sx.Exec(fn, ("s", None), buckets=P, static_argnums=1)
    for n in (1, True, 1):
        assert float(ex(ones(1), n)[0]) == (2 if n is True else 3)


def test_equal_static_tuples_of_different_types_are_different():
    ex = sx.Exec(lambda x, n: x.astype(type(n[0])), ("s", None), buckets=P, static_argnums=1)
    for n in ((1,), (1.0,), (1,)):
        assert ex(ones(3), n).dtype == (np.float32 if isinstance(n[0], float) else np.int32)


def test_a_static_tree_may_stand_before_the_ragged_argument():
    def fn(shape, x):
        return x.sum() + jnp.ones(shape)

    ex = sx.Exec(fn, (None, "s"), buckets=P, static_argnums=0)
    assert_runs_as(fn, ex, (2, 3), ones(3))
    assert ex.warmup(s=range(1, 9)) == 3
    assert_runs_as(fn, ex, (2, 3), ones(7))


# Inside a trace


@pytest.mark.filterwarnings("ignore:shapeexec:RuntimeWarning")
def test_inside_a_trace_the_plain_function_runs():
    ex = sx.Exec(lambda x: x.mean(), ("s",), buckets=P)
    x = jnp.asarray(ones(5))
    assert_same(jax.jit(ex)(x), x.mean())
    assert_same(jax.grad(ex)(x), jnp.full(5, 0.2, jnp.float32))
    assert_same(jax.vmap(ex)(x[None]), x.mean()[None])
    assert (ex.cache_size, ex.stats.plain_calls) == (0, 3)


@pytest.mark.filterwarnings("ignore:shapeexec:RuntimeWarning")
def test_inside_a_trace_constants_run_the_plain_function_as_well():
    ex = sx.Exec(lambda x: x.mean(), ("s",), buckets=P)
    const = jnp.asarray(ones(5))
    total, _ = jax.lax.scan(lambda c, _: (c + ex(const), None), 0.0, None, length=2)
    assert float(total) == 6
    assert float(jax.jit(lambda: ex(const))()) == 3
    assert ex.cache_size == 0


def test_jit_may_be_disabled():
    ex = sx.Exec(lambda x: x.mean(), ("s",), buckets=P)
    with jax.disable_jit():
        assert float(ex(ones(5))) == 3


# Memory


def test_a_numpy_argument_may_be_written_to_after_the_call():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    for size in (1 << 18, (1 << 18) - 1):
        x = np.zeros(size, np.float32)
        result = ex(x)
        x[:] = -5
        assert float(result.min()) == 1


def test_results_share_no_memory_that_is_used_again():
    ex = sx.Exec(lambda x: (x, x, x * 2), ("s",), buckets=P)
    results = [ex(ones(3) * i) for i in range(20)]
    for i, (same, again, doubled) in enumerate(results):
        jax.jit(lambda x: x + 100, donate_argnums=0)(same)
        np.testing.assert_array_equal(np.asarray(again), ones(3) * i)
        np.testing.assert_array_equal(np.asarray(doubled), ones(3) * i * 2)


def test_a_donated_argument_is_taken_whether_or_not_it_fills_its_bucket():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P, donate_argnums=0)
    full, part = jnp.asarray(ones(4)), jnp.asarray(ones(3))
    assert_same(ex(full), jnp.asarray(ones(4) + 1))
    assert_same(ex(part), jnp.asarray(ones(3) + 1))
    assert full.is_deleted()
    assert part.is_deleted()


def test_calls_are_remembered_without_their_arrays():
    ex = sx.Exec(lambda p, x: x + p["w"].sum(), (None, "s"), buckets=P)
    params = {"w": jnp.asarray(ones(7))}
    for _ in range(2):
        ex(params, ones(3))
    alive = weakref.ref(params["w"])
    del params
    gc.collect()
    assert alive() is None


def test_an_exec_that_goes_takes_its_graphs_along():
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    ex(ones(3))
    graph = weakref.ref(next(iter(ex._runner.store._cache._entries.values())))
    del ex
    gc.collect()
    assert graph() is None


def test_of_graphs_that_left_the_cache_nothing_stays():
    def norm(x):
        return jnp.sqrt((x * x).sum())

    ex = sx.Exec(norm, ("s",), buckets=sx.Linear(1), limits=sx.CacheLimits(graphs=1))
    alive, before = [], len(jax.devices()[0].client.live_executables())
    for size in range(3, 9):
        ex(ones(size))
        (graph,) = ex._runner.store.graphs()
        held = (graph, graph.compiled, graph.outline, graph.outline.recipe, graph.jitted)
        alive.append([weakref.ref(one) for one in held])
        alive[-1].append(weakref.ref(graph.jitted.trace(*graph.outline.arguments).jaxpr.jaxpr))
        del graph, held
    gc.collect()
    assert [[one() is not None for one in each] for each in alive] == 5 * [6 * [False]] + [
        6 * [True]
    ]
    assert len(jax.devices()[0].client.live_executables()) <= before + 1


# Looks


def test_an_exec_looks_like_its_function():
    def halve(x):
        """Half of it."""
        return x / 2

    ex = sx.Exec(halve)
    assert (ex.__name__, ex.__doc__, ex.__wrapped__) == ("halve", "Half of it.", halve)
    assert "halve, 0 graphs" in repr(ex)


def test_a_callable_without_a_name_will_do():
    fn = functools.partial(jnp.sum, axis=0)
    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(3))


def test_bucketed_decorates():
    @sx.bucketed(("s",), {"s": sx.Linear(4)})
    def mean(x):
        return x.mean()

    assert isinstance(mean, sx.Exec)
    assert float(mean(ones(3))) == 2
    assert mean.plan(ones(3)).buckets == {"s": 4}


_TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np, shapeexec as sx
first, second = jax.devices()
fn = lambda p, x: (x * p, x)
for device in (None, first, second):
    for p, x in ((jnp.float32(2), np.ones(3, np.float32)), (jnp.float32(2), jnp.ones(3))):
        if device is not None:
            x = jax.device_put(x, device)
        ex = sx.Exec(fn, (None, "s"), buckets=sx.Pow2())
        ex.warmup(p, x, s=range(1, 9))
        ex.freeze()
        for got, want in zip(ex(p, x), jax.jit(fn)(p, x)):
            assert got.devices() == want.devices(), device
            assert got.committed == want.committed, device
ex = sx.Exec(fn, (None, "s"), buckets=sx.Pow2())
for device in (first, second, first):
    (got, _) = ex(jax.device_put(2.0, device), np.ones(3, np.float32))
    assert got.devices() == {device} and got.shape == (3,)
mesh, Spec = jax.make_mesh((2,), ("d",)), jax.sharding.PartitionSpec
whole, halves = (jax.sharding.NamedSharding(mesh, Spec(*axes)) for axes in ((), ("d",)))
got, _ = ex(jax.device_put(jnp.ones(1), whole), jax.device_put(jnp.arange(6.0), halves))
np.testing.assert_array_equal(np.asarray(got), np.arange(6.0))
"""


@pytest.mark.slow
def test_results_stand_where_those_of_the_plain_function_stand():
    on_devices(2, "-c", _TWO_DEVICES)
