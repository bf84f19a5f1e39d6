"""The demo's model with padding done by hand: what an expert writes who knows where masks belong.

It knows nothing of shapeexec but the strategies that choose buckets.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import shapeexec as sx
from demo.model import START, Params, attention, layer_norm


def score(
    params: Params, tokens: Array, batch: Array, size: Array, *, causal: bool
) -> dict[str, Array]:
    """`demo.model.score` of i32[b, s] tokens of which `batch` rows and `size` columns are valid.

    Rows do not see each other, so none is masked here.
    """
    del batch
    columns = jnp.arange(tokens.shape[1])
    is_valid = columns < size
    before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    x = params["bytes"][before] + params["positions"][columns]
    mask = is_valid[None, :]
    if causal:
        mask = mask & (columns[None, :] <= columns[:, None])
    for layer in params["layers"]:
        x = x + attention(layer, layer_norm(x, layer["attention_norm"]), mask=mask)
        x = x + jax.nn.gelu(layer_norm(x, layer["mlp_norm"]) @ layer["up"]) @ layer["down"]
    hidden = layer_norm(x, params["norm"])
    log_probabilities = jax.nn.log_softmax(hidden @ params["logits"])
    chosen = jnp.take_along_axis(log_probabilities, tokens[:, :, None], axis=-1)
    bits = -chosen[:, :, 0] / jnp.log(2.0)
    return {
        "bits": bits,
        "bits_per_byte": jnp.where(is_valid, bits, 0).sum(axis=1) / size,
        "embedding": jnp.where(is_valid[:, None], hidden, 0).sum(axis=1) / size,
    }


def loss(params: Params, tokens: Array, batch: Array, size: Array, *, causal: bool) -> Array:
    """`demo.model.loss` of the same."""
    rows = score(params, tokens, batch, size, causal=causal)["bits_per_byte"]
    return jnp.where(jnp.arange(tokens.shape[0]) < batch, rows, 0).sum() / batch


class Padded:
    """Pads data in NumPy, runs a masked function, and cuts its ragged results.

    Args:
        fn: Of (params, padded data, batch, size).
        buckets: The strategies of b and s.
        cut: From (result, batch, size) to the true result.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        buckets: Mapping[str, sx.Strategy],
        cut: Callable[[Any, int, int], Any],
    ) -> None:
        self.jitted = jax.jit(fn)
        self._buckets = buckets
        self.cut = cut

    def padded(self, *data: np.ndarray) -> tuple[np.ndarray, ...]:
        """Arrays of [b] or [b, s, ...] at their bucket, with their true sizes behind them."""
        batch, size = data[0].shape[:2]
        bucket = (self._buckets["b"].bucket(batch), self._buckets["s"].bucket(size))
        padded = [pad_to(x, (*bucket[: x.ndim], *x.shape[2:])) for x in data]
        return *padded, np.asarray(batch, np.int32), np.asarray(size, np.int32)

    def __call__(self, params: Params, *data: np.ndarray) -> Any:
        """What the plain function returns for these arguments."""
        result = self.jitted(params, *self.padded(*data))
        return self.cut(result, *data[0].shape[:2])


def pad_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`x` in the front corner of zeros."""
    out = np.zeros(shape, x.dtype)
    out[tuple(map(slice, x.shape))] = x
    return out


def cut_scores(result: dict[str, Array], batch: int, size: int) -> dict[str, np.ndarray]:
    """The true part of what `score` returns."""
    whole = {name: np.asarray(value)[:batch] for name, value in result.items()}
    return {**whole, "bits": whole["bits"][:, :size]}


def cut_rows(result: Any, batch: int, size: int) -> np.ndarray:
    """The true part of an array of one row per example."""
    del size
    return np.asarray(result)[:batch]


def cut_nothing(result: Any, batch: int, size: int) -> Any:
    """The result as it is."""
    del batch, size
    return result
