"""Donated arguments: their memory is taken where `jax.jit` would take it, padded or not."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import shapeexec as sx
from tests.execution.support import assert_same, ones, refused
from tests.tolerance import assert_close

P = sx.Pow2(minimum=4)


def scaled(x, w):
    return x * w


@pytest.mark.parametrize("size", [3, 4], ids=["padded", "whole"])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("hits", [0, 1])
def test_a_donated_array_is_deleted_as_by_jit(size, commit, hits):
    ex = sx.Exec(scaled, ("s", None), buckets=P, donate_argnums=0)
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
    ex = sx.Exec(lambda x, y: (x * 2, y.sum()), ("s", "s"), buckets=P, donate_argnums=0)
    x = jnp.asarray(ones(4))
    with refused(sx.ConfigError, "a donated array is given twice.", "pass a copy"):
        ex(x, x)
    assert not x.is_deleted()
    assert ex(x, x.copy())[1] == np.asarray(ones(4)).sum()


@pytest.mark.parametrize("size", [3, 4], ids=["padded", "whole"])
def test_what_no_result_can_use_is_kept_and_warned_of_as_by_jit(size):
    fn = lambda x: x.sum()
    x, plain = jnp.asarray(ones(size)), jnp.asarray(ones(size))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        jax.jit(fn, donate_argnums=0)(plain)
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        sx.Exec(fn, ("s",), buckets=P, donate_argnums=0)(x)
    assert x.is_deleted() == plain.is_deleted() == False  # noqa: E712 - both are bools


def test_each_leaf_is_deleted_or_kept_by_itself():
    def fn(tree):
        return {"a": tree["a"] + 1, "n": tree["n"].sum()}

    ex = sx.Exec(fn, ({"a": "s", "n": "s"},), buckets=P, donate_argnums=0)
    tree = {"a": jnp.asarray(ones(3)), "n": jnp.asarray(ones(3)).astype(jnp.int8)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ex(tree)
    assert (tree["a"].is_deleted(), tree["n"].is_deleted()) == (True, False)


def test_host_arrays_are_left_alone():
    x = ones(3)
    ex = sx.Exec(scaled, ("s", None), buckets=P, donate_argnums=0)
    for _ in range(2):
        assert_same(ex(x, 2.0), jnp.asarray(2 * ones(3)))
    np.testing.assert_array_equal(x, ones(3))


def test_an_argument_that_stands_twice_is_read_before_it_is_deleted():
    x = jnp.asarray(ones(3))
    assert_same(
        sx.Exec(scaled, ("s", "s"), buckets=P, donate_argnums=0)(x, x), jnp.asarray(ones(3) ** 2)
    )
    assert x.is_deleted()


def test_a_loop_of_donations_holds_one_array():
    ex = sx.Exec(scaled, ("s", None), buckets=P, donate_argnums=0)
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
    fn = lambda m, x: (eqx.tree_at(lambda m: m.weight, m, m.weight + x.sum()), None)
    ex = sx.Exec(fn, (None, "s"), buckets=P, donate_argnums=0)
    ex(module, ones(3))
    assert module.weight.is_deleted()


class Net(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.out = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.norm(self.inner(x))))


def train(net, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, gradients)
    return loss


def held(*nodes):
    leaves = [x for node in nodes for x in jax.tree.leaves(nnx.state(node))]
    return [x for x in leaves if isinstance(x, jax.Array)]


@pytest.mark.parametrize("donated", [(0, 1), (1,), ()], ids=str)
def test_the_arrays_of_nnx_modules_are_deleted_where_nnx_jit_deletes_them(donated):
    seen = []
    for wrap in (
        lambda fn: nnx.jit(fn, donate_argnums=donated),
        lambda fn: sx.Exec(
            fn, (None, None, "b, 4"), buckets=sx.Pow2(minimum=8), donate_argnums=donated
        ),
    ):
        net = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)
        fn, deleted = wrap(train), []
        for n in (5, 6, 8):
            before = held(net, optimizer)
            fn(net, optimizer, np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32))
            deleted.append([x.is_deleted() for x in before])
            assert not any(x.is_deleted() for x in held(net, optimizer))
        seen.append((deleted, held(net)))
    (plain, expected), (ours, got) = seen
    assert ours == plain
    assert any(ours[0]) == bool(donated)
    assert_close(got, expected)


def test_a_ragged_variable_is_donated():
    def double(v, x):
        v[...] = 2 * v[...] + x

    v, ex = (
        nnx.Param(jnp.asarray(ones(3))),
        sx.Exec(double, ("s", "s"), buckets=P, donate_argnums=0),
    )
    for _ in range(2):
        before = v[...]
        ex(v, ones(3))
        assert before.is_deleted()
    np.testing.assert_array_equal(v[...], 7 * ones(3))


def test_a_module_whose_function_raises_keeps_its_arrays():
    def fail(net, x):
        net.inner.bias[...] = net.inner.bias[...] + x.sum()
        raise KeyError("mine")

    net = Net(nnx.Rngs(0))
    with pytest.raises(KeyError, match="mine"):
        sx.Exec(fail, (None, "s"), buckets=P, donate_argnums=0)(net, ones(3))
    assert not any(x.is_deleted() for x in held(net))


class Tied(eqx.Module):
    a: jax.Array
    b: jax.Array


@pytest.mark.parametrize("hits", [0, 1])
def test_an_array_that_a_module_holds_twice_is_refused_in_our_words(hits):
    fn = lambda t, x: Tied(t.a + x.sum(), t.b * 2)
    ex, w = sx.Exec(fn, (None, "s"), buckets=P, donate_argnums=0), jnp.asarray(ones(2))
    for _ in range(hits):
        ex(Tied(w + 1, w + 2), ones(3))
    with refused(sx.ConfigError, "a donated array is given twice.", "pass a copy"):
        ex(Tied(w, w), ones(3))
    assert not w.is_deleted()
    np.testing.assert_array_equal(ex(Tied(w, w.copy()), ones(3)).a, ones(2) + ones(3).sum())


def test_examples_are_not_donated():
    x = jnp.asarray(ones(3))
    sx.Exec(scaled, ("s", None), buckets=P, donate_argnums=0).map([x], 2.0)
    assert not x.is_deleted()
