"""How far two results may be apart: one table, by dtype, and the assertion that reads it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BY_DTYPE = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float16": 2e-3,
    "bfloat16": 8e-3,
}
"""Relative and absolute: some 200 roundings of the wider dtypes, 2 of float16, 1 of bfloat16.
Results of other dtypes are equal."""

# Factors of the table, `loose=`: a literal behind that word is an error of tests/test_sizes.py.
EQUAL = 0
"""For what is moved, drawn or computed alike: no sum is made in another order."""
DRAWN = 0.05
"""Ten roundings: bits that are equal, and one function of each."""
FEW = 0.5
"""For sums of a few terms, or one short iteration."""
BLOCKED = 2.5
"""For sums in blocks of narrow numbers, each of which is rounded before it is added."""
SUMS = 5
"""For sums of some hundred terms of either sign: contractions, gradients, transforms, and
factorizations and solves of small matrices."""
DERIVED = 10
"""Times the factor of a program, for its gradient: one sum over all that an argument goes into, of
numbers each of which is rounded forward and backward."""
ITERATED = 50
"""For what XLA and LAPACK iterate to, or what squares the condition of a matrix: eigenvalues of
general matrices, least squares, and logarithms that a GPU computes from halves."""


BY_NORM = {"bfloat16": 0.01, "float16": 0.002}
"""Of the norm of a difference to that of the reference: kernels that multiply narrow numbers."""


def tolerance(dtype: Any, *, loose: float = 1) -> float:
    """The tolerance of results of a dtype, times `loose`; 0 for integers, bools and float8."""
    return BY_DTYPE.get(jnp.dtype(dtype).name, 0.0) * loose


def epsilon(dtype: Any) -> float:
    """The relative distance of 1 to the next number of a dtype: for bounds counted in roundings."""
    return float(jnp.finfo(dtype).eps)


def assert_close(
    actual: Any, expected: Any, *, loose: float = 1, scale: float = 1, message: str = ""
) -> None:
    """Two trees have equal structures, shapes and dtypes, and values close by their dtypes.

    NaN equals NaN, and keys are compared by their data.

    Args:
        actual: A tree of arrays.
        expected: The reference.
        loose: Times the tolerance of the table, for results that round more: of factorisations and
            gradients.
        scale: The size of the numbers that the absolute tolerance is meant for; with 0 the
            relative one counts alone.
        message: Begins the message of the error.
    """
    assert jax.tree.structure(actual) == jax.tree.structure(expected), message
    leaves = (map(_as_array, jax.tree.leaves(tree)) for tree in (actual, expected))
    for got, want in zip(*leaves, strict=True):
        assert got.dtype == want.dtype, message
        assert got.shape == want.shape, message
        if want.dtype == jax.dtypes.float0:
            continue  # holds no numbers
        limit = tolerance(want.dtype, loose=loose)
        wide = np.complex128 if np.iscomplexobj(want) else np.float64
        np.testing.assert_allclose(
            got.astype(wide), want.astype(wide), limit, limit * scale, err_msg=message
        )


def _as_array(x: Any) -> np.ndarray:
    is_key = jnp.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended)
    return np.asarray(jax.random.key_data(x) if is_key else x)
