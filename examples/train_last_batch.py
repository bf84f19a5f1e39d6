"""Training when the last batch is smaller than the others.

Usually one drops it, or pads it and masks the loss by hand. Here the loss needs no mask: one graph
serves each batch, and loss and gradients are those of the valid examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shapeexec as sx

BATCHES = (32, 32, 32, 7, 19, 4)  # training, and the last batches of three data sets
optimizer = optax.adam(1e-2)


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy(logits, y).mean()


def step(params, state, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, value, gradients


def main():
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}
    params = {k: rng.normal(0, 0.3, shape).astype(np.float32) for k, shape in shapes.items()}
    state = optimizer.init(params)
    padded = sx.Exec(step, (None, None, "b, 8", "b, 3"), buckets={"b": sx.Linear(32)})
    plain = jax.jit(step)
    error = naive_error = 0.0
    for size in BATCHES:
        x = rng.normal(size=(size, 8)).astype(np.float32)
        y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, size)]
        wanted = plain(params, state, x, y)
        zeros = [np.pad(a, ((0, 32 - size), (0, 0))) for a in (x, y)]
        naive_error = max(naive_error, float(abs(loss(params, *zeros) - wanted[2])))
        got = padded(params, state, x, y)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            error = max(error, float(jnp.abs(a - b).max()))
        params, state = got[:2]
    print(f"graphs compiled: {padded.cache_size} instead of {len(set(BATCHES))}")
    print(f"largest error of loss, gradients and parameters: {error:.0e}")
    print(f"largest error of the loss, padded with zeros and without masks: {naive_error:.2f}")
    return {
        "graphs": padded.cache_size,
        "sizes": len(set(BATCHES)),
        "error": error,
        "naive_error": naive_error,
    }


if __name__ == "__main__":
    main()
