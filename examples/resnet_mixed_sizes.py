"""A ResNet-18 of small width, trained on images of mixed sizes.

Its strides halve both axes five times, and each remainder depends on the size. Still one graph
trains on all sizes of a bucket.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import shapeexec as sx

SIZES = ((33, 48), (47, 35), (40, 41))  # height, width
BLOCKS = ((4, 1), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1))  # features, stride


class ResNet18(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(4, (7, 7), 2)(x)), (3, 3), (2, 2), "SAME")
        for features, stride in BLOCKS:
            y = nn.Conv(features, (3, 3), stride)(x)
            y = nn.Conv(features, (3, 3))(nn.relu(nn.GroupNorm(2)(y)))
            if stride > 1:
                x = nn.Conv(features, (1, 1), stride)(x)
            x = nn.relu(x + y)
        return nn.Dense(3)(x.mean((1, 2)))


def loss(params, images):
    return -jax.nn.log_softmax(jnp.asarray(ResNet18().apply(params, images)))[:, 0].mean()


def step(params, images):
    value, gradient = jax.value_and_grad(loss)(params, images)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)


def main():
    rng, error, value = np.random.default_rng(0), 0.0, 0.0
    structs = jax.eval_shape(ResNet18().init, jax.random.key(0), jnp.zeros((2, 48, 48, 3)))
    params = jax.tree.map(lambda p: rng.normal(0, 0.1, p.shape).astype(p.dtype), structs)
    padded, plain = sx.Exec(step, (None, "2, h, w, 3"), buckets=sx.Linear(16)), jax.jit(step)
    for size in SIZES:
        images = rng.random((2, *size, 3), np.float32)
        (value, new), expected = (run(params, images) for run in (padded, plain))
        apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), (value, new), expected)
        error, params = max([error, *jax.tree.leaves(apart)]), new
    graphs = padded.cache_size
    compiled = plain._cache_size()  # pyright: ignore[reportAttributeAccessIssue] - JAX has no stub
    print(f"graphs compiled: {graphs} instead of {compiled}; loss {value:.3f}")
    print(f"largest error: {error:.0e}")
    return {"graphs": graphs, "sizes": compiled, "error": error}


if __name__ == "__main__":
    main()
