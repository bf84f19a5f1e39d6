"""Linear algebra over ragged batches and ragged matrices."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from tests.cases._case import Case
from tests.tolerance import ITERATED, SUMS, tolerance

_ITERATED = tolerance("float32", loose=ITERATED)


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


def dominant(x):
    """A well-conditioned matrix, not symmetric, for each matrix of `x`."""
    return jnp.tanh(x) + (1 + x.shape[-1]) * jnp.eye(x.shape[-1])


def solutions(x, rhs):
    matrix = dominant(x)
    return jnp.linalg.inv(matrix), jnp.linalg.slogdet(matrix), jnp.linalg.solve(matrix, rhs)


def svd_of_rectangles(x):
    """What of the singular vectors does not hang on their signs, and that they are orthonormal."""
    left, values, right = jnp.linalg.svd(x, full_matrices=False)
    left_all, _, right_all = jnp.linalg.svd(jnp.ones_like(x), full_matrices=False)  # of rank one
    return (
        values,
        jnp.einsum("...ij,...j,...jk->...ik", left, jnp.sin(values), right),
        jnp.einsum("...ji,...jk->...ik", left_all, left_all),
        jnp.einsum("...ij,...kj->...ik", right_all, right_all),
    )


def eliminations_of_rectangles(x):
    return lax.linalg.lu(x), lax.linalg.qr(x, pivoting=True, full_matrices=False)[1:]


def reflections(x, y):
    reflectors, taus = jnp.linalg.qr(x, mode="raw")
    turned = lax.linalg.ormqr(reflectors.mT, taus, y, left=True)
    return turned, lax.linalg.ormqr(reflectors.mT, taus, y.mT, left=False, transpose=True)


def updates(x, vector):
    factor = jnp.linalg.cholesky(positive(x), upper=True)
    product = lax.linalg.symmetric_product(jnp.cos(x), positive(x), alpha=2.0, beta=0.5)
    return lax.linalg.cholesky_update(factor, vector), jnp.tril(product)


def eig(x):
    """Eigenvalues in an order of their own, and whether the vectors are theirs."""
    values, vectors = jnp.linalg.eig(x)
    rest = jnp.einsum("...ij,...jk->...ik", x.astype(values.dtype), vectors)
    rest -= values[..., None, :] * vectors
    norms = jnp.linalg.norm(vectors, axis=-2)
    return jnp.sort(values.real), jnp.sort(values.imag), jnp.abs(rest) < _ITERATED, norms


def condensed(x):
    return (
        lax.linalg.hessenberg(x),
        lax.linalg.schur(x),
        lax.linalg.tridiagonal(x, lower=True),
        lax.linalg.tridiagonal(x, lower=False)[1:3],
    )


CASES = (
    Case(
        "cholesky over a batch",
        lambda x: jnp.linalg.cholesky(positive(x)),
        ("b, 3, 3",),
        naive="agrees",
        loose=SUMS,
    ),
    Case(
        "solve with a ragged matrix",
        solve_positive,
        ("s, s", "s, 2"),
        sizes={"s": 4},
        naive="agrees",
        loose=SUMS,
    ),
    Case("LU of ragged matrices", lu, ("b, s, s",), naive="agrees", loose=SUMS),
    Case(
        "cholesky of ragged matrices",
        lambda x: jnp.linalg.cholesky(positive(x)),
        ("b, s, s",),
        naive="agrees",
        loose=SUMS,
    ),
    Case("eigh over a batch", eigh, ("b, 3, 3",), naive="agrees", loose=SUMS),
    Case("eigh of ragged matrices", eigh, ("b, s, s",), loose=SUMS),
    Case("eigh of a ragged matrix", eigh, ("s, s",), loose=SUMS),
    Case("svd of ragged matrices", svd, ("b, s, s",), naive="agrees", loose=SUMS),
    Case(
        "singular values of a ragged matrix",
        lambda x: jnp.linalg.svd(jax.nn.softmax(x, 0), compute_uv=False),
        ("b, s",),
        loose=SUMS,
    ),
    Case(
        "QR of ragged matrices",
        lambda x: jnp.linalg.qr(jnp.cos(x)),
        ("b, s",),
        loose=SUMS,
    ),
    Case(
        "tridiagonal solve",
        tridiagonal,
        ("b, s", "b, s", "b, s", "b, s, 2"),
        least={"s": 3},
        loose=SUMS,
    ),
    Case(
        "inverse, determinant and solution",
        solutions,
        ("b, s, s", "b, s, 2"),
        loose=SUMS,
    ),
    Case(
        "least squares over ragged rows",
        lambda x, y: jnp.linalg.lstsq(jnp.sin(x), y)[0],
        ("s + 3, 2", "s + 3"),
        naive="agrees",
        loose=ITERATED,
    ),
    Case(
        "svd of ragged rectangles",
        svd_of_rectangles,
        ("b, s, t",),
        sizes={"b": 2, "s": 3, "t": 4},
        naive="agrees",
        loose=SUMS,
    ),
    Case(
        "LU and pivoted QR of ragged rectangles",
        eliminations_of_rectangles,
        ("s, t",),
        sizes={"s": 3, "t": 4},
        naive="agrees",
        loose=SUMS,
    ),
    Case(
        "reflections applied",
        reflections,
        ("b, s + 2, 3", "b, s + 2, t"),
        no_gradient="none of geqrf",
        naive="agrees",
        loose=SUMS,
    ),
    Case(
        "iterations that end at another step in each row",
        lambda x: jax.scipy.linalg.polar(dominant(x)),
        ("b, 3, 3",),
        no_gradient="while",
        naive="agrees",
        loose=SUMS,
    ),
    Case(
        "bisections within bisections",
        jax.vmap(lambda d, e: jax.scipy.linalg.eigh_tridiagonal(d, e, eigvals_only=True)),
        ("b, 3", "b, 2"),
        no_gradient="while",
        naive="agrees",
        loose=SUMS,
    ),
    Case("updates", updates, ("s, s", "s"), no_gradient="none of symmetric_product", loose=SUMS),
    Case(
        "eigenvalues of ragged matrices",
        eig,
        ("b, s, s",),
        no_gradient="none of eig unless asked for",
        loose=ITERATED,
    ),
    Case(
        "condensed forms of ragged matrices",
        condensed,
        ("b, s, s",),
        no_gradient="none of hessenberg",
        naive="agrees",
        loose=ITERATED,
    ),
    Case(
        "an orthogonal matrix from reflections",
        jax.lax.linalg.householder_product,
        ("b, s + 2, 3", "b, 3"),
        no_gradient="none of householder_product",
        naive="agrees",
        loose=SUMS,
    ),
)
