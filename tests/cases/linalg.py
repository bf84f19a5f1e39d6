"""Linear algebra over ragged batches and ragged matrices."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from tests.cases._case import Case


def positive(x):
    """A well-conditioned positive matrix for each matrix of `x`."""
    return jnp.einsum("...ik,...jk->...ij", x, x) / 4 + 2 * jnp.eye(x.shape[-1])


def solve_positive(x, rhs):
    return cho_solve((jnp.linalg.cholesky(positive(x)), True), rhs)


def eigh(x):
    """What of the eigenvectors does not hang on their signs."""
    values, vectors = jnp.linalg.eigh(positive(x) - 3 * jnp.eye(x.shape[-1]))
    return values, jnp.einsum("...ij,...j,...kj->...ik", vectors, jnp.sin(values), vectors)


def svd(x):
    left, values, right = jnp.linalg.svd(x)
    return values, jnp.einsum("...ij,...j,...jk->...ik", left, jnp.sin(values), right)


def lu(x):
    factors, pivots, permutation = lax.linalg.lu(x)
    return factors, permutation, lax.linalg.lu_pivots_to_permutation(pivots, x.shape[-1])


def tridiagonal(lower, diagonal, upper, rhs):
    size = upper.shape[1]
    upper = jnp.where(jnp.arange(size) == size - 1, jnp.inf, upper)  # it has no meaning there
    return lax.linalg.tridiagonal_solve(lower, jnp.abs(diagonal) + 4, upper, rhs + 1)


def spectrum(x):
    return jnp.abs(jnp.fft.rfft(x))


CASES = (
    Case(
        "cholesky over a batch",
        lambda x: jnp.linalg.cholesky(positive(x)),
        ("b, 3, 3",),
        naive="agrees",
        tolerance=1e-4,
    ),
    Case(
        "solve with a ragged matrix",
        solve_positive,
        ("s, s", "s, 2"),
        sizes={"s": 4},
        naive="agrees",
        tolerance=1e-4,
    ),
    Case("LU of ragged matrices", lu, ("b, s, s",), grad=False, naive="agrees", tolerance=1e-4),
    Case("eigh over a batch", eigh, ("b, 3, 3",), grad=False, naive="agrees", tolerance=1e-4),
    Case("eigh of a ragged matrix", eigh, ("s, s",), grad=False, tolerance=1e-4),
    Case("svd of ragged matrices", svd, ("b, s, s",), grad=False, naive="agrees", tolerance=1e-4),
    Case(
        "singular values of a ragged matrix",
        lambda x: jnp.linalg.svd(jax.nn.softmax(x, 0), compute_uv=False),
        ("b, s",),
        grad=False,
        tolerance=1e-4,
    ),
    Case(
        "QR of ragged matrices",
        lambda x: jnp.linalg.qr(jnp.cos(x)),
        ("b, s",),
        grad=False,
        tolerance=1e-4,
    ),
    Case(
        "tridiagonal solve",
        tridiagonal,
        ("b, s", "b, s", "b, s", "b, s, 2"),
        least={"s": 3},
        grad=False,
        tolerance=1e-4,
    ),
    Case("Fourier transform over a batch", spectrum, ("b, 8",), naive="agrees", tolerance=1e-4),
)
