"""Ragged matrices that are hard to embed, and what of them is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.masking._poison import POISONS
from shapeexec.masking.rules.linalg import _inside_first
from tests.cases import Case
from tests.checks import assert_pad_safe
from tests.execution.support import assert_same
from tests.tolerance import FEW, SUMS


@pytest.mark.parametrize(
    ("fn", "primitive", "why", "fix"),
    [
        (
            lambda x: lax.linalg.eigh(x, sort_eigenvalues=False)[1],
            "eigh",
            "needed in full and in order",
            "sort_eigenvalues=True",
        ),
        (
            lambda x: lax.linalg.eigh(x, subset_by_index=(0, 1))[1],
            "eigh",
            "needed in full and in order",
            "subset_by_index=None",
        ),
        (
            lambda x: lax.linalg.svd(
                x, full_matrices=False, compute_uv=False, subset_by_index=(0, 1)
            ),
            "svd",
            "a subset of the singular values of a ragged matrix",
            "subset_by_index=None, then a slice; or make `s` exact: ",
        ),
        (
            lambda x: jnp.linalg.svd(x[:, 1:])[2],
            "svd",
            "an arbitrary basis of what is left",
            "full_matrices=False",
        ),
        (
            lambda x: jnp.linalg.svd(x[:, :, :2])[0],
            "svd",
            "an arbitrary basis of what is left",
            "full_matrices=False",
        ),
    ],
    ids=["eigh out of order", "a subset of eigh", "a subset of svd", "null rows", "null vectors"],
)
def test_what_is_asked_of_a_ragged_matrix_only_in_part_is_refused(fn, primitive, why, fix) -> None:
    run = sx.Exec(fn, ("b, s, s",))
    with pytest.raises(sx.UnsupportedPrimitiveError, match="over padded `s`") as caught:
        run(np.ones((2, 3, 3), np.float32))
    assert caught.value.primitive == primitive
    assert caught.value.symbols == {"s"}  # not those of the batch
    assert why in str(caught.value)
    assert fix in str(caught.value)


def test_more_reflections_than_are_applied_at_a_time_skip_the_padding() -> None:
    def turned(x, y):
        reflectors, taus = jnp.linalg.qr(x, mode="raw")
        turn = functools.partial(lax.linalg.ormqr, reflectors.mT, taus)
        return turn(jnp.cos(y)), turn(jnp.cos(y).T, left=False)

    case = Case("turned", turned, ("s, 40", "s, 3"), loose=SUMS)
    assert_pad_safe(case, {"s": 50}, 30, "nan")


def test_eigenvalues_of_padding_go_behind_the_others_wherever_they_come() -> None:
    values = jnp.array([[1j, 8, -1j, 8]])
    vectors = jnp.arange(16).reshape(1, 4, 4)
    sorted_values, sorted_vectors = _inside_first(jnp.full((1, 1), 8.0), values, vectors=[vectors])
    np.testing.assert_array_equal(sorted_values, [[1j, -1j, 8, 8]])
    np.testing.assert_array_equal(sorted_vectors, vectors[..., jnp.array([0, 2, 1, 3])])


def test_extreme_matrices_neither_overflow_nor_vanish_in_their_embedding() -> None:
    def spectra(x):
        return tuple(
            (jnp.linalg.svd(scale * x)[1] / scale, jnp.linalg.eigvalsh(scale * x) / scale)
            for scale in (1e25, 1e-25)
        )

    case = Case("extreme", spectra, ("s, s",), loose=SUMS)
    assert_pad_safe(case, {"s": 3}, 4, "nan")


def test_an_infinite_matrix_of_one_element_is_its_own_eigenvalue() -> None:
    case = Case("infinite", lambda x: jnp.linalg.eigh(x / 0), ("s, s",))
    assert_pad_safe(case, {"s": 1}, 4, "nan")


def test_a_deficient_matrix_keeps_its_vectors_out_of_the_padding() -> None:
    def gram(x):
        left, _, right = jnp.linalg.svd(0 * x)
        vectors = jnp.linalg.eigh(0 * x)[1]
        return left.T @ left, right @ right.T, vectors.T @ vectors

    case = Case("gram", gram, ("s, s",), loose=FEW)
    assert_pad_safe(case, {"s": 3}, 4, "nan")


@pytest.mark.parametrize("name", ["eigvalsh", "eigvals", "eigh", "svd", "qr", "inv", "cholesky"])
def test_matrices_without_rows_are_factorized_as_they_are(name) -> None:
    def factorized(x):
        return jax.tree.leaves(getattr(jnp.linalg, name)(x[1:] @ x[1:].T))

    x = np.ones((1, 3), np.float32)
    assert_same(sx.Exec(factorized, ("s, t",), buckets=sx.Pow2())(x), factorized(x))


def test_vectors_of_a_full_svd_that_are_no_basis_of_a_null_space_are_exact() -> None:
    def spanned(x):
        _, values, right = jnp.linalg.svd(x)  # more rows than columns: the rows span all
        return values, jnp.einsum("ij,i,ik->jk", right, values, right)

    case = Case("spanned", spanned, ("s + 3, 3",), loose=SUMS)
    for slack, poison in zip((0, 1, 6), POISONS, strict=False):
        assert_pad_safe(case, {"s": 4}, slack, poison)
