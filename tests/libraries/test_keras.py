"""Keras 3 on JAX: `stateless_call` and its layers, with statistics and dropout seeds as state."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # Keras reads it when it is imported

import jax
import numpy as np
import pytest

import shapeexec as sx
from tests.libraries.support import BUCKETS, SIZES
from tests.tolerance import SUMS, assert_close

keras = pytest.importorskip("keras")


def data(b: int, s: int) -> np.ndarray:
    return np.random.default_rng(s).normal(size=(b, s, 4)).astype(np.float32)


@pytest.mark.usefixtures("poisoned")
def test_a_training_step_without_state_of_its_own_is_that_of_jit():
    model = keras.Sequential(
        [
            keras.layers.Input((None, 4)),
            keras.layers.Dense(4, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=0),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

    def loss(trained: Any, other: Any, x: Any) -> Any:
        out, other = model.stateless_call(trained, other, x, training=True)
        return (out**2).mean(), other

    def step(state: Any, x: Any) -> Any:
        trained, other, slots = state
        (value, other), gradient = jax.value_and_grad(loss, has_aux=True)(trained, other, x)
        trained, slots = optimizer.stateless_apply(slots, gradient, trained)
        return (trained, other, slots), value

    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    mine = plain = tuple([v.value for v in part] for part in parts)
    ex, jitted = sx.Exec(step, (None, "b, s, 4"), buckets=BUCKETS), jax.jit(step)
    for n in SIZES:
        (mine, value), (plain, wanted) = ex(mine, data(3, n)), jitted(plain, data(3, n))
        assert_close((mine, value), (plain, wanted), loose=SUMS)
    assert ex.cache_size == 2


LAYERS = {
    "attention": lambda: keras.layers.MultiHeadAttention(2, 4),
    "recurrent": lambda: keras.layers.LSTM(4),
    "convolution": lambda: keras.layers.Conv1D(4, 3, padding="same"),
    "norm": lambda: keras.layers.LayerNormalization(epsilon=1e-3),
}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_sees_the_valid_part(name):
    layer = LAYERS[name]()
    call = (lambda x: layer(x, x)) if name == "attention" else layer
    call(data(2, 5))  # it makes its variables in its first call
    ex = sx.Exec(call, ("b, s, 4",), buckets=BUCKETS)
    for b, s in ((2, 3), (3, 4), (4, 1)):
        assert_close(ex(data(b, s)), call(data(b, s)), loose=SUMS)
    assert ex.cache_size == 1
