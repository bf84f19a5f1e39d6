"""Training on sentences of any length, with a model that is written for one sentence.

No batch axis, no mask and no padding in the code: `ex.map` runs a batch of sentences in one graph,
and adds up their losses and gradients. It needs as much memory as a batch padded by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shapeexec as sx

BATCHES, SENTENCES, LONGEST, VOCABULARY, WIDTH = 12, 9, 40, 50, 16
optimizer = optax.adam(1e-2)


def init(rng):
    shapes = {"table": (VOCABULARY, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, VOCABULARY)}
    return {name: 0.3 * rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}


def loss(params, tokens):
    """The cross entropy of each token of one sentence against the others."""
    x = params["table"][tokens]
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    place = jnp.arange(tokens.shape[0])
    scores = jnp.where(place == place[:, None], -9.0, q @ k.T)
    logits = jax.nn.softmax(scores) @ v @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def main():
    rng = np.random.default_rng(0)
    lengths = [rng.integers(2, LONGEST, rng.integers(1, SENTENCES)) for _ in range(BATCHES)]
    batches = [[rng.integers(0, VOCABULARY, n) for n in batch] for batch in lengths]
    gradient = jax.value_and_grad(loss)
    ex = sx.Exec(gradient, (None, "s"), buckets={"s": sx.Linear(20)}, examples=sx.Linear(4))
    jitted = jax.jit(gradient)
    params = init(rng)
    state, error, losses = optimizer.init(params), 0.0, []
    for batch in batches:
        value, gradients = ex.map(params, batch, reduce="sum")
        each = [jitted(params, tokens) for tokens in batch]
        wanted = jax.tree.map(lambda *leaves: sum(leaves), *each)
        gaps = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), (value, gradients), wanted)
        error = max(error, float(max(jax.tree.leaves(gaps))))
        losses.append(float(value) / len(batch))
        updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
    sizes = len(set(map(tuple, lengths)))
    print(f"graphs compiled: {ex.cache_size} for {sizes} ragged batches")
    print(f"largest error of summed loss and gradient: {error:.0e}")
    print(f"loss of a sentence: {losses[0]:.2f}, then {losses[-1]:.2f}")
    return {"graphs": ex.cache_size, "sizes": sizes, "error": error}


if __name__ == "__main__":
    main()
