"""A block of a transformer, and what tests look at programs with."""

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

WIDTH = 64


def norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def attend(params, x):
    b, s, _ = x.shape
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(b, s, 4, WIDTH // 4) for a in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
    causal = jnp.tril(jnp.ones((s, s), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, s, WIDTH) @ params["out"]


def block(params, x):
    x = x + attend(params, norm(x, params["scale1"]))
    h = jax.nn.silu(norm(x, params["scale2"]) @ params["up"] + params["bias"])
    return x + h @ params["down"]


PARAMS = {
    name: np.ones(shape, np.float32)
    for name, shape in {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "scale1": (WIDTH,),
        "scale2": (WIDTH,),
        "up": (WIDTH, 4 * WIDTH),
        "bias": (4 * WIDTH,),
        "down": (4 * WIDTH, WIDTH),
    }.items()
}
SPECS = (None, f"b, s, {WIDTH}")


def tokens(b, s):
    return np.ones((b, s, WIDTH), np.float32)


def traced(fn, specs, *args, **options):
    """The program of a call."""
    return sx.Exec(fn, specs, buckets=sx.Pow2(), **options).trace(*args)
