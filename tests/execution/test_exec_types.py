"""Dtypes, weak types, static parameters and settings of JAX: results are of the plain types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones

P = sx.Pow2()


# Dtypes


@pytest.mark.parametrize(
    "dtype",
    [jnp.bfloat16, np.float16, np.int8, np.uint8, np.uint32, np.bool_, np.complex64, np.int32],
    ids=lambda dtype: np.dtype(dtype).name,
)
def test_dtypes_are_those_of_the_plain_function(dtype):
    def fn(x, w):
        return x, x * w, x.max(), x + x.shape[0], x == x[0]

    ex = sx.Exec(fn, ("s", None), buckets=P)
    for x in (ones(3).astype(dtype), jnp.asarray(ones(5).astype(dtype))):
        assert_runs_as(fn, ex, x, 2.0)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.complex128], ids=lambda t: t.__name__)
@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
def test_wide_numpy_data_becomes_what_jax_makes_of_it(dtype, x64):
    def fn(x):
        return x.sum(), x * 2

    with jax.enable_x64(x64):
        assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(3).astype(dtype))


def test_a_weak_type_passes_in_and_out():
    def fn(x, w):
        return x * w, w * 2, x

    ex = sx.Exec(fn, ("s", None), buckets=P)
    weak = jnp.broadcast_to(jnp.asarray(1.0, jnp.float32), 3) * 1
    for x in (ones(3).astype(jnp.bfloat16), weak, jax.lax.full((3,), 2.0)):
        assert_runs_as(fn, ex, x, 2.0)


def test_an_array_that_is_not_contiguous_is_read_right():
    wide = ones(6, 8)

    def fn(x):
        return x * 2, x.sum(0)

    ex = sx.Exec(fn, ("b, s",), buckets=P)
    for x in (wide[::2, ::3], wide.T, wide[::-1], wide[:4, :4].T):
        assert_runs_as(fn, ex, x)


def test_typed_keys_may_be_ragged():
    def fn(keys):
        return keys, jax.random.key_data(keys)

    ex = sx.Exec(fn, ("s",), buckets=P)
    for n in (3, 4, 3):
        assert_runs_as(fn, ex, jax.random.split(jax.random.key(0), n))


def test_gradients_of_integers_have_the_true_shape():
    grad = jax.grad(lambda x, i: (x * i).sum(), argnums=(0, 1), allow_int=True)
    assert_runs_as(grad, sx.Exec(grad, ("s", "s"), buckets=P), ones(3), np.arange(3))


def test_gradients_are_taken_of_the_plain_function():
    grad = jax.value_and_grad(lambda w, x: jnp.mean(jax.nn.softmax(x * w) ** 2))
    ex = sx.Exec(grad, (None, "s"), buckets=P)
    for n in (1, 3, 4):
        assert_runs_as(grad, ex, jnp.float32(0.5), ones(n))


# Static parameters that change between calls


def test_static_parameters_may_change_dtype_and_weak_type_in_place():
    def fn(params, x):
        return (x * params["w"]).sum()

    params = {}
    ex, x = sx.Exec(fn, (None, "s"), buckets=P), ones(5).astype(jnp.bfloat16)
    for w in (2.0, jnp.float32(2), 3, np.float16(1.5), True, 2.5, np.float64(2.5), 1 + 2j, 2.0):
        params["w"] = w
        assert_runs_as(fn, ex, params, x)


def test_static_parameters_may_change_structure():
    def fn(params, x):
        return sum(w.sum() for w in jax.tree.leaves(params)) * x

    ex = sx.Exec(fn, (None, "s"), buckets=P)
    for params in ({"a": ones(2)}, {"a": ones(2), "b": [ones(3)]}, {"a": ones(4)}, {"a": ones(2)}):
        assert_runs_as(fn, ex, params, ones(3))


def test_results_stay_right_after_jax_forgets_its_caches():
    def fn(params, x):
        return params * x.mean()

    ex = sx.Exec(fn, (None, "s"), buckets=P)
    for _ in range(2):
        assert_runs_as(fn, ex, 2.0, ones(3))
        jax.clear_caches()
    assert ex.cache_size == 1


def test_x64_may_be_switched_between_calls():
    def fn(params, x):
        return params * x.mean()

    ex = sx.Exec(fn, (None, "s"), buckets=P)
    for x64 in (False, True, False, True):
        with jax.enable_x64(x64):
            assert_runs_as(fn, ex, 2.0, ones(3))
            assert_runs_as(fn, ex, 2.0, ones(3).astype(np.float64))


def test_matmul_precision_may_be_switched_between_calls():
    ex = sx.Exec(lambda x, y: x @ y, ("a, b", "b, c"), buckets=P)
    ex(ones(3, 3), ones(3, 3))
    with jax.default_matmul_precision("highest"):
        ex(ones(3, 3), ones(3, 3))
    ex(ones(3, 3), ones(3, 3))
    assert (ex.cache_size, ex.stats.hits) == (2, 1)


def test_arrays_that_the_function_closed_over_are_passed_in():
    const = jnp.asarray(ones(4))

    def fn(x):
        return x * const.sum() + np.asarray(ones(2)).sum()

    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(3))
