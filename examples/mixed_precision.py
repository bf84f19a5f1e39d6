"""Training in bf16 with masters in f32, on batches of every size.

Products run in bf16; the loss, the gradients that the optimizer sees, and the parameters that it
keeps are f32. Each dtype keeps its place under padding: a graph rounds where the unpadded step
does, so the two differ by roundings of bf16 in gradients that are summed over the batch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shapeexec as sx

BATCHES = (64, 33, 64, 5) * 10  # examples
optimizer = optax.adam(1e-2)


def narrow(tree):
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def loss(params, x, y):
    half = narrow(params)  # its transpose widens the gradients
    hidden = jax.nn.relu(narrow(x) @ half["w1"] + half["b1"])
    logits = (hidden @ half["w2"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def step(params, state, x, y):
    value, gradient = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value, gradient


def main():
    rng, error, losses = np.random.default_rng(0), 0.0, []
    shapes = {"w1": (8, 32), "b1": (32,), "w2": (32, 4)}
    params = {k: rng.normal(0, 0.3, shape).astype(np.float32) for k, shape in shapes.items()}
    state = optimizer.init(params)
    padded, plain = sx.Exec(step, (None, None, "b, 8", "b"), buckets=64), jax.jit(step)
    for size in BATCHES:
        x = rng.normal(size=(size, 8)).astype(np.float32)
        y = x[:, :4].argmax(axis=1)
        _, _, *wanted = plain(params, state, x, y)
        params, state, *got = padded(params, state, x, y)
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), got, wanted)
        error = max([error, *jax.tree.leaves(apart)])
        losses.append(float(got[0]))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    sizes = len(set(BATCHES))
    print(f"graphs compiled: {padded.cache_size} instead of {sizes}")
    print(f"largest error of loss and gradients: {error:.0e}")
    print(f"loss: {losses[0]:.2f}, then {losses[-2]:.2f}")
    return {"graphs": padded.cache_size, "sizes": sizes, "error": error, "losses": losses}


if __name__ == "__main__":
    main()
