"""`map(reduce="sum")`: gradients of ragged batches without one of each example."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from tests.execution.ragged import attention, normal, tokens
from tests.execution.support import assert_same, ones

P = sx.Pow2()


# Sums


def plus(results):
    return functools.reduce(lambda a, b: jax.tree.map(operator.add, a, b), results)


def dense(w, x):
    return ((jnp.tanh(x @ w["in"] + w["bias"]) @ w["out"]) ** 2).mean()


def embedding(w, x):
    return dense(w, w["table"][x])


def attend(w, x):
    return (attention(w["in"], x) ** 2).mean()


def lstm(w, x):
    def step(state, row):
        h, c = state
        i, f, g, o = jnp.split(row @ w["in"] + h @ w["recurrent"] + w["bias"], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    (h, _), _ = lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), x)
    return (h**2).sum()


def image(w, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x[None], w["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
    return (jnp.tanh(y) ** 2).mean()


def depthwise(w, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(
        x[None], w["kernel"], (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=2
    )
    return (jnp.tanh(y) ** 2).mean()


def layers(w, x):
    @jax.checkpoint
    def layer(x, one):
        return jnp.tanh(x @ one), None

    return (lax.scan(layer, x, w["layers"])[0] ** 2).mean()


def unrolled(w, x):
    for i in range(3):
        x = jnp.tanh(x @ w["layers"][i])
    return (x**2).sum()


@dataclasses.dataclass(frozen=True)
class Model:
    loss: object
    weights: dict
    spec: str
    make: object


def rows(n):
    return normal(n, 4)


MODELS = {
    "dense": Model(
        dense, {"in": normal(4, 11), "bias": normal(11), "out": normal(11, 5)}, "s, 4", rows
    ),
    "embedding": Model(
        embedding,
        {"table": normal(9, 4), "in": normal(4, 11), "bias": normal(11), "out": normal(11, 5)},
        "s",
        tokens,
    ),
    "attention": Model(attend, {"in": normal(4, 15)}, "s, 4", rows),
    "lstm": Model(
        lstm, {"in": normal(4, 12), "recurrent": normal(3, 12), "bias": normal(12)}, "s, 4", rows
    ),
    "convolution": Model(
        image, {"kernel": normal(3, 3, 2, 5)}, "s, 6, 2", lambda n: normal(n, 6, 2)
    ),
    "convolution in groups": Model(
        depthwise, {"kernel": normal(3, 3, 1, 6)}, "s, 6, 2", lambda n: normal(n, 6, 2)
    ),
    "scanned layers": Model(layers, {"layers": normal(3, 4, 4)}, "s, 4", rows),
    "unrolled layers": Model(unrolled, {"layers": normal(3, 4, 4)}, "s, 4", rows),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_a_ragged_batch_is_the_sum_of_its_examples(name):
    model = MODELS[name]
    fn = jax.value_and_grad(model.loss)
    ex = sx.Exec(fn, (None, model.spec), buckets={"s": sx.Linear(13)}, poison="nan")
    examples = [model.make(n) for n in (3, 9, 1, 9, 3)]
    jitted = jax.jit(fn)
    total = ex.map(model.weights, examples, reduce="sum")
    assert_same(total, plus([jitted(model.weights, x) for x in examples]))


def test_sums_keep_dtypes_and_weak_types():
    def fn(x, n):
        return n, n.astype(np.int8), x.astype(jnp.bfloat16).sum(), x.shape[0] * 1.0, [x.sum() + 0j]

    ex = sx.Exec(fn, ("s", ""), buckets=P)
    examples = [ones(n) for n in (3, 1, 2)], [np.int32(n) for n in (100, 100, 7)]
    wanted = plus([jax.jit(fn)(x, n) for x, n in zip(*examples, strict=True)])
    assert_same(ex.map(*examples, reduce="sum"), wanted)
    gradient = jax.grad(lambda x, n: (x * n).sum(), argnums=1, allow_int=True)
    (zero,) = {sx.Exec(gradient, ("s", None), buckets=P).map([ones(2)] * 3, 1, reduce="sum").dtype}
    assert zero == jax.dtypes.float0


@pytest.mark.parametrize("returns", ["device", "padded"])
def test_each_result_of_a_map_may_have_leaves_of_float0(returns):
    gradients = jax.grad(lambda n, x: (x * n).sum(), argnums=(0, 1), allow_int=True)
    ex = sx.Exec(gradients, ("n", "s"), buckets=P, returns=returns)
    integers, floats = [np.ones(1, np.int32)] * 3, [ones(n) for n in (3, 1, 5)]
    for x, (of_integers, of_floats) in zip(floats, ex.map(integers, floats), strict=True):
        assert (of_integers.dtype, of_integers.shape) == (jax.dtypes.float0, (1,))
        np.testing.assert_array_equal(np.asarray(of_floats), np.ones_like(x))


def test_sums_over_groups_are_added():
    fn = jax.value_and_grad(lambda w, x: ((x * w) ** 2).sum())
    ex = sx.Exec(fn, (None, "s"), buckets=P)
    mixed = [ones(3), ones(3).astype(np.int32), ones(0), ones(2)]
    assert_same(ex.map(2.0, mixed, reduce="sum"), plus([jax.jit(fn)(2.0, x) for x in mixed]))
    assert ex.cache_size == 3
