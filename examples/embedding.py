"""Embedding lookup over sentences of any length, and the gradient of the table.

Padding a sentence by hand needs a reserved token id. With id 0, that word changes each mean,
and its row of the table gets a gradient from sentences without it. Here no id is reserved.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

SENTENCES = (5, 12, 17, 3, 30, 9, 21, 26)  # tokens
VOCABULARY, WIDTH = 50, 8


def loss(table, tokens, target):
    sentence = table[tokens].mean(axis=0)
    return ((sentence - target) ** 2).sum()


def main():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    target = rng.normal(size=WIDTH).astype(np.float32)
    padded = sx.Exec(jax.value_and_grad(loss), (None, "s", None), buckets={"s": sx.Linear(16)})
    plain = jax.jit(jax.value_and_grad(loss))
    error = leak = naive_leak = 0.0
    for length in SENTENCES:
        tokens = rng.integers(1, VOCABULARY, length)  # the word of id 0 never occurs
        value, gradient = padded(table, tokens, target)
        wanted, wanted_gradient = plain(table, tokens, target)
        error = max(error, float(abs(value - wanted)))
        error = max(error, float(jnp.abs(gradient - wanted_gradient).max()))
        leak = max(leak, float(jnp.abs(gradient[0]).max()))
        _, naive = plain(table, np.pad(tokens, (0, -length % 16)), target)
        naive_leak = max(naive_leak, float(jnp.abs(naive[0]).max()))
    print(f"graphs compiled: {padded.cache_size} instead of {len(set(SENTENCES))}")
    print(f"largest error of loss and gradient: {error:.0e}")
    print(f"gradient of a word that never occurs: {leak}; padded with zeros: {naive_leak:.2f}")
    return {
        "graphs": padded.cache_size,
        "sizes": len(set(SENTENCES)),
        "error": error,
        "leak": leak,
        "naive_leak": naive_leak,
    }


if __name__ == "__main__":
    main()
