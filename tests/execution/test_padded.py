"""Results that stay on the device: handles, what an Exec makes of them, and `returns=`."""

import os
import pickle
import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shapeexec as sx
from shapeexec.execution import _handle, _transfer
from tests.execution.support import assert_same, counted, ones, refused
from tests.tolerance import assert_close

P = sx.Pow2(minimum=4)
SIZES = (1, 3, 4, 5, 8)
FILLS = {
    "nan": np.nan,
    "infinity": np.inf,
    "max": np.finfo(np.float32).max,
    "min": np.finfo(np.float32).min,
    "garbage": -3.5,
}


@pytest.fixture(params=["host", "device"])
def place(request, monkeypatch):
    """Where data is: in memory that NumPy sees, or as on an accelerator."""
    if request.param == "device":
        monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    return request.param


def handle(x, capacity, *, fill=0):
    """A handle that a user makes, with anything for padding."""
    array = np.full(capacity, fill, x.dtype)
    array[tuple(map(slice, x.shape))] = x
    return sx.Padded(jnp.asarray(array), x.shape)


def padding(padded):
    """All elements of the array of a handle that are not valid."""
    is_valid = np.zeros(padded.array.shape, bool)
    is_valid[tuple(map(slice, padded.shape))] = True
    return np.asarray(padded.array)[~is_valid]


def mixed(x):
    """Each reduction that another padding would spoil."""
    return {
        "sum": x.sum(0),
        "mean": x.mean(0),
        "max": x.max(0),
        "min": x.min(0),
        "prod": x.prod(0),
        "argmin": x.argmin(0),
        "sorted": jnp.sort(x, axis=0),
        "softmax": jax.nn.softmax(x, axis=0),
        "self": x @ x.T,
        "reversed": x[::-1],
    }


# Handles as results


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
@pytest.mark.parametrize("size", SIZES)
def test_a_result_is_exact_and_zeros_stand_behind_it(dtype, size):
    x = jnp.asarray(ones(size, 2)).astype(dtype)
    run = sx.Exec(lambda x: (~x if x.dtype == jnp.bool_ else x - 1)[::-1], ("s, 2",), P)
    got, want = run.padded(x), run.settings.fn(x)
    assert isinstance(got, sx.Padded)
    assert (got.shape, got.ndim, got.dtype) == (want.shape, 2, want.dtype)
    assert got.array.shape == (max(4, 1 << (size - 1).bit_length()), 2)
    assert not padding(got).astype(np.float32).any()
    np.testing.assert_array_equal(np.asarray(got), want)
    assert_same(got.cut(), want)


@pytest.mark.parametrize("poison", ["nan", "max", "min", "garbage"])
def test_zeros_stand_behind_the_results_of_poisoned_graphs(poison):
    run = sx.Exec(lambda x: (jnp.exp(x), x[1:], x.T), ("s, 2",), P, poison=poison)
    for got, want in zip(run.padded(ones(5, 2)), run(ones(5, 2)), strict=True):
        assert not padding(got).any()
        assert_close(np.asarray(got), want)


def test_what_has_no_ragged_axis_is_an_array_and_shares_its_graph():
    run = sx.Exec(lambda w, x: (w, x.sum()), (None, "s"), P)
    run(ones(2), ones(3))
    whole, total = run.padded(ones(2), ones(3))
    assert isinstance(whole, jax.Array)
    assert total == 6
    assert run.stats.graphs == 1


def test_graphs_with_zeros_behind_their_results_are_told_apart():
    run = sx.Exec(lambda x: x + 1, ("s",), P)
    run(ones(3))
    filled = run.variant(returns="padded")
    assert [note.action for note in filled.explain(ones(3)).added] == ["filled with 0"]
    assert not run.explain(ones(3)).added
    run.padded(ones(3))
    first, second = run.graphs
    assert (first.has_zero_results, second.has_zero_results) == (False, True)
    assert second.named[-1] == "results padded with zeros"
    assert second.to_dict()["has_zero_results"]
    assert "results padded with zeros" in str(second.key)
    run.freeze()
    run.padded(ones(2))
    with refused(sx.FrozenError, "no graph is compiled", 'returns="padded"'):
        run.padded(ones(5))


def test_zeros_that_are_known_are_not_put_in_again():
    run = sx.Exec(lambda x: 2 * x, ("s",), P, returns="padded")
    assert not run.explain(ones(3)).added
    assert not padding(run(ones(3))).any()


def test_no_size_compiles_anything(place):
    run = sx.Exec(lambda x: (x + 1, x.mean()), ("s",), sx.Linear(64), returns="padded")
    with counted() as count:
        for size in range(1, 60):
            longer, mean = run(jax.block_until_ready(run(ones(size)))[0])
            assert longer.shape == (size,)
            assert_close(mean, np.float32((size + 3) / 2))
    assert count.compilations == 1
    assert run.stats.copy_compiles == 0


def test_a_method_and_a_module_return_handles():
    class Model(eqx.Module):
        w: jax.Array

        @sx.bucketed((None, "s"), P)
        def scaled(self, x):
            return self.w * x

    model = Model(jnp.float32(3))
    assert_close(np.asarray(model.scaled.padded(ones(3))), 3 * ones(3))
    assert_close(np.asarray(Model.scaled.padded(model, ones(3))), 3 * ones(3))


def test_a_module_that_is_the_function_may_hold_handles():
    class Model(eqx.Module):
        w: sx.Padded

        def __call__(self, x):
            return self.w.sum() * x

    run = sx.Exec(Model(handle(ones(3), (8,), fill=np.nan)), ("s",), P)
    for n in (3, 3, 4):
        assert_close(run(ones(n)), 6 * ones(n))
    assert run.stats.compiles == 1


@pytest.mark.parametrize("returns", ["padded", "host"])
def test_the_state_of_modules_stays_on_the_device(returns):
    class Count(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.n[...] += x.shape[0]
            return x * 2

    count = Count()
    run = sx.Exec(lambda count, x: count(x), (None, "s"), P, returns=returns)
    for _ in range(2):
        assert_close(np.asarray(run(count, ones(3))), 2 * ones(3))
    assert isinstance(count.n[...], jax.Array)
    assert count.n[...] == 6


def test_gradients_are_handles():
    run = sx.Exec(jax.grad(lambda x: (x * x.max()).sum()), ("s",), P)
    got = run.padded(ones(5))
    assert_close(np.asarray(got), run(ones(5)))
    assert not padding(got).any()
    integers = sx.Exec(
        jax.grad(lambda x, n: (x * n).sum(), argnums=(0, 1), allow_int=True), ("s", "s"), P
    )
    of_floats, of_integers = integers.padded(ones(5), np.arange(5))
    assert isinstance(of_floats, sx.Padded)
    assert of_integers.dtype == jax.dtypes.float0
    assert of_integers.shape == (5,)


def test_typed_keys_are_handles():
    run = sx.Exec(lambda keys: keys[::-1], ("s",), P)
    keys = jax.random.split(jax.random.key(0), 3)
    got = run.padded(keys)
    back = run(got)
    np.testing.assert_array_equal(jax.random.key_data(back), jax.random.key_data(keys))
    again = sx.Exec(lambda keys: keys[::-1], ("s",), sx.Linear(6))(got)
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))


def test_a_size_of_zero_gives_an_array_of_the_true_shape():
    run = sx.Exec(lambda x: x + 1, ("s",), P)
    assert run.padded(np.zeros(0, np.float32)).shape == (0,)
    empty = sx.Padded(jnp.full(4, jnp.nan), (0,))
    assert run(empty).shape == (0,)
    assert sx.Exec(lambda x: x.sum(), ("s",), P)(empty) == 0


def test_inside_a_trace_handles_are_cut_and_results_are_arrays():
    run = sx.Exec(lambda x, y: x + y, ("s", "s"), P)
    given = handle(ones(3), (4,), fill=np.nan)
    with pytest.warns(RuntimeWarning, match="inside a transformation"):
        assert_same(jax.jit(lambda x: run.padded(x, given))(ones(3)), jnp.asarray(2 * ones(3)))
    assert_same(jax.jit(lambda x: run.map([x], [given])[0])(ones(3)), jnp.asarray(2 * ones(3)))


# Handles as arguments


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("size", SIZES)
def test_padding_of_a_users_handle_never_reaches_a_result(fill, size, place):
    x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
    run = sx.Exec(mixed, ("s, 2",), P, returns="padded")
    want = jax.jit(mixed)(x)
    for capacity in (max(4, size), 8, 11):
        got = run(handle(x, (capacity, 2), fill=FILLS[fill]))
        for name in want:
            assert_close(np.asarray(got[name]), want[name])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, jnp.bfloat16])
def test_padding_of_any_dtype_never_reaches_a_result(dtype, place):
    x = ones(5).astype(dtype)
    fill = True if dtype == np.bool_ else 99
    run = sx.Exec(lambda x: (x.sum(), x.max(), x[::-1]), ("s",), P)
    assert_same(run(handle(x, (8,), fill=fill)), jax.jit(run.settings.fn)(x))
    assert_same(run(handle(x, (6,), fill=fill)), jax.jit(run.settings.fn)(x))


def test_a_handle_at_capacity_goes_in_as_it_is():
    run = sx.Exec(lambda x: x * 2, ("s",), P, returns="padded")
    given = run(ones(3))
    assert _handle.pad(given, run.plan(given).in_capacities[0]) is given.array
    with jax.transfer_guard("disallow"):
        again = run(given)
    assert_close(np.asarray(again), 4 * ones(3))
    assert (run.stats.hits, run.stats.compiles) == (1, 1)


def test_a_handle_shares_the_graph_of_its_array():
    run = sx.Exec(lambda x: x.sum(), ("s",), P)
    run(jnp.asarray(ones(3)))
    assert run(handle(ones(3), (4,), fill=np.nan)) == 6
    assert run(handle(ones(2), (7,), fill=np.nan)) == 3
    assert run.stats.graphs == 1


def test_other_capacities_take_a_program_per_pair_and_not_per_size(monkeypatch):
    monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    run = sx.Exec(lambda x: x.sum(), ("s",), sx.Linear(48))
    array = jnp.asarray(np.ones(43, np.float32))
    with counted() as count:
        for size in range(1, 40):
            assert np.asarray(run(sx.Padded(array, (size,)))) == size
    assert (count.compilations, run.stats.compiles, run.stats.copy_compiles) == (2, 1, 1)


def test_weak_types_and_committed_arrays_stay_so(place):
    weak = jax.lax.full((4,), 2.0)
    run = sx.Exec(lambda x: x * jnp.ones(3, jnp.bfloat16).sum(), ("s",), sx.Linear(6))
    assert_same(run(sx.Padded(weak, (3,))), run.settings.fn(weak[:3]))
    committed = jax.device_put(ones(4), jax.devices()[0])
    assert run(sx.Padded(committed, (3,))).committed


def test_trees_keywords_static_and_exact_arguments_take_handles():
    def fn(tree, w, *, y):
        return (tree["a"] * w["w"]).sum() + tree["b"][0].sum() + y.sum() / y.shape[0]

    run = sx.Exec(
        fn, ({"a": "s", "b": ["t"]}, None), {"s": P, "t": "exact"}, kwarg_shapes={"y": "s"}
    )
    given = {n: handle(ones(n), (8,), fill=np.nan) for n in (3, 5)}
    want = fn({"a": ones(3), "b": [ones(5)]}, {"w": ones(3)}, y=ones(3))
    for _ in range(2):
        args = {"a": given[3], "b": [given[5]]}, {"w": given[3]}
        assert_close(run(*args, y=given[3]), want)
    arrays = {"a": ones(3), "b": [ones(5)]}, {"w": ones(3)}
    assert_close(run(*arrays, y=ones(3)), want)
    assert run.stats.graphs == 1
    # A static argument of another shape is not padded to that of the handle before.
    tree, w = arrays[0], {"w": 2 * ones(1)}
    assert_close(run(tree, w, y=ones(3)), fn(tree, w, y=ones(3)))


def test_what_looks_before_running_takes_handles():
    run = sx.Exec(lambda x: x.sum(), ("s",), P)
    given = handle(ones(5), (11,), fill=np.nan)
    assert run.plan(given).sizes == {"s": 5}
    assert run.explain(given).plan.buckets == {"s": 8}
    assert run.warmup(given, s=[3, 5]) == 2
    assert not run.why_new(given).is_new
    run.freeze()
    assert run(given) == 15
    assert run.warmup(s=5) == 0
    padded, sizes = sx.pad_to_bucket(given, "s", P)
    np.testing.assert_array_equal(padded, np.append(ones(5), np.zeros(3)))
    assert dict(sizes) == {"s": 5}


def test_maps_take_handles(place):
    run = sx.Exec(lambda w, x: (w.sum() * x, x.max()), (None, "s"), P)
    examples = [handle(-ones(n), (8,), fill=np.inf) for n in (3, 5, 8)]
    shared = handle(ones(2), (4,), fill=np.nan)
    for _ in range(2):
        for given, (scaled, most) in zip(examples, run.map(shared, examples), strict=True):
            assert_close(scaled, 3 * np.asarray(given))
            assert most == -1
    total = sx.Exec(lambda x: x.max(), ("s",), P).map(examples, reduce="sum")
    assert total == -3


@pytest.mark.parametrize("returns", ["padded", "host"])
def test_maps_return_what_calls_return(returns, place):
    run = sx.Exec(lambda x: (jnp.exp(x), x.sum()), ("s",), P, returns=returns)
    mapped = run.map([ones(3), ones(5)])
    for (exp, total), size in zip(mapped, (3, 5), strict=True):
        assert isinstance(exp, sx.Padded if returns == "padded" else np.ndarray)
        assert_close(np.asarray(exp), np.exp(ones(size)))
        assert total == ones(size).sum()
        assert isinstance(total, jax.Array if returns == "padded" else np.ndarray)
    assert_close(sx.Exec(lambda x: x.sum(), ("s",), P)(mapped[0][0]), np.exp(ones(3)).sum())
    total = run.variant(fn=jnp.sum).map([ones(3), ones(5)], reduce="sum")
    assert total == 21
    assert isinstance(total, jax.Array if returns == "padded" else np.ndarray)


# Donation


@pytest.mark.parametrize("strategy", [P, sx.Linear(6)], ids=["at capacity", "moved"])
@pytest.mark.parametrize("hits", [0, 1])
def test_a_donated_handle_is_gone_and_says_so(strategy, hits, place):
    make = sx.Exec(lambda x: x + 1, ("s",), P, returns="padded")
    run = sx.Exec(lambda x: x * 2, ("s",), strategy, donate_argnums=0, returns="padded")
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
    run = sx.Exec(lambda x, y: (x * 2, y.sum()), ("s", "s"), P, donate_argnums=0)
    given = sx.Exec(lambda x: x + 1, ("s",), P).padded(ones(3))
    with refused(sx.ConfigError, "a donated array is given twice.", "pass a copy"):
        run(given, given)
    assert not given.is_deleted()


def test_a_result_takes_the_memory_of_a_donated_handle():
    run = sx.Exec(lambda x: x + 1, ("s",), P, donate_argnums=0, returns="padded")
    given = run(jnp.asarray(ones(3)))
    place = given.array.unsafe_buffer_pointer()
    assert run(given).array.unsafe_buffer_pointer() == place


# On the host


def test_results_on_the_host_are_cut_there_and_no_size_compiles(place):
    run = sx.Exec(lambda x: (x + 1, x.sum(), x > 2), ("s",), sx.Linear(64), returns="host")
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
    run = sx.Exec(lambda x: x - 7, ("s",), sx.Linear(32))
    for size in (21, 22, 23):
        run(ones(size))
    assert run.stats.copy_compiles == 3


def test_one_exec_returns_both_kinds():
    run = sx.Exec(lambda x: x + 1, ("s",), P, returns="host")
    for _ in range(2):
        assert isinstance(run(ones(3)), np.ndarray)
        assert isinstance(run.padded(ones(3)), sx.Padded)
    assert (run.stats.graphs, run.stats.hits) == (2, 2)


def test_keys_on_the_host_stay_those_of_jax():
    keys = jax.random.split(jax.random.key(0), 3)
    got = sx.Exec(lambda keys: keys[::-1], ("s",), P, returns="host")(keys)
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
    assert sx.Exec(lambda x: x.sum(), ("s, 3",), P)(given.grown(axis=1)) == 21
    for by, axis in [(-1, 0), (1, 2), (1, -3), (0.5, 0), (True, 0), ("1", 0), (1, 0.0)]:
        what = f"grown: by={by!r} along axis={axis!r} of a handle of shape (3, 2)"
        with refused(sx.ConfigError, what, "by an int from 0 on, and an axis from -2 to 1"):
            given.grown(by, axis=axis)
    longer = given.grown(jnp.int32(1), axis=np.int64(0))
    assert sx.Exec(lambda x: x.sum(), ("s, 2",), P)(longer) == x.sum()


def test_a_handle_grows_without_a_copy_while_there_is_room():
    made = sx.Exec(lambda x: 2 * x, ("s",), P).padded(ones(3))
    assert made.grown().array is made.array
    assert made.grown().grown().array.shape == (8,)


def test_a_cache_grows_in_place_in_as_many_graphs_as_buckets():
    def write(cache, row):
        last = cache.shape[0] - 1
        return jax.lax.dynamic_update_index_in_dim(cache, row, last, axis=0), cache.max()

    run = sx.Exec(write, ("s, 2", None), sx.Pow2(minimum=16), donate_argnums=0, returns="padded")
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

    prepare = sx.Exec(lambda x: x - x.mean(axis=0), ("b, 2",), sx.Linear(8), returns="padded")
    train = sx.Exec(step, (None, "b, 2"), sx.Linear(8), donate_argnums=0)
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
    "rank": (lambda: (jnp.ones(4), (3, 1)), "is not the shape", "1 ints, none above (4,)"),
    "greater": (lambda: (jnp.ones(4), (5,)), "is not the shape", "1 ints, none above (4,)"),
    "negative": (lambda: (jnp.ones(4), (-1,)), "is not the shape", "1 ints, none above (4,)"),
    "floats": (lambda: (jnp.ones(4), (3.0,)), "is not the shape", "1 ints, none above (4,)"),
    "an int": (lambda: (jnp.ones(4), 3), "is not the shape", "1 ints, none above (4,)"),
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
    run = sx.Exec(lambda x: jnp.exp(-x), ("s",), sx.Linear(16))
    wrong, barrier = [], threading.Barrier(8)

    def work(number):
        barrier.wait()
        for size in range(1, 16):
            call = run.padded if number % 2 else run
            twice = np.asarray(call(call(ones(size))))
            if not np.allclose(twice, np.exp(-np.exp(-ones(size))), rtol=1e-5):
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
make = sx.Exec(lambda x: x[::-1] + 1, ("b, s",), sx.Linear(16), returns="padded")
take = sx.Exec(lambda x: (x.max(axis=0), x * 2), ("b, s",), {"b": sx.Linear(8), "s": sx.Pow2()})
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
    flags = "--xla_force_host_platform_device_count=4"
    environ = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", ON_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.stdout == "right\n", done.stderr
