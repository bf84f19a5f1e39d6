"""What an installed shapeexec must do, without a package that it does not ask for.

`scripts/wheel.py` runs it in a fresh environment. It imports no test: tests are not installed.
"""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    """A softmax along one ragged axis and a mean over both: each is wrong without masks."""
    return (jax.nn.softmax(x @ w, axis=1)[..., None] * x).std()


def main() -> None:
    """Install, run, attend, and start the command."""
    installed = pathlib.Path(sx.__file__).parent
    assert installed.is_relative_to(sys.prefix), f"another shapeexec: {installed}"
    assert sx.__version__ == importlib.metadata.version("shapeexec")
    for name in ("equinox", "flax", "matplotlib", "optax", "pytest", "rich"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed, too"
    step = jax.value_and_grad(loss)
    run, plain = sx.Exec(step, (None, "b, s, 4"), buckets={"b": "pow2", "s": 8}), jax.jit(step)
    w = jnp.ones(4)
    for b, s in ((1, 5), (3, 8), (4, 7), (3, 3)):
        x = np.random.default_rng(s).normal(size=(b, s, 4)).astype(np.float32)
        for got, want in zip(run(w, x), plain(w, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert run.cache_size == 2, run.cache_size
    x = np.ones((1, 5, 2, 4), np.float32)
    attend = sx.Exec(lambda x: sx.dot_product_attention(x, x, x, mask=sx.Causal()), ("b, s, 2, 4",))
    np.testing.assert_allclose(attend(x), x, rtol=1e-6)
    command = pathlib.Path(sys.executable).with_name("shapeexec")
    told = subprocess.run((command, "--help"), capture_output=True, text=True, check=True).stdout
    assert "doctor" in told, told


if __name__ == "__main__":
    main()
