"""Ragged matrices whose results would mix with those of the padding are refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shapeexec._errors import UnsupportedPrimitiveError
from tests.cases import Case
from tests.checks import assert_pad_safe


@pytest.mark.parametrize(
    ("fn", "dims", "primitive"),
    [
        (lambda x: jnp.abs(jnp.fft.fft(x)), "b, s", "fft"),
        (jnp.linalg.eigvals, "s, s", "eig"),
        (lambda x: jax.scipy.linalg.schur(x)[0], "s, s", "schur"),
        (lambda x: jnp.linalg.svd(x, full_matrices=False)[0], "s, 3", "svd"),
        (lambda x: lax.linalg.lu(x)[0], "s, 3", "lu"),
    ],
    ids=["fft", "eig", "schur", "svd", "lu"],
)
def test_what_depends_on_the_size_as_a_whole_is_refused(fn, dims: str, primitive: str) -> None:
    case = Case("refused", fn, (dims,))
    with pytest.raises(UnsupportedPrimitiveError, match="`s`") as caught:
        assert_pad_safe(case, case.sizes, 1, None)
    assert caught.value.primitive == primitive
    assert "s" in caught.value.symbols


def test_a_deficient_matrix_keeps_its_vectors_out_of_the_padding() -> None:
    def gram(x):
        left, _, right = jnp.linalg.svd(0 * x)
        vectors = jnp.linalg.eigh(0 * x)[1]
        return left.T @ left, right @ right.T, vectors.T @ vectors

    case = Case("gram", gram, ("s, s",), tolerance=1e-5)
    assert_pad_safe(case, {"s": 3}, 4, "nan")
