"""Handles: donation, results on the host, and what a handle itself can do."""

import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _transfer
from tests.execution.handles import handle, padding
from tests.execution.support import counted, ones, refused
from tests.processes import on_devices
from tests.tolerance import assert_close

P = sx.Pow2(minimum=4)


# Donation


@pytest.mark.parametrize("strategy", [P, sx.Linear(6)], ids=["at capacity", "moved"])
@pytest.mark.parametrize("hits", [0, 1])
def test_a_donated_handle_is_gone_and_says_so(strategy, hits, place):
    make = sx.Exec(lambda x: x + 1, ("s",), buckets=P, returns="padded")
    run = sx.Exec(lambda x: x * 2, ("s",), buckets=strategy, donate_argnums=0, returns="padded")
    for _ in range(hits + 1):
        given = make(ones(3))
        kept, view = given.cut(), np.asarray(given)
        got = run(given)
    assert run.stats.hits == hits
    assert given.is_deleted()
    assert repr(given) == "Padded(f32[3] in [4], deleted)"
    fix = "use the handle that this call returned"
    for use in (run, make, np.asarray, sx.Padded.cut, jax.block_until_ready, sx.Exec(jnp.sum)):
        with refused(sx.ConfigError, "the array of this sx.Padded is gone.", fix):
            use(given)
    assert_close(np.asarray(got), 2 * (ones(3) + 1))
    for copy in (kept, view):  # nobody has written over them
        assert_close(copy, ones(3) + 1)


def test_a_donated_handle_that_is_given_twice_is_refused():
    run = sx.Exec(lambda x, y: (x * 2, y.sum()), ("s", "s"), buckets=P, donate_argnums=0)
    given = sx.Exec(lambda x: x + 1, ("s",), buckets=P).padded(ones(3))
    with refused(sx.ConfigError, "a donated array is given twice.", "pass a copy"):
        run(given, given)
    assert not given.is_deleted()


def test_a_result_takes_the_memory_of_a_donated_handle():
    run = sx.Exec(lambda x: x + 1, ("s",), buckets=P, donate_argnums=0, returns="padded")
    given = run(jnp.asarray(ones(3)))
    place = given.array.unsafe_buffer_pointer()
    assert run(given).array.unsafe_buffer_pointer() == place


# On the host


def test_results_on_the_host_are_cut_there_and_no_size_compiles(place):
    run = sx.Exec(lambda x: (x + 1, x.sum(), x > 2), ("s",), buckets=sx.Linear(64), returns="host")
    with counted() as count:
        for size in range(1, 40):
            got, want = run(ones(size)), run.settings.fn(ones(size))
            for one, other in zip(got, want, strict=True):
                assert isinstance(one, np.ndarray)
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                assert_close(one, other)
    assert count.compilations == run.stats.compiles == 1
    assert run.stats.copy_compiles == 0


def test_on_an_accelerator_results_as_arrays_compile_per_size(monkeypatch):
    monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    run = sx.Exec(lambda x: x - 7, ("s",), buckets=sx.Linear(32))
    for size in (21, 22, 23):
        run(ones(size))
    assert run.stats.copy_compiles == 3


def test_one_exec_returns_both_kinds():
    run = sx.Exec(lambda x: x + 1, ("s",), buckets=P, returns="host")
    for _ in range(2):
        assert isinstance(run(ones(3)), np.ndarray)
        assert isinstance(run.padded(ones(3)), sx.Padded)
    assert (run.stats.graphs, run.stats.hits) == (2, 2)


def test_keys_on_the_host_stay_those_of_jax():
    keys = jax.random.split(jax.random.key(0), 3)
    got = sx.Exec(lambda keys: keys[::-1], ("s",), buckets=P, returns="host")(keys)
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(keys[::-1]))


# The handle itself


def test_a_handle_is_a_leaf_that_jax_numpy_refuses():
    given = handle(ones(3), (4,), fill=np.nan)
    assert jax.tree.leaves({"x": given}) == [given]
    assert repr(given) == "Padded(f32[3] in [4])"
    assert np.sum(given) == 6
    assert np.asarray(given, np.int8).dtype == np.int8
    np.testing.assert_array_equal(jax.device_get([given])[0], ones(3))
    assert jax.block_until_ready(given) is given
    for use in (jnp.sum, jax.jit(lambda x: x)):
        with pytest.raises(TypeError, match="Padded"):
            use(given)
    with pytest.raises(TypeError):
        given + 1
    with refused(sx.ConfigError, "copy=False", "np.asarray(handle)"):
        np.asarray(given, copy=False)
    again = pickle.loads(pickle.dumps(given))
    assert_close(np.asarray(again), ones(3))


def test_whole_handles_cut_to_their_array():
    given = sx.Padded(jnp.ones(4), [np.int64(4)])
    assert given.cut() is given.array
    assert given.shape == (4,)


@pytest.mark.parametrize("fill", [0, np.nan])
def test_a_grown_handle_has_zeros_at_its_end(fill, place):
    x = ones(3, 2)
    given = handle(x, (4, 3), fill=fill)
    for by, axis, capacity in [(1, 0, (4, 3)), (2, 0, (8, 3)), (1, -1, (4, 3)), (9, 1, (4, 11))]:
        got = given.grown(by, axis=axis)
        missing = [(0, by if n == axis % 2 else 0) for n in range(2)]
        np.testing.assert_array_equal(np.asarray(got), np.pad(x, missing))
        assert got.array.shape == capacity
        assert not padding(got).any()
    assert sx.Exec(lambda x: x.sum(), ("s, 3",), buckets=P)(given.grown(axis=1)) == 21
    for by, axis in [(-1, 0), (1, 2), (1, -3), (0.5, 0), (True, 0), ("1", 0), (1, 0.0)]:
        what = f"grown: by={by!r} along axis={axis!r} of a handle of shape (3, 2)"
        with refused(sx.ConfigError, what, "by an int from 0 on, and an axis from -2 to 1"):
            given.grown(by, axis=axis)
    longer = given.grown(jnp.int32(1), axis=np.int64(0))
    assert sx.Exec(lambda x: x.sum(), ("s, 2",), buckets=P)(longer) == x.sum()


def test_a_handle_grows_without_a_copy_while_there_is_room():
    made = sx.Exec(lambda x: 2 * x, ("s",), buckets=P).padded(ones(3))
    assert made.grown().array is made.array
    assert made.grown().grown().array.shape == (8,)


def test_a_cache_grows_in_place_in_as_many_graphs_as_buckets():
    def write(cache, row):
        last = cache.shape[0] - 1
        return jax.lax.dynamic_update_index_in_dim(cache, row, last, axis=0), cache.max()

    run = sx.Exec(
        write, ("s, 2", None), buckets=sx.Pow2(minimum=16), donate_argnums=0, returns="padded"
    )
    rows, moves = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32), 0
    cache = handle(rows[:2], (16, 2), fill=np.nan)
    with counted() as count:
        for row in rows[2:]:
            longer = cache.grown()
            place = longer.array.unsafe_buffer_pointer()
            cache, _ = run(longer, row)
            moves += cache.array.unsafe_buffer_pointer() != place
    np.testing.assert_array_equal(np.asarray(cache), rows)
    assert count.compilations == run.stats.compiles == 4
    assert moves <= 4  # where a graph or an array is new


def test_parameters_and_state_are_donated_step_by_step():
    def step(w, x):
        value, slope = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
        return w - 0.1 * slope, value

    prepare = sx.Exec(
        lambda x: x - x.mean(axis=0), ("b, 2",), buckets=sx.Linear(8), returns="padded"
    )
    train = sx.Exec(step, (None, "b, 2"), buckets=sx.Linear(8), donate_argnums=0)
    w, plain = jnp.ones(2), jnp.ones(2)
    for size in [3, 8, 1, 3, 8]:
        x, before = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32), w
        w, value = train(w, prepare(x))
        plain, want = step(plain, x - x.mean(axis=0))
        assert_close(value, want)
        assert before.is_deleted()
    assert_close(w, plain)
    assert train.stats.compiles == prepare.stats.compiles == 1


BAD = {
    "numpy": (lambda: (ones(4), (3,)), "takes a jax.Array", "jax.numpy.asarray(array)"),
    "rank": (lambda: (jnp.ones(4), (3, 1)), "does not fit into", "1 ints, none above (4,)"),
    "greater": (lambda: (jnp.ones(4), (5,)), "does not fit into", "1 ints, none above (4,)"),
    "negative": (lambda: (jnp.ones(4), (-1,)), "does not fit into", "1 ints, none above (4,)"),
    "floats": (lambda: (jnp.ones(4), (3.0,)), "does not fit into", "1 ints, none above (4,)"),
    "an int": (lambda: (jnp.ones(4), 3), "does not fit into", "1 ints, none above (4,)"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_handle_that_cannot_be_is_refused(case):
    args, what, fix = BAD[case]
    with refused(sx.ConfigError, what, fix):
        sx.Padded(*args())


def test_a_traced_array_has_no_handle():
    with refused(sx.ConfigError, "takes a jax.Array that holds data", "outside of functions"):
        jax.jit(lambda x: sx.Padded(x, (3,)))(ones(4))


@pytest.mark.parametrize("given", ["Host", None, 3])
def test_what_results_become_is_one_of_three(given):
    with refused(sx.ConfigError, f"returns={given!r}", "device"):
        sx.Exec(jnp.sum, returns=given)


def test_threads_share_graphs_of_both_kinds():
    run = sx.Exec(lambda x: jnp.exp(-x), ("s",), buckets=sx.Linear(16))
    wrong, barrier = [], threading.Barrier(8)

    def work(number):
        barrier.wait()
        for size in range(1, 16):
            call = run.padded if number % 2 else run
            twice = np.asarray(call(call(ones(size))))
            try:
                assert_close(twice, np.exp(-np.exp(-ones(size))))
            except AssertionError:
                wrong.append((number, size))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert run.stats.compiles == 2


ON_DEVICES = """
import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

devices = jax.devices()
mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
cut = jax.NamedSharding(mesh, jax.P("d"))
make = sx.Exec(lambda x: x[::-1] + 1, ("b, s",), buckets=sx.Linear(16), returns="padded")
both = {"b": sx.Linear(8), "s": sx.Pow2()}
take = sx.Exec(lambda x: (x.max(axis=0), x * 2), ("b, s",), buckets=both)
for where in (devices[1], cut):
    for size in (8, 12):
        x = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        handle = make(jax.device_put(x, where))
        garbage = jnp.full(handle.array.shape, jnp.nan).at[:size, :3].set(np.asarray(handle))
        own = sx.Padded(jax.device_put(garbage, where), (size, 3))
        assert handle.sharding.device_set == own.sharding.device_set == {*handle.array.devices()}
        for given in (handle, own, handle.grown().grown(by=20, axis=1)):
            want = np.asarray(given)
            for _ in range(2):
                most, double = take(given)
                np.testing.assert_array_equal(most, want.max(axis=0))
                np.testing.assert_array_equal(double, want * 2)
                assert double.devices() == handle.array.devices(), (double.devices(), where)
            assert take.plan(given).is_compiled
    take.warmup(handle, b=3, s=3)
print("right")
"""


def test_handles_on_several_devices_are_exact_and_stay_there():
    assert on_devices(4, "-W", "error", "-c", ON_DEVICES) == "right\n"
