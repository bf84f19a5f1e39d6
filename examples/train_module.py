"""Training a module of equinox on batches and lengths of every size.

The module is an ordinary argument: its arrays are inputs of the graph, other fields constants.
"""

import equinox as eqx
import jax
import numpy as np
import optax

import shapeexec as sx

BATCHES = ((8, 30), (8, 17), (5, 24), (8, 9), (3, 31), (8, 12))  # sequences, positions
optimizer = optax.adam(1e-2)


class Classifier(eqx.Module):
    embed: eqx.nn.Embedding
    attend: eqx.nn.MultiheadAttention
    decide: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(16, 8, key=keys[0])
        self.attend = eqx.nn.MultiheadAttention(2, 8, key=keys[1])
        self.decide = eqx.nn.MLP(8, 2, 16, 1, key=keys[2])

    def __call__(self, tokens):  # of one sequence
        x = jax.vmap(self.embed)(tokens)
        return self.decide((x + self.attend(x, x, x)).mean(axis=0))


def loss(model, tokens, labels):
    logits = jax.vmap(model)(tokens)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def step(model, state, tokens, labels):
    value, gradients = eqx.filter_value_and_grad(loss)(model, tokens, labels)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, value


def main():
    rng, model = np.random.default_rng(0), Classifier(jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    padded = sx.Exec(step, (None, None, "b, s", "b"), buckets={"b": 8, "s": [16, 32]})
    plain, error = eqx.filter_jit(step), 0.0
    for b, s in BATCHES:
        tokens = rng.integers(0, 16, (b, s))
        labels = (tokens == 3).any(axis=1).astype(int)
        wanted = plain(model, state, tokens, labels)[2]
        model, state, value = padded(model, state, tokens, labels)
        error = max(error, float(abs(value - wanted)))
    print(f"graphs compiled: {padded.cache_size} instead of {len(BATCHES)}; error {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": len(BATCHES), "error": error}


if __name__ == "__main__":
    main()
