"""Optax: a step of each kind of transformation, with its state donated, and losses of sequences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as
from tests.libraries.support import BUCKETS, KEY, Program, assert_trains_as_jit

PARAMS = {"w": jax.random.normal(KEY, (3, 2)), "b": jnp.zeros(2)}
GROUPS = {"w": "trained", "b": "kept"}


def loss(params: Any, x: Any) -> Any:
    return (jax.nn.relu(x @ params["w"] + params["b"]) ** 2).mean()


TRANSFORMATIONS = {
    "adamw with a schedule": optax.adamw(optax.warmup_cosine_decay_schedule(0, 0.1, 2, 10)),
    "a mask": optax.chain(
        optax.masked(optax.adam(1e-2), {"w": True, "b": False}), optax.clip_by_global_norm(1.0)
    ),
    "a mask by a function": optax.masked(
        optax.add_decayed_weights(0.1), lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
    ),
    "groups": optax.partition(
        {"trained": optax.adam(0.1), "kept": optax.set_to_zero()},
        GROUPS,  # its states hold nodes without arrays
    ),
    "several steps at once": optax.MultiSteps(optax.adam(1e-2), 2),
    "numbers as state": optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, key=0), optax.sgd(0.1)),
    "a line search": optax.lbfgs(),  # it calls the loss again, in a loop
}


def step_of(tx: Any) -> Any:
    extra = isinstance(tx, optax.GradientTransformationExtraArgs)

    def step(both: Any, x: jax.Array) -> Any:
        params, state = both
        value, gradient = jax.value_and_grad(loss)(params, x)
        told = {"value": value, "grad": gradient, "value_fn": lambda p: loss(p, x)} if extra else {}
        updates, state = tx.update(gradient, state, params, **told)
        return (optax.apply_updates(params, updates), state), value

    return step


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_step_with_donated_state_is_that_of_jit(name):
    tx = TRANSFORMATIONS[name]
    graphs = 3 if name == "a line search" else 2  # one size is asked for
    start = (PARAMS, tx.init(PARAMS))
    program = Program(step_of(tx), start, graphs=graphs, options={"donate_argnums": 0})
    assert_trains_as_jit(program)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(1, 5, shape)


LOSSES = {
    "ctc": (
        lambda x, p, y, q: optax.ctc_loss(x, p, y, q).mean(),
        ("b, t, 5", "b, t", "b, n", "b, n"),
        lambda b, t, n: (numbers(b, t, 5), numbers(b, t) > 1, tokens(b, n), tokens(b, n) > 3),
    ),
    "cross entropy": (
        lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y).mean(),
        ("b, t, 5", "b, t"),
        lambda b, t, n: (numbers(b, t, 5), tokens(b, t)),
    ),
    "divergence": (
        lambda x, y: optax.kl_divergence(jax.nn.log_softmax(x), jax.nn.softmax(y)).mean(),
        ("b, t", "b, t"),
        lambda b, t, n: (numbers(b, t), numbers(b, t)[::-1].copy()),
    ),
}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_ragged_sequences_is_exact(name):
    fn, specs, data = LOSSES[name]
    ex = sx.Exec(fn, specs, buckets=BUCKETS)
    for sizes in ((3, 5, 2), (4, 8, 3), (2, 6, 1)):
        assert_runs_as(fn, ex, *data(*sizes))
    assert ex.cache_size == 1
