"""Flax's linen: statistics, dropout and caches in a train state, and modules as arguments."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.training import train_state

import shapeexec as sx
from tests.execution.support import assert_runs_as, batch, refused
from tests.libraries.support import BUCKETS, KEY, Program, assert_trains_as_jit
from tests.tolerance import assert_close


class Net(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        # Without a bias: its gradient is 0 before BatchNorm, and Adam divides its roundings.
        x = nn.BatchNorm(not is_training)(nn.Dense(self.width, use_bias=False)(x))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not is_training)(x))


class State(train_state.TrainState):
    batch_stats: Any
    key: Any


def train(state: State, x: jax.Array) -> Any:
    key = jax.random.fold_in(state.key, state.step)

    def loss(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        rngs = {"dropout": key}
        out, new = state.apply_fn(variables, x, True, mutable=["batch_stats"], rngs=rngs)
        return (out**2).mean(), new

    (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradient, batch_stats=new["batch_stats"]), value


@pytest.mark.usefixtures("poisoned")
def test_a_train_state_with_statistics_and_dropout_goes_on_as_in_jit():
    net = Net()
    made = net.init(KEY, batch(2), False)
    tx = optax.adamw(1e-2)
    state = State.create(apply_fn=net.apply, tx=tx, key=KEY, **made)
    assert_trains_as_jit(Program(train, state, options={"donate_argnums": 0}))


class Small(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.width)(x)


@pytest.mark.parametrize("make", [Small, nn.Dense], ids=["own", "Flax's"])
def test_equal_definitions_share_a_graph_and_others_have_their_own(make):
    """A definition holds a number, too, that no other has, and that is no part of what it is."""

    ex = sx.Exec(lambda net, v, x: net.apply(v, x), (None, None, "b, 3"), buckets=BUCKETS)
    for n, width in ((3, 3), (4, 3), (2, 3), (3, 5)):
        variables = make(width).init(KEY, batch(2))
        want = jax.jit(make(width).apply)(variables, batch(n))
        assert_close(ex(make(width), variables, batch(n)), want)
        assert ex.cache_size == (1 if width == 3 else 2)


def test_a_bound_module_runs_as_the_function_and_is_no_argument():
    net = nn.Dense(2)
    bound = net.bind(net.init(KEY, batch(2)))
    assert_close(sx.Exec(bound, ("b, 3",), buckets=BUCKETS)(batch(3)), bound(batch(3)))
    with refused(sx.ConfigError, "args[0] is a Dense, which is neither", "make it hashable"):
        sx.Exec(lambda net, x: net(x), (None, "b, 3"))(bound, batch(3))


@pytest.mark.usefixtures("poisoned")
def test_layers_over_sequences_see_the_valid_part():
    net = nn.Sequential((nn.RNN(nn.GRUCell(4)), nn.LayerNorm(), nn.Conv(4, (3,)), nn.GroupNorm(2)))
    data = lambda b, s: np.random.default_rng(s).normal(size=(b, s, 3)).astype(np.float32)
    variables = net.init(KEY, data(2, 5))
    ex = sx.Exec(net.apply, (None, "b, s, 3"), buckets=BUCKETS)
    for b, s in ((2, 3), (3, 4), (4, 1)):
        assert_runs_as(net.apply, ex, variables, data(b, s))
    assert ex.cache_size == 1
