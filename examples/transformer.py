"""A transformer (Flax) whose batch and sequence lengths both change from call to call.

Three graphs serve each batch of 1 to 4 sequences of 1 to 16 positions. No attention mask is
written: the softmax and the mean over positions see the valid length.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import shapeexec as sx

CALLS = ((1, 5), (2, 16), (3, 9), (4, 3))  # (batch, sequence)
WIDTH = 32


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.block1, self.block2 = Block(rngs), Block(rngs)
        self.head = nnx.Linear(WIDTH, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.block2(self.block1(x)).mean(axis=1))


def main():
    structure, state = nnx.split(Classifier(nnx.Rngs(0)))
    forward = lambda state, x: nnx.merge(structure, state)(x)  # noqa: E731 - one line, as users write it
    padded = sx.Exec(forward, (None, "b, s, 32"), buckets={"b": sx.Pow2(), "s": sx.Linear(16)})
    example = jax.ShapeDtypeStruct((1, 1, WIDTH), jnp.float32)
    padded.warmup(state, example, b=range(1, 5), s=range(1, 17))
    padded.freeze()  # none of the calls below may compile
    plain = jax.jit(forward)
    rng = np.random.default_rng(0)
    error = 0.0
    for batch, length in CALLS:
        x = rng.normal(size=(batch, length, WIDTH)).astype(np.float32)
        error = max(error, float(jnp.abs(padded(state, x) - plain(state, x)).max()))
    print(f"graphs compiled: {padded.cache_size} instead of 64")
    print(f"largest error in {len(CALLS)} calls: {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": 64, "error": error}


if __name__ == "__main__":
    main()
