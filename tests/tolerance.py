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


def tolerance(dtype: Any, *, loose: float = 1) -> float:
    """The tolerance of results of a dtype, times `loose`; 0 for integers, bools and float8."""
    return BY_DTYPE.get(jnp.dtype(dtype).name, 0.0) * loose


def assert_close(actual: Any, expected: Any, *, loose: float = 1) -> None:
    """Two trees have equal structures, shapes and dtypes, and values close by their dtypes.

    NaN equals NaN.

    Args:
        actual: A tree of arrays.
        expected: What it should be.
        loose: Times the tolerance of the table, for results that round more: of factorisations and
            gradients.
    """
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = (map(np.asarray, jax.tree.leaves(tree)) for tree in (actual, expected))
    for got, want in zip(*leaves, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        limit = tolerance(want.dtype, loose=loose)
        wide = np.complex128 if np.iscomplexobj(want) else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), limit, limit)
