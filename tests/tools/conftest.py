"""A file with functions, as `FILE:FUNCTION` on a command line names it."""

import pytest

MODEL = """\
import jax.numpy as jnp
import numpy as np
import shapeexec as sx

def mean(w, x):
    return (w * x).mean(axis=1)

def other(w, x):
    return w * x.sum(axis=1) / x.shape[1]

def wrong(w, x):
    return mean(w, x) * 1.01

def narrow(w, x):
    return mean(w, x).astype(jnp.bfloat16)

run = sx.Exec(mean, (None, "b, s"), buckets={"b": "pow2", "s": 8})
number = 3

def example(b=2, s=5):
    return np.float32(2), np.arange(b * s, dtype=np.float32).reshape(b, s)

def no_default(b, s=5):
    return ()

def no_tuple(b=2):
    return np.ones(b)

def raises(b=2):
    return 1 / 0
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path
