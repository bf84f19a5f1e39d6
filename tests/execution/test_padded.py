"""Results that stay on the device: handles, what an Exec makes of them, and `returns=`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shapeexec as sx
from shapeexec.execution import _handle, _transfer
from tests.execution.handles import handle, padding
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
    run = sx.Exec(lambda x: (~x if x.dtype == jnp.bool_ else x - 1)[::-1], ("s, 2",), buckets=P)
    got, want = run.padded(x), run.settings.fn(x)
    assert isinstance(got, sx.Padded)
    assert (got.shape, got.ndim, got.dtype) == (want.shape, 2, want.dtype)
    assert got.array.shape == (max(4, 1 << (size - 1).bit_length()), 2)
    assert not padding(got).astype(np.float32).any()
    np.testing.assert_array_equal(np.asarray(got), want)
    assert_same(got.cut(), want)


@pytest.mark.parametrize("poison", ["nan", "max", "min", "garbage"])
def test_zeros_stand_behind_the_results_of_poisoned_graphs(poison):
    run = sx.Exec(lambda x: (jnp.exp(x), x[1:], x.T), ("s, 2",), buckets=P, poison=poison)
    for got, want in zip(run.padded(ones(5, 2)), run(ones(5, 2)), strict=True):
        assert not padding(got).any()
        assert_close(np.asarray(got), want)


def test_what_has_no_ragged_axis_is_an_array_and_shares_its_graph():
    run = sx.Exec(lambda w, x: (w, x.sum()), (None, "s"), buckets=P)
    run(ones(2), ones(3))
    whole, total = run.padded(ones(2), ones(3))
    assert isinstance(whole, jax.Array)
    assert total == 6
    assert run.stats.graphs == 1


def test_graphs_with_zeros_behind_their_results_are_told_apart():
    run = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
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
    run = sx.Exec(lambda x: 2 * x, ("s",), buckets=P, returns="padded")
    assert not run.explain(ones(3)).added
    assert not padding(run(ones(3))).any()


def test_no_size_compiles_anything(place):
    run = sx.Exec(lambda x: (x + 1, x.mean()), ("s",), buckets=sx.Linear(64), returns="padded")
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

    run = sx.Exec(Model(handle(ones(3), (8,), fill=np.nan)), ("s",), buckets=P)
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
    run = sx.Exec(lambda count, x: count(x), (None, "s"), buckets=P, returns=returns)
    for _ in range(2):
        assert_close(np.asarray(run(count, ones(3))), 2 * ones(3))
    assert isinstance(count.n[...], jax.Array)
    assert count.n[...] == 6


def test_gradients_are_handles():
    run = sx.Exec(jax.grad(lambda x: (x * x.max()).sum()), ("s",), buckets=P)
    got = run.padded(ones(5))
    assert_close(np.asarray(got), run(ones(5)))
    assert not padding(got).any()
    integers = sx.Exec(
        jax.grad(lambda x, n: (x * n).sum(), argnums=(0, 1), allow_int=True), ("s", "s"), buckets=P
    )
    of_floats, of_integers = integers.padded(ones(5), np.arange(5))
    assert isinstance(of_floats, sx.Padded)
    assert of_integers.dtype == jax.dtypes.float0
    assert of_integers.shape == (5,)


def test_typed_keys_are_handles():
    run = sx.Exec(lambda keys: keys[::-1], ("s",), buckets=P)
    keys = jax.random.split(jax.random.key(0), 3)
    got = run.padded(keys)
    back = run(got)
    np.testing.assert_array_equal(jax.random.key_data(back), jax.random.key_data(keys))
    again = sx.Exec(lambda keys: keys[::-1], ("s",), buckets=sx.Linear(6))(got)
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))


def test_a_size_of_zero_gives_an_array_of_the_true_shape():
    run = sx.Exec(lambda x: x + 1, ("s",), buckets=P)
    assert run.padded(np.zeros(0, np.float32)).shape == (0,)
    empty = sx.Padded(jnp.full(4, jnp.nan), (0,))
    assert run(empty).shape == (0,)
    assert sx.Exec(lambda x: x.sum(), ("s",), buckets=P)(empty) == 0


def test_inside_a_trace_handles_are_cut_and_results_are_arrays():
    run = sx.Exec(lambda x, y: x + y, ("s", "s"), buckets=P)
    given = handle(ones(3), (4,), fill=np.nan)
    with pytest.warns(RuntimeWarning, match="inside a transformation"):
        assert_same(jax.jit(lambda x: run.padded(x, given))(ones(3)), jnp.asarray(2 * ones(3)))
    assert_same(jax.jit(lambda x: run.map([x], [given])[0])(ones(3)), jnp.asarray(2 * ones(3)))


# Handles as arguments


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("size", SIZES)
def test_padding_of_a_users_handle_never_reaches_a_result(fill, size, place):
    x = np.random.default_rng(size).normal(size=(size, 2)).astype(np.float32)
    run = sx.Exec(mixed, ("s, 2",), buckets=P, returns="padded")
    want = jax.jit(mixed)(x)
    for capacity in (max(4, size), 8, 11):
        got = run(handle(x, (capacity, 2), fill=FILLS[fill]))
        for name in want:
            assert_close(np.asarray(got[name]), want[name])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, jnp.bfloat16])
def test_padding_of_any_dtype_never_reaches_a_result(dtype, place):
    x = ones(5).astype(dtype)
    fill = True if dtype == np.bool_ else 99
    run = sx.Exec(lambda x: (x.sum(), x.max(), x[::-1]), ("s",), buckets=P)
    assert_same(run(handle(x, (8,), fill=fill)), jax.jit(run.settings.fn)(x))
    assert_same(run(handle(x, (6,), fill=fill)), jax.jit(run.settings.fn)(x))


def test_a_handle_at_capacity_goes_in_as_it_is():
    run = sx.Exec(lambda x: x * 2, ("s",), buckets=P, returns="padded")
    given = run(ones(3))
    assert _handle.pad(given, run.plan(given).in_capacities[0]) is given.array
    with jax.transfer_guard("disallow"):
        again = run(given)
    assert_close(np.asarray(again), 4 * ones(3))
    assert (run.stats.hits, run.stats.compiles) == (1, 1)


def test_a_handle_shares_the_graph_of_its_array():
    run = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    run(jnp.asarray(ones(3)))
    assert run(handle(ones(3), (4,), fill=np.nan)) == 6
    assert run(handle(ones(2), (7,), fill=np.nan)) == 3
    assert run.stats.graphs == 1


def test_other_capacities_take_a_program_per_pair_and_not_per_size(monkeypatch):
    monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    run = sx.Exec(lambda x: x.sum(), ("s",), buckets=sx.Linear(48))
    array = jnp.asarray(np.ones(43, np.float32))
    with counted() as count:
        for size in range(1, 40):
            assert np.asarray(run(sx.Padded(array, (size,)))) == size
    assert (count.compilations, run.stats.compiles, run.stats.copy_compiles) == (2, 1, 1)


def test_weak_types_and_committed_arrays_stay_so(place):
    weak = jax.lax.full((4,), 2.0)
    run = sx.Exec(lambda x: x * jnp.ones(3, jnp.bfloat16).sum(), ("s",), buckets=sx.Linear(6))
    assert_same(run(sx.Padded(weak, (3,))), run.settings.fn(weak[:3]))
    committed = jax.device_put(ones(4), jax.devices()[0])
    assert run(sx.Padded(committed, (3,))).committed


def test_trees_keywords_static_and_exact_arguments_take_handles():
    def fn(tree, w, *, y):
        return (tree["a"] * w["w"]).sum() + tree["b"][0].sum() + y.sum() / y.shape[0]

    run = sx.Exec(
        fn, ({"a": "s", "b": ["t"]}, None), buckets={"s": P, "t": "exact"}, kwarg_shapes={"y": "s"}
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
    run = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    given = handle(ones(5), (11,), fill=np.nan)
    assert run.plan(given).sizes == {"s": 5}
    assert run.explain(given).plan.buckets == {"s": 8}
    assert run.warmup(given, s=[3, 5]) == 2
    assert not run.why_new(given).is_new
    run.freeze()
    assert run(given) == 15
    assert run.warmup(s=5) == 0
    padded, sizes = sx.pad_to_bucket(given, "s", buckets=P)
    np.testing.assert_array_equal(padded, np.append(ones(5), np.zeros(3)))
    assert dict(sizes) == {"s": 5}


def test_maps_take_handles(place):
    run = sx.Exec(lambda w, x: (w.sum() * x, x.max()), (None, "s"), buckets=P)
    examples = [handle(-ones(n), (8,), fill=np.inf) for n in (3, 5, 8)]
    shared = handle(ones(2), (4,), fill=np.nan)
    for _ in range(2):
        for given, (scaled, most) in zip(examples, run.map(shared, examples), strict=True):
            assert_close(scaled, 3 * np.asarray(given))
            assert most == -1
    total = sx.Exec(lambda x: x.max(), ("s",), buckets=P).map(examples, reduce="sum")
    assert total == -3


@pytest.mark.parametrize("returns", ["padded", "host"])
def test_maps_return_what_calls_return(returns, place):
    run = sx.Exec(lambda x: (jnp.exp(x), x.sum()), ("s",), buckets=P, returns=returns)
    mapped = run.map([ones(3), ones(5)])
    for (exp, total), size in zip(mapped, (3, 5), strict=True):
        assert isinstance(exp, sx.Padded if returns == "padded" else np.ndarray)
        assert_close(np.asarray(exp), np.exp(ones(size)))
        assert total == ones(size).sum()
        assert isinstance(total, jax.Array if returns == "padded" else np.ndarray)
    assert_close(sx.Exec(lambda x: x.sum(), ("s",), buckets=P)(mapped[0][0]), np.exp(ones(3)).sum())
    total = run.variant(fn=jnp.sum).map([ones(3), ones(5)], reduce="sum")
    assert total == 21
    assert isinstance(total, jax.Array if returns == "padded" else np.ndarray)
