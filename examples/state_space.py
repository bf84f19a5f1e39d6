"""A state-space model: a linear recurrence by `jax.lax.associative_scan`, beside the transformer.

`associative_scan` halves the sequence again and again, in Python, so for `jax.jit` each length is a
program of its own. Here batches and lengths of every size train in one graph per bucket. The scan
from the right would start in the padding; it starts at the last valid position.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

BATCHES = ((2, 24), (1, 31), (2, 9), (4, 17))  # sequences, positions
WIDTH, STATES = 3, 4


def scanned(decay, x, *, reverse=False):
    """The states h[t] = decay[t] * h[t - 1] + x[t] along axis 1, all at once."""

    def join(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    return jax.lax.associative_scan(join, (decay, x), axis=1, reverse=reverse)[1]


def loss(params, x, y):
    """Whether the model, which reads from both ends, tells y of a sequence."""
    decay = jax.nn.sigmoid(x @ params["decay"])  # what is forgotten depends on what is read
    states = [scanned(decay, x @ params[way], reverse=way == "back") for way in ("forth", "back")]
    read = jnp.tanh(jnp.concatenate(states, axis=-1)).mean(axis=1)
    return ((read @ params["out"] - y) ** 2).mean()


def step(params, x, y):
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def main():
    rng, error, value = np.random.default_rng(0), 0.0, 0.0
    shapes = {name: (WIDTH, STATES) for name in ("decay", "forth", "back")} | {"out": (2 * STATES,)}
    params = {k: rng.normal(0, 0.5, shape).astype(np.float32) for k, shape in shapes.items()}
    padded = sx.Exec(step, (None, f"b, s, {WIDTH}", "b"), buckets={"b": 4, "s": [16, 32]})
    plain = jax.jit(step)
    for b, s in BATCHES:
        x = rng.normal(size=(b, s, WIDTH)).astype(np.float32)
        y = x[:, -1, 0] - x[:, 0, 0]
        (value, new), expected = padded(params, x, y), plain(params, x, y)
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), (value, new), expected)
        error, params = max([error, *jax.tree.leaves(apart)]), new
    print(f"graphs compiled: {padded.cache_size} instead of {len(BATCHES)}; loss {value:.3f}")
    print(f"largest error: {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": len(BATCHES), "error": error}


if __name__ == "__main__":
    main()
