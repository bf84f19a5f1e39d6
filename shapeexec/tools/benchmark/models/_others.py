"""A convolutional, a recurrent and a dense network, as users write them.

Their sizes are in `_configs`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Params = dict[str, Any]
CLASSES = 10


def _drawn(key: Array, shapes: dict[str, tuple[int, ...]]) -> Params:
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(own, shape) / math.prod(shape[:-1]) ** 0.5
        for own, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def init_cnn(key: Array, *, width: int, layers: int) -> Params:
    """Draw parameters."""
    del layers  # there are three
    shapes = {
        "first": (3, 3, 3, width),
        "second": (3, 3, width, 2 * width),
        "third": (3, 3, 2 * width, 4 * width),
        "logits": (4 * width, CLASSES),
    }
    return _drawn(key, shapes)


def cnn(params: Params, x: Array) -> Array:
    """f32[b, h, w, 3] to logits, f32[b, CLASSES]."""
    for name in ("first", "second", "third"):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=numbers)
        x = jax.nn.relu(x)
        if name != "third":
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    return x.mean(axis=(1, 2)) @ params["logits"]


def init_rnn(key: Array, *, width: int, layers: int) -> Params:
    """Draw parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(layers):
        shapes |= {f"in_{number}": (width, 4 * width), f"state_{number}": (width, 4 * width)}
    return _drawn(key, {**shapes, "logits": (width, CLASSES)})


def rnn(params: Params, x: Array) -> Array:
    """LSTM layers: f32[b, s, width] to logits, f32[b, CLASSES], of the mean of all states."""
    x = x.swapaxes(0, 1)
    for number in range((len(params) - 1) // 2):
        enter, again = params[f"in_{number}"], params[f"state_{number}"]
        start = jnp.zeros((x.shape[1], x.shape[2]))
        x = lax.scan(functools.partial(_step, enter, again), (start, start), x)[1]
    return x.mean(axis=0) @ params["logits"]


def _step(enter: Array, again: Array, state: Any, x: Array) -> Any:  # noqa: PLR0917 - of a scan
    hidden, cell = state
    open_, forget, new, leave = jnp.split(x @ enter + hidden @ again, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(open_) * jnp.tanh(new)
    hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
    return (hidden, cell), hidden


def init_dense(key: Array, *, width: int, layers: int) -> Params:
    """Draw parameters."""
    shapes: dict[str, tuple[int, ...]] = {f"w_{i}": (width, width) for i in range(layers)}
    return _drawn(key, {**shapes, "logits": (width, CLASSES)})


def dense(params: Params, x: Array) -> Array:
    """f32[b, width] to logits, f32[b, CLASSES]."""
    for number in range(len(params) - 1):
        x = jax.nn.relu(x @ params[f"w_{number}"])
    return x @ params["logits"]
