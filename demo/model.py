"""A byte-level language model, written as people write one.

There is no mask for padding in it anywhere, and nothing of shapeexec.
"""

import jax
import jax.numpy as jnp
from jax import Array

LONGEST = 512
HEADS = 4
START = 256  # stands before the first byte
Params = dict


def init(key: Array, *, width: int = 64, layers: int = 2) -> Params:
    """Draw parameters."""

    def normal(*shape: int) -> Array:
        nonlocal key
        key, own = jax.random.split(key)
        return jax.random.normal(own, shape) / shape[0] ** 0.5

    def layer() -> Params:
        return {
            "attention_norm": jnp.ones(width),
            "query": normal(width, width),
            "key": normal(width, width),
            "value": normal(width, width),
            "out": normal(width, width),
            "mlp_norm": jnp.ones(width),
            "up": normal(width, 4 * width),
            "down": normal(4 * width, width),
        }

    return {
        "bytes": normal(257, width) * 4,
        "positions": normal(LONGEST, width) * 4,
        "layers": [layer() for _ in range(layers)],
        "norm": jnp.ones(width),
        "logits": normal(width, 256),
    }


def score(params: Params, tokens: Array, *, causal: bool = True) -> dict[str, Array]:
    """Read passages.

    Args:
        params: From `init`.
        tokens: i32[b, s], bytes.
        causal: Whether a byte sees only those before it.

    Returns:
        bits: f32[b, s], how surprising each byte is.
        bits_per_byte: f32[b], their mean.
        embedding: f32[b, width], the mean of what the last layer says.
    """
    hidden = encode(params, tokens, causal=causal)
    log_probabilities = jax.nn.log_softmax(hidden @ params["logits"])
    chosen = jnp.take_along_axis(log_probabilities, tokens[:, :, None], axis=-1)
    bits = -chosen[:, :, 0] / jnp.log(2.0)
    return {
        "bits": bits,
        "bits_per_byte": bits.mean(axis=1),
        "embedding": hidden.mean(axis=1),
    }


def loss(params: Params, tokens: Array, *, causal: bool = True) -> Array:
    """Mean bits per byte of passages, i32[b, s]: what training makes small."""
    return score(params, tokens, causal=causal)["bits_per_byte"].mean()


def encode(params: Params, tokens: Array, *, causal: bool = True) -> Array:
    """What the last layer says at each position, from the bytes before it: f32[b, s, width]."""
    size = tokens.shape[1]
    before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    x = params["bytes"][before] + params["positions"][jnp.arange(size)]
    mask = jnp.tril(jnp.ones((size, size), bool)) if causal else None
    for layer in params["layers"]:
        x = x + attention(layer, layer_norm(x, layer["attention_norm"]), mask=mask)
        x = x + jax.nn.gelu(layer_norm(x, layer["mlp_norm"]) @ layer["up"]) @ layer["down"]
    return layer_norm(x, params["norm"])


def attention(layer: Params, x: Array, *, mask: Array | None) -> Array:
    """Multi-head self-attention of f32[b, s, width]; `mask` broadcasts to bool[b, heads, s, s]."""
    batch, size, width = x.shape
    heads = (batch, size, HEADS, width // HEADS)
    query, key, value = ((x @ layer[name]).reshape(heads) for name in ("query", "key", "value"))
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (width // HEADS) ** 0.5
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=-1)
    read = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return read.reshape(batch, size, width) @ layer["out"]


def layer_norm(x: Array, scale: Array) -> Array:
    """Normalise the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    return scale * x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
