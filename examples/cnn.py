"""An image classifier (Equinox) that serves requests of 1 to 16 images.

Equinox's layers take one image; `jax.vmap` makes the batch, and the Exec goes outside of it. The
standardisation over the batch reads the valid images alone; padded images would change it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

REQUESTS = (1, 5, 16, 3)  # images


class Classifier(eqx.Module):
    layers: eqx.nn.Sequential

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = eqx.nn.Sequential(
            [
                eqx.nn.Conv2d(3, 8, 3, padding="SAME", key=keys[0]),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.AvgPool2d(2, 2),
                eqx.nn.Conv2d(8, 16, 3, key=keys[1]),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Lambda(lambda x: x.mean(axis=(1, 2))),
                eqx.nn.Linear(16, 10, key=keys[2]),
            ]
        )

    def __call__(self, images):
        spread = images.std(axis=(0, 2, 3), keepdims=True)
        images = (images - images.mean(axis=(0, 2, 3), keepdims=True)) / spread
        return jax.vmap(self.layers)(images)


def main():
    model = Classifier(jax.random.key(0))
    padded = sx.Exec(model, ("b, 3, 16, 16",), buckets={"b": sx.Pow2()})
    padded.warmup(jax.ShapeDtypeStruct((1, 3, 16, 16), jnp.float32), b=range(1, 17))
    plain = eqx.filter_jit(model)
    rng = np.random.default_rng(0)
    error = 0.0
    for size in REQUESTS:
        images = rng.random((size, 3, 16, 16), np.float32)
        error = max(error, float(jnp.abs(padded(images) - plain(images)).max()))
    print(f"graphs compiled: {padded.cache_size} instead of 16")
    print(f"largest error: {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": 16, "error": error}


if __name__ == "__main__":
    main()
