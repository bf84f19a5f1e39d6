"""Donated arguments: their memory is taken where `jax.jit` would take it, padded or not."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_same, ones, refused

P = sx.Pow2(minimum=4)


def scaled(x, w):
    return x * w


@pytest.mark.parametrize("size", [3, 4], ids=["padded", "whole"])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("hits", [0, 1])
def test_a_donated_array_is_deleted_as_by_jit(size, commit, hits):
    ex = sx.Exec(scaled, ("s", None), P, donate_argnums=0)
    for _ in range(hits + 1):
        x = jnp.asarray(ones(size))
        x, w = (jax.device_put(x, jax.devices()[0]) if commit else x), jnp.float32(2)
        assert_same(ex(x, w), jnp.asarray(2 * ones(size)))
        assert x.is_deleted()
        assert not w.is_deleted()
    assert ex.stats.hits == hits
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(x)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        ex(x, w)


def test_a_donated_array_that_is_given_twice_at_capacity_is_refused():
    ex = sx.Exec(lambda x, y: (x * 2, y.sum()), ("s", "s"), P, donate_argnums=0)
    x = jnp.asarray(ones(4))
    with refused(sx.ConfigError, "a donated array is given twice.", "pass a copy"):
        ex(x, x)
    assert not x.is_deleted()
    assert ex(x, x.copy())[1] == np.asarray(ones(4)).sum()


@pytest.mark.parametrize("size", [3, 4], ids=["padded", "whole"])
def test_what_no_result_can_use_is_kept_and_warned_of_as_by_jit(size):
    fn = lambda x: x.sum()  # noqa: E731
    x, plain = jnp.asarray(ones(size)), jnp.asarray(ones(size))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        jax.jit(fn, donate_argnums=0)(plain)
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        sx.Exec(fn, ("s",), P, donate_argnums=0)(x)
    assert x.is_deleted() == plain.is_deleted() == False  # noqa: E712


def test_each_leaf_is_deleted_or_kept_by_itself():
    def fn(tree):
        return {"a": tree["a"] + 1, "n": tree["n"].sum()}

    ex = sx.Exec(fn, ({"a": "s", "n": "s"},), P, donate_argnums=0)
    tree = {"a": jnp.asarray(ones(3)), "n": jnp.asarray(ones(3)).astype(jnp.int8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ex(tree)
    assert (tree["a"].is_deleted(), tree["n"].is_deleted()) == (True, False)


def test_host_arrays_are_left_alone():
    x = ones(3)
    ex = sx.Exec(scaled, ("s", None), P, donate_argnums=0)
    for _ in range(2):
        assert_same(ex(x, 2.0), jnp.asarray(2 * ones(3)))
    np.testing.assert_array_equal(x, ones(3))


def test_an_argument_that_stands_twice_is_read_before_it_is_deleted():
    x = jnp.asarray(ones(3))
    assert_same(sx.Exec(scaled, ("s", "s"), P, donate_argnums=0)(x, x), jnp.asarray(ones(3) ** 2))
    assert x.is_deleted()


def test_a_loop_of_donations_holds_one_array():
    ex = sx.Exec(scaled, ("s", None), P, donate_argnums=0)
    x, w = jnp.asarray(ones(3)), jnp.float32(1)
    x = ex(x, w)
    before = sum(array.nbytes for array in jax.live_arrays())
    kept = []
    for _ in range(5):
        kept.append(x)
        x = ex(x, w)
    assert sum(array.nbytes for array in jax.live_arrays()) == before
    assert all(old.is_deleted() for old in kept)
    assert_same(x, jnp.asarray(ones(3)))


def test_the_arrays_of_a_module_are_donated():
    module = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    fn = lambda m, x: (eqx.tree_at(lambda m: m.weight, m, m.weight + x.sum()), None)  # noqa: E731
    ex = sx.Exec(fn, (None, "s"), P, donate_argnums=0)
    ex(module, ones(3))
    assert module.weight.is_deleted()


def test_examples_are_not_donated():
    x = jnp.asarray(ones(3))
    sx.Exec(scaled, ("s", None), P, donate_argnums=0).map([x], 2.0)
    assert not x.is_deleted()
