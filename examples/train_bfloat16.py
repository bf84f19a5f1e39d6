"""Training in bfloat16 with master parameters in float32, on batches of every size.

The step computes in bfloat16, which halves what activations take, and adds its updates to float32:
most of them are too small to change a bfloat16. The batch norm and the loss see the valid rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shapeexec as sx

SIZES = (8, 8, 5, 8, 3, 8, 6, 8, 1)  # the last batch of an epoch is smaller
WIDTH = 16
optimizer = optax.adamw(1e-3)


def narrowed(tree):
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def loss(masters, x, y):
    w = narrowed(masters)
    h = jax.nn.gelu(x.astype(jnp.bfloat16) @ w["in"])
    h = (h - h.mean(axis=0)) * jax.lax.rsqrt(h.var(axis=0) + jnp.bfloat16(1e-2))  # over the batch
    logits = (h @ w["out"]).astype(jnp.float32)  # the loss is a sum: in float32
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def step(masters, state, x, y):
    value, gradients = jax.value_and_grad(loss)(masters, x, y)
    updates, state = optimizer.update(gradients, state, masters)
    return optax.apply_updates(masters, updates), state, value


def main():
    rng = np.random.default_rng(0)
    masters = {
        "in": jnp.asarray(rng.normal(size=(WIDTH, 32)), jnp.float32) / 4,
        "out": jnp.asarray(rng.normal(size=(32, 4)), jnp.float32) / 8,
    }
    state = optimizer.init(masters)
    padded = sx.Exec(step, (None, None, "b, 16", "b"), buckets=8, donate_argnums=(0, 1))
    plain, error = jax.jit(step), 0.0
    for size in SIZES:
        x = rng.normal(size=(size, WIDTH)).astype(np.float32)
        y = rng.integers(0, 4, size)
        wanted = plain(masters, state, x, y)[2]
        masters, state, value = padded(masters, state, x, y)
        error = max(error, float(abs(value - wanted)))
    print(f"graphs compiled: {padded.cache_size} instead of {len(set(SIZES))}; error {error:.0e}")
    sizes, dtype = len(set(SIZES)), "bfloat16"
    return {"graphs": padded.cache_size, "sizes": sizes, "error": error, "dtype": dtype}


if __name__ == "__main__":
    main()
