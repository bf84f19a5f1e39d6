"""Small models and losses as people write them, without a mask for padding."""

import jax
import jax.numpy as jnp
import optax

from tests.cases._case import Case


def _attention(x: jax.Array, w: jax.Array) -> jax.Array:
    q, k, v = jnp.split(x @ w, 3, axis=-1)
    logits = q @ k.swapaxes(-1, -2)
    causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(causal, logits, -jnp.inf), -1) @ v


def _layer_norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _block(x: jax.Array, w: jax.Array, up: jax.Array) -> jax.Array:
    x = x + _attention(_layer_norm(x), w)
    rms = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(rms @ up) @ up.T


def _next_token_loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def _dropout_mlp(x: jax.Array, w: jax.Array) -> jax.Array:
    keep = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    return jax.nn.relu(jnp.where(keep, x / 0.5, 0) @ w).mean(0)


def _lookup(table: jax.Array, tokens: jax.Array) -> jax.Array:
    return table[tokens].mean(1) @ table.T


def _misaligned(x: jax.Array) -> jax.Array:
    return jnp.exp(x - x.max(1)[None, :]).sum(1)


def _interrupted(x: jax.Array) -> jax.Array:
    largest, total = x.max(1, keepdims=True), x.sum(1)
    return jnp.exp(x - largest).sum(1) + total


def _tangent(x: jax.Array) -> jax.Array:
    return jax.jvp(lambda v: jax.nn.softmax(v, 1), (x,), (jnp.cos(x),))[1]


CASES = (
    Case("tangent of softmax", _tangent, ("b, s",)),
    Case("attention", _attention, ("b, s, 3", "3, 9"), naive="agrees"),
    Case("full attention", lambda x: jax.nn.softmax(x @ x.swapaxes(-1, -2), -1) @ x, ("b, s, 3",)),
    Case("transformer block", _block, ("b, s, 4", "4, 12", "4, 8"), naive="agrees"),
    Case("loss of a block", lambda *a: (_block(*a) ** 2).mean(), ("b, s, 4", "4, 12", "4, 8")),
    Case(
        "next-token loss",
        _next_token_loss,
        ("b, s, 5", "b, s"),
        dtypes=("float32", "int32"),
        least={"s": 2},
    ),
    Case("embedding lookup", _lookup, ("5, 3", "b, s"), dtypes=("float32", "int32")),
    Case("dropout", _dropout_mlp, ("b, s, 3", "3, 2")),
    Case("batch norm", lambda x: (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-3), ("b, s, 3",)),
    Case("log-sum-exp loss", lambda x: (jax.nn.logsumexp(x, 1) - x[:, 0]).mean(), ("b, s",)),
    Case("one-hot", lambda t: jax.nn.one_hot(t, 4).mean(1), ("b, s",), dtypes="int32"),
    # A softmax over rows that hold NaN and infinities, and over rows of -inf alone.
    Case(
        "softmax of NaN",
        lambda x: jax.nn.softmax(jnp.log(x), 1) @ x.T,
        ("b, s",),
        naive="agrees",
    ),
    Case(
        "softmax of nothing",
        lambda x: jax.nn.softmax(jnp.where(x > 1, x, -jnp.inf), 1) @ x.T,
        ("b, s",),
        naive="agrees",
    ),
    Case(
        "softmax of infinity",
        lambda x: jax.nn.softmax(jnp.where(x > 1, jnp.inf, x), 1) @ x.T,
        ("b, s",),
    ),
    # What looks like a softmax and is none: no mask may be spared.
    Case(
        "shifted by the maximum of another",
        lambda x: (x.max(1), jnp.exp(x - jnp.log(x * 0).max(1, keepdims=True)).sum(1)),
        ("b, s",),
        naive="agrees",
    ),
    Case("shifted by the maxima of another axis", _misaligned, ("s, s",)),
    Case("a sum between maximum and shift", _interrupted, ("b, s",)),
    Case(
        "NaN counted behind a softmax",
        lambda x: jnp.isnan(jax.nn.softmax(jnp.log(x), 1)).sum(1),
        ("b, s",),
    ),
)
