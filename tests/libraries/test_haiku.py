"""Haiku: transformed functions, with state and random keys."""

from typing import Any

import jax
import numpy as np
import pytest

import shapeexec as sx
from tests.libraries.support import BUCKETS, KEY, Program, assert_trains_as_jit, rows
from tests.tolerance import SUMS, assert_close

hk = pytest.importorskip("haiku")


def forward(x: Any) -> Any:
    x = hk.BatchNorm(True, True, 0.9)(hk.Linear(4, with_bias=False)(x), is_training=True)
    return hk.Linear(2)(hk.dropout(hk.next_rng_key(), 0.5, x))


@pytest.mark.usefixtures("poisoned")
def test_parameters_state_and_keys_go_on_as_in_jit():
    net = hk.transform_with_state(forward)

    def step(held: Any, x: Any) -> Any:
        params, state, key = held
        key, now = jax.random.split(key)

        def loss(params: Any) -> Any:
            out, new = net.apply(params, state, now, x)
            return (out**2).mean(), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), new, key), value

    held = (*net.init(KEY, rows(2)[0]), KEY)
    assert_trains_as_jit(Program(step, held, options={"donate_argnums": 0}))


@pytest.mark.usefixtures("poisoned")
def test_recurrent_layers_and_attention_see_the_valid_part():
    def encode(x: Any) -> Any:
        core = hk.LSTM(8)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[0]), time_major=False)
        y = y + hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())(y, y, y)
        return hk.LayerNorm(-1, True, True)(hk.Conv1D(8, 3)(y)).mean(axis=1)

    net = hk.without_apply_rng(hk.transform(encode))
    data = lambda b, s: np.random.default_rng(s).normal(size=(b, s, 3)).astype(np.float32)
    params = net.init(KEY, data(2, 5))
    ex = sx.Exec(net.apply, (None, "b, s, 3"), buckets=BUCKETS)
    for b, s in ((2, 3), (3, 4), (4, 1)):
        want = jax.jit(net.apply)(params, data(b, s))
        assert_close(ex(params, data(b, s)), want, loose=SUMS)
    assert ex.cache_size == 1
