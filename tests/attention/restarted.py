"""A process that loads saved graphs of attention."""

import sys

import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.attention.lowering import layers

FUNCTION = layers(2, "mosaic_gpu")


def answer(run):
    x = np.linspace(-1, 1, 2 * 300 * 2 * 64, dtype=np.float32).reshape(2, 300, 2, 64)
    return np.asarray(run(jnp.asarray(x, jnp.bfloat16)), np.float32)


def load(directory, file):
    """Load the graphs of a directory, answer into a file, and tell what was compiled."""
    run = sx.load(directory, FUNCTION, trusted=True)
    np.save(file, answer(run))
    print(run.stats.compiles, run.stats.loads, "jax.experimental.mosaic.gpu" in sys.modules)
