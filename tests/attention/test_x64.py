"""Operands of f64: sums, log-sum-exp and gradients are f64 too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.attention.reference import Reference
from tests.tolerance import SUMS, assert_close, tolerance

B, T, S, N, H = 2, 150, 140, 4, 16
ALLOWED = np.tri(T, S, dtype=bool)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def operands():
    random = np.random.default_rng(0)
    shapes = (B, T, N, H), (B, S, 2, H), (B, S, 2, H), (B, T, N, H)
    q, k, v, d_out = (random.normal(size=shape) for shape in shapes)
    return q, k, v, d_out, 50 * random.normal(size=(1, N, T, S))


def reference(q, k, v, bias):
    return Reference(q, k, v, bias, np.broadcast_to(ALLOWED, (B, N, T, S)), H**-0.5)


def attend(q, k, v, bias, **options):
    return sx.dot_product_attention(q, k, v, bias, is_causal=True, **options)


def assert_exact(mine, want) -> None:
    assert mine.dtype == np.float64
    assert_close(mine, np.asarray(want))


def test_result_residual_and_gradients_have_all_digits():
    q, k, v, d_out, bias = operands()
    truth = reference(q, k, v, bias)
    out, residual = attend(q, k, v, bias, return_residual=True)
    assert_exact(out, truth.out)
    assert_exact(residual, truth.logsumexp)
    _, transpose = jax.vjp(jax.jit(attend), q, k, v, bias)
    *gradients, d_bias = truth.gradients(d_out)
    for mine, want in zip(
        transpose(d_out), (*gradients, d_bias.sum(0, keepdims=True)), strict=True
    ):
        assert_exact(mine, want)


def test_directions_and_mapped_calls_have_the_digits_of_f64():
    q, k, v, d_out, bias = operands()
    out, along = jax.jvp(lambda q: attend(q, k, v, bias), (q,), (d_out,))
    d_q, *_ = reference(q, k, v, bias).gradients(d_out)
    assert_close((along * d_out).sum(), (d_q * d_out).sum())
    mapped = jax.vmap(attend, (0, 0, 0, None))(q[:, None], k[:, None], v[:, None], bias)
    assert_exact(mapped[:, 0], out)


def test_alibi_has_slopes_of_f64():
    q, k, v, d_out, _ = operands()
    alibi = sx.ALiBi.for_heads(6)
    assert alibi.slopes.dtype == np.float64
    slopes = np.array([0.1, 0.3, 1 / 7, 0.01])
    distance = abs(np.arange(S) - np.arange(T)[:, None])
    truth = reference(q, k, v, -slopes[:, None, None] * distance)
    assert_exact(attend(q, k, v, sx.ALiBi(slopes)), truth.out)
    gradient = jax.grad(lambda s: (attend(q, k, v, sx.ALiBi(s)) * d_out).sum())(slopes)
    d_bias = truth.gradients(d_out)[-1]
    assert_exact(gradient, -(d_bias * distance).sum((0, 2, 3)))
    narrow = attend(*(x.astype(np.float32) for x in (q, k, v)), sx.ALiBi(slopes))
    assert narrow.dtype == np.float32


def test_dropout_is_exact_too():
    q, k, v, _, bias = operands()
    options = {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)}
    far = attend(q, k, v, bias + 2.0**30, **options)
    limit = tolerance(np.float32, loose=SUMS)
    np.testing.assert_allclose(attend(q, k, v, bias, **options), far, limit, limit)
    assert far.dtype == np.float64


def test_in_an_exec_it_is_f64_too():
    q, k, v, _, bias = operands()
    spec = ("b, t, _, _", "b, s, _, _", "b, s, _, _", "_, _, t, s")
    padded = sx.Exec(attend, spec, buckets=sx.Linear(160), poison="nan")
    assert_exact(padded(q, k, v, bias), reference(q, k, v, bias).out)


@pytest.mark.parametrize("name", ["triton", "mosaic_tpu", "mosaic_gpu", "cudnn"])
def test_kernels_refuse_f64(name):
    q, k, v, _, _ = map(jnp.asarray, operands())
    with pytest.raises(sx.BackendError, match=name):
        sx.dot_product_attention(q, k, v, implementation=name)
