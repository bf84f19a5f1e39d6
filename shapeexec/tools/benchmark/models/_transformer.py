"""A transformer over tokens, whose attention, layer norm and GELU can be exchanged.

It measures nothing.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Params = dict[str, Any]
TOKENS = 256


def causal_attention(query: Array, key: Array, value: Array) -> Array:  # noqa: PLR0917 - operands of a formula
    """Causal attention by its formula, of f32[b, s, heads, size]."""
    size = query.shape[1]
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[3] ** 0.5
    logits = jnp.where(jnp.tril(jnp.ones((size, size), bool)), logits, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)


def layer_norm(x: Array, scale: Array) -> Array:
    """Normalise the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    return scale * x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def gelu(x: Array) -> Array:
    """GELU, by tanh."""
    return jax.nn.gelu(x)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of the model that may be replaced by kernels.

    Attributes:
        attention: Causal attention of query, key and value, f32[b, s, heads, size] each.
        norm: Layer norm of f32[..., width] with a scale f32[width].
        gelu: GELU of f32[..., width].
    """

    attention: Callable[..., Array] = causal_attention
    norm: Callable[..., Array] = layer_norm
    gelu: Callable[..., Array] = gelu


def init(key: Array, *, width: int, layers: int) -> Params:
    """Draw parameters."""
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}

    def matrix(key: Array, shape: tuple[int, int]) -> Array:
        return jax.random.normal(key, shape) / shape[0] ** 0.5

    def layer(key: Array) -> Params:
        keys = jax.random.split(key, len(shapes))
        drawn = {n: matrix(k, shape) for k, (n, shape) in zip(keys, shapes.items(), strict=True)}
        return {**drawn, "norm_1": jnp.ones(width), "norm_2": jnp.ones(width)}

    first, last, *own = jax.random.split(key, layers + 2)
    return {
        "tokens": matrix(first, (TOKENS, width)) * TOKENS**0.5,
        "layers": [layer(key) for key in own],
        "norm": jnp.ones(width),
        "logits": matrix(last, (width, TOKENS)),
    }


def transformer(*, heads: int, parts: Parts) -> Callable[..., dict[str, Array]]:
    """A function of parameters and tokens, i32[b, s].

    Args:
        heads: The number of attention heads.
        parts: The functions that the model is made of.
    """

    def score(params: Params, tokens: Array) -> dict[str, Array]:
        """The loss of each next token in nats, f32[b, s - 1], and the mean of the final states."""
        x = params["tokens"][tokens]
        for layer in params["layers"]:
            x = x + _attended(layer, parts.norm(x, layer["norm_1"]), heads=heads, parts=parts)
            wide = parts.norm(x, layer["norm_2"]) @ layer["up"]
            x = x + parts.gelu(wide) @ layer["down"]
        x = parts.norm(x, params["norm"])
        logits = jax.nn.log_softmax(x[:, :-1] @ params["logits"])
        nats = -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return {"nats": nats, "embedding": x.mean(axis=1)}

    return score


def _attended(layer: Params, x: Array, *, heads: int, parts: Parts) -> Array:
    batch, size, width = x.shape
    qkv = (x @ layer["qkv"]).reshape(batch, size, 3, heads, width // heads)
    read = parts.attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
    return read.reshape(batch, size, width) @ layer["out"]
