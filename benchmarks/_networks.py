"""A convolutional and a recurrent network: as people write them, and with padding done by hand.

By hand means: a mask wherever an expert needs one who trusts that the weights are finite, and none
elsewhere. `_by_hand` has the transformer.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

FEATURES, WIDTH, CLASSES = 8, 32, 10
Params = dict[str, Array]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """f32[b], how surprising each label is."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def _mean_of_rows(values: Array, batch: Array) -> Array:
    return jnp.where(jnp.arange(values.shape[0]) < batch, values, 0).sum() / batch


# Convolutions


def init_cnn(key: Array) -> Params:
    """Draw parameters."""
    shapes = {
        "first": (5, FEATURES, WIDTH),
        "second": (5, WIDTH, WIDTH),
        "third": (3, WIDTH, WIDTH),
        "logits": (WIDTH, CLASSES),
    }
    keys = jax.random.split(key, len(shapes))
    params = {
        name: jax.random.normal(own, shape) / np.prod(shape[:-1]) ** 0.5
        for own, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return params | {f"{name}_bias": jnp.full(WIDTH, 0.1) for name in ("first", "second", "third")}


def _convolve(params: Params, name: str, x: Array) -> Array:
    numbers = ("NHC", "HIO", "NHC")
    out = lax.conv_general_dilated(x, params[name], (1,), "SAME", dimension_numbers=numbers)
    return jax.nn.relu(out + params[f"{name}_bias"])


def _pool(x: Array) -> Array:
    """The greater of each two neighbours; an odd one at the end is left out."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")


def cnn(params: Params, x: Array) -> Array:
    """f32[b, s, FEATURES] to logits, f32[b, CLASSES]."""
    x = _convolve(params, "second", _convolve(params, "first", x))
    x = _convolve(params, "third", _pool(x))
    return x.mean(axis=1) @ params["logits"]


def cnn_loss(params: Params, x: Array, labels: Array) -> Array:
    """The mean over the batch."""
    return cross_entropy(cnn(params, x), labels).mean()


def cnn_by_hand(params: Params, x: Array, batch: Array, size: Array) -> Array:
    """`cnn` of x of which `batch` rows and `size` columns are valid, the rest zeros."""
    del batch  # rows do not see each other

    def masked(x: Array, size: Array) -> Array:
        return jnp.where(jnp.arange(x.shape[1])[:, None] < size, x, 0)

    x = _convolve(params, "second", masked(_convolve(params, "first", x), size))
    x = _convolve(params, "third", masked(_pool(x), size // 2))
    return masked(x, size // 2).sum(axis=1) / (size // 2) @ params["logits"]


def cnn_loss_by_hand(params: Params, x: Array, labels: Array, batch: Array, size: Array) -> Array:
    """`cnn_loss` of the same."""
    return _mean_of_rows(cross_entropy(cnn_by_hand(params, x, batch, size), labels), batch)


# Recurrence


def init_lstm(key: Array) -> Params:
    """Draw parameters."""
    shapes = {
        "inputs": (FEATURES, 4 * WIDTH),
        "state": (WIDTH, 4 * WIDTH),
        "logits": (2 * WIDTH, CLASSES),
    }
    keys = jax.random.split(key, len(shapes))
    params = {
        name: jax.random.normal(own, shape) / shape[0] ** 0.5
        for own, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return params | {"bias": jnp.full(4 * WIDTH, 0.1)}


def _cell(params: Params, state: tuple[Array, Array], x: Array) -> tuple[Array, Array]:
    hidden, cell = state
    gates = x @ params["inputs"] + hidden @ params["state"] + params["bias"]
    enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(cell), cell


def _start(batch: int) -> tuple[Array, Array]:
    return jnp.zeros((batch, WIDTH)), jnp.zeros((batch, WIDTH))


def lstm(params: Params, x: Array) -> Array:
    """f32[b, s, FEATURES] to logits, f32[b, CLASSES], from the last state and the mean of all."""

    def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        state = _cell(params, state, x)
        return state, state[0]

    (last, _), all_hidden = lax.scan(step, _start(x.shape[0]), x.swapaxes(0, 1))
    return jnp.concatenate([last, all_hidden.mean(axis=0)], axis=1) @ params["logits"]


def lstm_loss(params: Params, x: Array, labels: Array) -> Array:
    """The mean over the batch."""
    return cross_entropy(lstm(params, x), labels).mean()


def lstm_by_hand(params: Params, x: Array, batch: Array, size: Array) -> Array:
    """`lstm` of x of which `batch` rows and `size` columns are valid, the rest zeros."""
    del batch

    def step(
        state: tuple[Array, Array], position_and_x: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        position, x = position_and_x
        is_valid = position < size
        freeze = functools.partial(jnp.where, is_valid)
        hidden, cell = _cell(params, state, x)
        return (freeze(hidden, state[0]), freeze(cell, state[1])), freeze(hidden, 0)

    steps = (jnp.arange(x.shape[1]), x.swapaxes(0, 1))
    (last, _), all_hidden = lax.scan(step, _start(x.shape[0]), steps)
    mean = all_hidden.sum(axis=0) / size
    return jnp.concatenate([last, mean], axis=1) @ params["logits"]


def lstm_loss_by_hand(params: Params, x: Array, labels: Array, batch: Array, size: Array) -> Array:
    """`lstm_loss` of the same."""
    return _mean_of_rows(cross_entropy(lstm_by_hand(params, x, batch, size), labels), batch)
