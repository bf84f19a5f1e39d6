"""Models of flax, equinox and optax as people write them, forward and backward."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shapeexec as sx
from tests.marks import marked_slow

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int32)


def of_flax(module: nn.Module, x: Any, spec: str, **options: Any) -> tuple[Any, ...]:
    """The module's function of parameters and data, its arguments and their specs."""
    variables = module.init(KEY, x, **options)
    return lambda v, x: module.apply(v, x, **options), (variables, x), (None, spec)


def of_equinox(module: Any, x: Any, spec: str, call: Callable[..., Any]) -> tuple[Any, ...]:
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    return lambda a, x: call(eqx.combine(a, static), x), (arrays, x), (None, spec)


class Recurrent(nn.Module):
    cell: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(nn.RNN(self.cell)(x)).mean((0, 1))


class Trained(nn.Module):
    """Batch statistics over the real batch only, and their running means."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(3)(x))


def batch_norm_in_training() -> tuple[Any, ...]:
    module = Trained()
    x = floats(3, 5, 2)
    variables = module.init(KEY, x, train=True)

    def step(variables: Any, x: jax.Array) -> Any:
        return module.apply(variables, x, train=True, mutable=["batch_stats"])

    return step, (variables, x), (None, "b, s, 2")


def attention_of_equinox() -> tuple[Any, ...]:
    module = eqx.nn.MultiheadAttention(2, 4, key=KEY)

    def call(module: Any, x: jax.Array) -> jax.Array:
        causal = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        return module(x, x, x, mask=causal)

    return of_equinox(module, floats(5, 4), "s, 4", call)


def connectionist_loss() -> tuple[Any, ...]:
    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        paddings = jnp.zeros(logits.shape[:2]), jnp.zeros(labels.shape)
        return optax.ctc_loss(logits, paddings[0], labels, paddings[1])

    return loss, (floats(2, 7, 4), 1 + integers(3, 2, 3)), ("b, s, 4", "b, t")


def cross_entropies() -> tuple[Any, ...]:
    def losses(logits: jax.Array, labels: jax.Array) -> Any:
        return {
            "integer": optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
            "one-hot": optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 4)).mean(),
            "sigmoid": optax.sigmoid_binary_cross_entropy(logits[..., 0], labels > 1).mean(),
            "smooth": optax.huber_loss(logits, 0.5).sum(),
        }

    return losses, (floats(3, 5, 4), integers(4, 3, 5)), ("b, s, 4", "b, s")


def adam_step() -> tuple[Any, ...]:
    optimizer = optax.adam(1e-2)
    params = {"in": floats(6, 4), "out": floats(4, 6)}

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        hidden = jnp.tanh(params["in"][tokens[:, :-1]]).cumsum(1)
        logits = hidden @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), integers(6, 3, 5)), (None, None, "b, s")


def convolved(module: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(module(x)).mean(-1)


MODELS = {
    "flax attention": lambda: of_flax(
        nn.MultiHeadDotProductAttention(2), floats(3, 5, 4), "b, s, 4"
    ),
    "flax LSTM": lambda: of_flax(Recurrent(nn.OptimizedLSTMCell(3)), floats(3, 5, 2), "b, s, 2"),
    "flax GRU": lambda: of_flax(Recurrent(nn.GRUCell(3)), floats(3, 5, 2), "b, s, 2"),
    "flax batch norm, inference": lambda: of_flax(
        Trained(), floats(3, 5, 2), "b, s, 2", train=False
    ),
    "flax batch norm, training": batch_norm_in_training,
    "flax group norm": lambda: of_flax(nn.GroupNorm(2), floats(3, 5, 4), "b, s, 4"),
    "flax convolution": lambda: of_flax(nn.Conv(3, (3,)), floats(2, 7, 2), "b, s, 2"),
    "flax strided convolution": lambda: of_flax(
        nn.Conv(3, (3,), strides=2), floats(2, 7, 2), "b, s, 2"
    ),
    "equinox MLP": lambda: of_equinox(
        eqx.nn.MLP(3, 2, 4, 2, key=KEY), floats(5, 3), "b, 3", lambda m, x: jax.vmap(m)(x).mean(0)
    ),
    "equinox attention": attention_of_equinox,
    "equinox convolution": lambda: of_equinox(
        eqx.nn.Conv1d(2, 3, 3, padding="SAME", key=KEY), floats(2, 7), "2, s", convolved
    ),
    "equinox group norm": lambda: of_equinox(
        eqx.nn.GroupNorm(2, 4), floats(4, 7), "4, s", lambda m, x: m(x)
    ),
    "equinox GRU": lambda: of_equinox(
        eqx.nn.GRUCell(2, 3, key=KEY),
        floats(5, 2),
        "s, 2",
        lambda m, x: jax.lax.scan(lambda h, r: (m(r, h),) * 2, jnp.zeros(3), x)[1],
    ),
    "optax cross entropies": cross_entropies,
    "optax connectionist loss": connectionist_loss,
    "optax Adam step": adam_step,
}


SLOW = {"flax attention", "flax LSTM", "equinox GRU", "optax connectionist loss"}


@pytest.mark.parametrize("name", marked_slow(MODELS, SLOW))
def test_a_model_is_exact_forward_and_backward(name):
    fn, args, specs = MODELS[name]()
    ex = sx.Exec(fn, specs, buckets=sx.Pow2())
    is_step = name == "optax Adam step"  # it has its gradient inside
    done = sx.validate(ex, *args, rounds=2, poisons=("nan",), gradients=not is_step)
    assert not done.skipped
    assert done.comparisons == 2 * (1 if is_step else 2)
