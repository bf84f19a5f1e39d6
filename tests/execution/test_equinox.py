"""Modules of Equinox as arguments: they are trained, shared by examples, and share graphs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import shapeexec as sx
from tests.execution.support import assert_same, batch, ones
from tests.tolerance import assert_close

P = sx.Pow2(minimum=4)
KEY = jax.random.key(0)
SIZES = (3, 4, 2)  # one bucket, which one of them fills


# equinox


class Model(eqx.Module):
    """Layers with functions, strings and numbers among their leaves."""

    layers: list[Any]
    dropout: eqx.nn.Dropout
    name: str

    def __init__(self, key: Any) -> None:
        self.layers = [eqx.nn.MLP(3, 4, 8, 1, key=key), eqx.nn.LayerNorm(4), jnp.tanh]
        self.dropout = eqx.nn.Dropout(0.5)
        self.name = "model"

    def __call__(self, x: jax.Array, key: Any) -> jax.Array:
        for layer in self.layers:
            x = jax.vmap(layer)(x)
        return self.dropout(x, key=key)


def step_of(optimizer: optax.GradientTransformation) -> Any:
    def loss(model: Model, x: jax.Array, key: Any) -> jax.Array:
        return (model(x, key) ** 2).mean()

    def step(model: Model, state: Any, x: jax.Array, key: Any) -> Any:
        value, gradient = eqx.filter_value_and_grad(loss)(model, x, key)
        updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    return step


def test_an_equinox_module_is_trained_as_by_filter_jit():
    optimizer = optax.adamw(1e-2)
    step = step_of(optimizer)
    ex = sx.Exec(step, (None, None, "b, 3", None), buckets=P)
    model = plain = Model(KEY)
    state = plain_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for n in (*SIZES, 5):
        key = jax.random.key(n)
        model, state, value = ex(model, state, batch(n), key)
        plain, plain_state, wanted = eqx.filter_jit(step)(plain, plain_state, batch(n), key)
        assert_same(value, wanted)
    assert_same(model, plain)
    assert_same(state, plain_state)
    assert (ex.cache_size, ex.stats.hits) == (2, 2)


def test_another_mode_of_an_equinox_module_is_another_graph():
    ex = sx.Exec(lambda m, x, key: m(x, key), (None, "b, 3", None), buckets=P)
    model = Model(KEY)
    for module in (model, eqx.nn.inference_mode(model), model):
        assert_same(ex(module, batch(3), KEY), eqx.filter_jit(module)(batch(3), KEY))
    assert ex.cache_size == 2


def test_equinox_modules_with_equal_constants_share_a_graph():
    ex = sx.Exec(lambda m, x: jax.vmap(m)(x), (None, "b, 3"), buckets=P)
    for seed in range(3):
        module = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed))
        assert_same(ex(module, batch(3)), jax.vmap(module)(batch(3)))
    assert ex.cache_size == 1


def test_numbers_in_an_equinox_module_are_constants_also_deep_in_a_tree():
    ex = sx.Exec(
        lambda p, x: p["d"](x, key=KEY) if p["n"] is not None else x, (None, "s"), buckets=P
    )
    for dropout in (eqx.nn.Dropout(0.5), eqx.nn.Dropout(0.5, inference=True)):
        tree = {"d": dropout, "n": 1.0}
        assert_same(ex(tree, ones(3)), jax.jit(lambda x, d=dropout: d(x, key=KEY))(ones(3)))


def test_examples_share_an_equinox_module():
    model = Model(KEY)
    fn = lambda m, x: m(x, KEY)
    ex = sx.Exec(fn, (None, "s, 3"), buckets=P)
    for got, n in zip(ex.map(model, [batch(n) for n in SIZES]), SIZES, strict=True):
        assert_same(got, eqx.filter_jit(fn)(model, batch(n)))
    assert ex.cache_size == 1
    gradients = sx.Exec(eqx.filter_grad(lambda m, x: m(x, KEY).sum()), (None, "s, 3"), buckets=P)
    total = gradients.map(model, [batch(n) for n in SIZES], reduce="sum")
    wanted = [eqx.filter_grad(lambda m, x: m(x, KEY).sum())(model, batch(n)) for n in SIZES]
    assert_close(total, jax.tree.map(lambda *parts: sum(parts), *wanted))


def test_examples_may_have_constants_of_their_own():
    ex = sx.Exec(lambda d: d["x"].sum() * len(d["name"]), ("s",), buckets=P)
    examples = [{"x": ones(n), "name": "a" * n} for n in (1, 2, 2)]
    assert [float(x) for x in ex.map(examples)] == [1, 6, 6]
    assert [float(x) for x in ex.map(examples[:2])] == [1, 6]


def test_an_equinox_module_is_validated():
    module = eqx.nn.MLP(3, 2, 4, 1, key=KEY)
    ex = sx.Exec(lambda m, x: jax.vmap(m)(x).mean(0), (None, "b, 3"), buckets=P)
    done = sx.validate(ex, module, batch(3), rounds=2, poisons=("nan",))
    assert (done.comparisons, done.skipped) == (4, ())
