"""Training a state-space model on batches and lengths of every size.

Its recurrence runs as `jax.lax.associative_scan` over a ragged axis: log(s) steps, and no loop.
A scan that runs backwards would meet the padding behind a sequence first: masks keep it out.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

BATCHES = ((4, 30), (4, 17), (3, 24))  # sequences, positions
WIDTH, STATES = 8, 4


def then(one, other):  # two stretches of h[t] = decay[t] * h[t-1] + inputs[t]
    return one[0] * other[0], one[1] * other[0] + other[1]


def layer(w, x, reverse):  # x: f32[b, s, WIDTH]
    rate = jax.nn.softplus(x @ w["rate"])[..., None]  # how far each position moves: selective
    decay = jnp.exp(-rate * jnp.exp(w["log_a"]))  # [b, s, WIDTH, STATES]
    inputs = rate * (x[..., None] * (x @ w["b"])[:, :, None])
    _, h = jax.lax.associative_scan(then, (decay, inputs), axis=1, reverse=reverse)
    y = (h * (x @ w["c"])[:, :, None]).sum(axis=-1)
    x = x + jax.nn.silu(x @ w["gate"]) * y
    return x / (1 + abs(x).max(axis=2, keepdims=True))


def loss(ws, x, y):  # the label of a sequence is the sign of what comes last
    x = layer(ws[1], layer(ws[0], x, reverse=False), reverse=True)
    return jnp.mean((x.mean(axis=(1, 2)) - y) ** 2)


def parameters(rng):
    square, tall = (WIDTH, WIDTH), (WIDTH, STATES)
    shapes = {"rate": square, "gate": square, "b": tall, "c": tall}
    made = {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return {**made, "log_a": np.zeros((WIDTH, STATES), np.float32)}


def main():
    rng = np.random.default_rng(0)
    ws, step = [parameters(rng), parameters(rng)], jax.value_and_grad(loss)
    padded = sx.Exec(step, (None, "b, s, 8", "b"), buckets={"b": 4, "s": 32})
    plain, error = jax.jit(step), 0.0
    for b, s in BATCHES:
        x = rng.normal(size=(b, s, WIDTH)).astype(np.float32)
        y = np.sign(x[:, -1, 0])
        (value, gradient), wanted = padded(ws, x, y), plain(ws, x, y)
        off = jax.tree.map(lambda a, b: float(abs(a - b).max()), (value, gradient), wanted)
        error = max(error, *jax.tree.leaves(off))
        ws = jax.tree.map(lambda w, g: w - 0.01 * g, ws, gradient)
    print(f"graphs compiled: {padded.cache_size} instead of {len(BATCHES)}; error {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": len(BATCHES), "error": error}


if __name__ == "__main__":
    main()
