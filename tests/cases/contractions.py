"""Contractions with ragged batch, free and contracted axes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case
from tests.tolerance import BLOCKED


def _nan_where_padded(x: jax.Array) -> jax.Array:
    """Finite on valid elements, 0 / 0 on zero padding."""
    return x / jnp.abs(x)


_BY_CONTRACTED_ROWS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)

CASES = (
    Case("weights from the right", jnp.matmul, ("b, s, 4", "4, 3"), naive="agrees"),
    Case("gram over s", lambda x: jnp.einsum("bsd,bse->bde", x - 1, x + 1), ("b, s, 3",)),
    Case("over b and s", lambda x: jnp.einsum("bsd,bse->de", x - 1, x + 1), ("b, s, 3",)),
    Case(
        "0 * NaN is NaN",
        lambda x, y: jnp.einsum("bs,bs->b", x, _nan_where_padded(y)),
        ("b, s", "b, s"),
    ),
    Case(
        "rows by group",
        lambda x, w: lax.ragged_dot(x - 1, w + 1, jnp.array([1, 0, 2])),
        ("s, t", "3, t, 2"),
    ),
    Case(
        "groups of contracted rows",
        lambda x, y: lax.ragged_dot_general(
            x - 1, y + 1, jnp.array([1, 99]), ragged_dot_dimension_numbers=_BY_CONTRACTED_ROWS
        ),
        ("s, b", "s, 2"),
        least={"s": 3},
        no_gradient="none of ragged_dot_general by contracted rows",
    ),
    Case(
        "scaled by block",
        lambda x, y, n: lax.scaled_dot(
            x.astype(jnp.float8_e4m3fn),
            _nan_where_padded(y).astype(jnp.float8_e4m3fn),
            lhs_scale=(n / n * n).astype(jnp.float8_e8m0fnu),
        ),
        ("b, t, 4*s", "b, 4*s, 2", "b, t, s"),
        dtypes=(np.float32, np.float32, np.int32),
        integers=(1, 5),
        no_gradient="none of scaled_dot",
        loose=BLOCKED,
    ),
    Case("outer of two lengths", jnp.outer, ("s", "t"), naive="agrees"),
)
