"""A model of raw audio, trained on clips of mixed lengths.

Four strided convolutions make frames of the samples, 160 samples each. The number of frames
of a clip, and the padding of its last frame, are known per call; there is one graph per
bucket of lengths.
"""

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

LENGTHS = (3000, 3999, 2201, 4000)  # samples
LAYERS = ((10, 5), (8, 4), (4, 4), (4, 2))  # width and stride
FEATURES = 8


def frames(kernels, audio):
    x = audio[..., None]
    for kernel, (_, stride) in zip(kernels, LAYERS, strict=True):
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        )
        x = jax.nn.gelu(x)
    return x


def step(kernels, audio):
    """Tell each frame from the others of its clip by its neighbour."""

    def loss(kernels):
        x = frames(kernels, audio)
        x = x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-3)
        scores = jnp.einsum("btf,bsf->bts", x[:, :-1], x[:, 1:]) / 0.1
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores), axis1=1, axis2=2))

    value, gradient = jax.value_and_grad(loss)(kernels)
    return value, jax.tree.map(lambda k, g: k - 0.1 * g, kernels, gradient)


def main():
    rng, error, loss = np.random.default_rng(0), 0.0, 0.0
    shapes = [(width, 1 if i == 0 else FEATURES, FEATURES) for i, (width, _) in enumerate(LAYERS)]
    kernels = [rng.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]
    padded, plain = sx.Exec(step, (None, "2, s"), buckets={"s": sx.Linear(2000)}), jax.jit(step)
    for length in LENGTHS:
        audio = rng.normal(size=(2, length)).astype(np.float32)
        (loss, new), (same, expected) = (run(kernels, audio) for run in (padded, plain))
        apart = [float(jnp.abs(a - b).max()) for a, b in zip(new, expected, strict=True)]
        error, kernels = max([error, abs(float(loss - same)), *apart]), new
    compiled = plain._cache_size()  # pyright: ignore[reportAttributeAccessIssue] - JAX has no stub
    print(f"graphs compiled: {padded.cache_size} instead of {compiled}; loss {loss:.3f}")
    print(f"largest error: {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": compiled, "error": error}


if __name__ == "__main__":
    main()
