"""Advice that only an accelerator gives, followed there: `JAX_PLATFORMS= pytest -m gpu`."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.tolerance import BLOCKED, assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]

HEADS, SIZE = 16, 128


def scaled(x):  # of a NumPy array it is computed without compiling
    return x * 2 - x.max(axis=1, keepdims=True)


def attend(q, k, v):  # bf16[b, s, heads, size]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / SIZE**0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def by_kernel(q, k, v):
    return sx.dot_product_attention(q, k, v)


def test_results_on_the_host_compile_no_copies_and_take_that_much_less():
    shapes = [(3, size) for size in range(70, 110)]

    def serve(run):
        began = time.perf_counter()
        for shape in shapes:
            x = np.random.default_rng(shape[1]).normal(size=shape).astype(np.float32)
            assert_close(np.asarray(run(x)), scaled(x))
        return time.perf_counter() - began

    run = sx.Exec(scaled, ("b, s",), buckets=128)
    seconds = serve(run)
    (line,) = [line for line in run.advise() if line.kind == "copies"]
    other = run.variant(**line.changes)
    assert other.stats.copy_compiles == 0
    after = serve(other)
    assert run.stats.copy_compiles - other.stats.copy_compiles == line.saves["copy_compiles"]
    print(f"copies: told {line.seconds:.2f} s, spared {seconds - after:.2f} s")
    assert line.seconds / 2 <= seconds - after <= 2 * line.seconds


def test_a_kernel_moves_that_much_less_than_attention_written_out():
    rng = np.random.default_rng(0)
    run = sx.Exec(attend, ("b, s, 16, 128",) * 3, buckets={"b": 2, "s": 1024})
    other = run.variant(fn=by_kernel)
    for size in (1500, 2000, 1800):
        q, k, v = (
            jnp.asarray(rng.normal(size=(2, size, HEADS, SIZE)), jnp.bfloat16) for _ in range(3)
        )
        written, fused = run(q, k, v), other(q, k, v)
        assert_close(fused, written, loose=BLOCKED)
    (line,) = [line for line in run.advise() if line.kind == "attention"]
    sizes = {"b": 2, "s": 2048}
    spared = 3 * (run.cost_model()(**sizes).bytes - other.cost_model()(**sizes).bytes)
    print(f"attention: told {line.bytes / 1e9:.2f} GB, by the cost model {spared / 1e9:.2f} GB")
    assert line.bytes / 2 <= spared <= 2 * line.bytes
