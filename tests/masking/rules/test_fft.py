"""Fourier transforms at lengths that are not known: how exact they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.cases import Case
from tests.checks import assert_pad_safe
from tests.tolerance import DRAWN, FEW, assert_close, epsilon, tolerance


@pytest.mark.parametrize("size", [1, 2, 3, 127, 509, 512, 3000])
def test_a_transform_at_any_length_is_as_exact_as_its_dtype(size: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, size)).astype(np.complex64)
    run = sx.Exec(jnp.fft.fft, ("2, s",), buckets=sx.Pow2())
    want = np.fft.fft(x.astype(np.complex128))
    error = np.linalg.norm(np.asarray(run(x)) - want) / np.linalg.norm(want)
    assert error < 4 * epsilon(np.complex64)  # that of XLA's own is about half of this


def test_angles_of_long_transforms_keep_their_digits() -> None:
    x = np.zeros(70_001, np.complex64)
    x[1] = 1  # its transform is the powers of one root, whose squares pass 2^32
    run = sx.Exec(jnp.fft.fft, ("s",), buckets=sx.Linear(70_003))
    want = np.exp(-2j * np.pi * np.arange(x.size) / x.size)
    assert np.abs(np.asarray(run(x)) - want).max() < tolerance(np.complex64, loose=FEW)


@pytest.mark.parametrize("size", [4, 5])
def test_the_gradient_of_a_transform_of_reals_knows_the_parity(size: int) -> None:
    def loss(x):
        return (jnp.abs(jnp.fft.rfft(x)) ** 2).sum()

    x = np.arange(size, dtype=np.float32)
    run = sx.Exec(jax.grad(loss), ("s",), buckets=sx.Linear(8))
    assert_close(run(x), jax.grad(loss)(x))


@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft"])
def test_transforms_in_double_precision_are_double(kind: str) -> None:
    with jax.enable_x64(True):
        dtype = np.float64 if kind == "rfft" else np.complex128
        case = Case(kind, getattr(jnp.fft, kind), ("b, s",), dtypes=dtype, loose=DRAWN)
        assert_pad_safe(case, {"b": 2, "s": 5}, 4, "nan")
