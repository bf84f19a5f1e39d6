"""Contractions with ragged batch, free and contracted axes."""

import jax
import jax.numpy as jnp

from tests.cases._case import Case


def _nan_where_padded(x: jax.Array) -> jax.Array:
    """Finite on valid elements, 0 / 0 on zero padding."""
    return x / jnp.abs(x)


CASES = (
    Case("weights from the right", jnp.matmul, ("b, s, 4", "4, 3"), naive="agrees"),
    Case("gram over s", lambda x: jnp.einsum("bsd,bse->bde", x - 1, x + 1), ("b, s, 3",)),
    Case("over b and s", lambda x: jnp.einsum("bsd,bse->de", x - 1, x + 1), ("b, s, 3",)),
    Case(
        "0 * NaN is NaN",
        lambda x, y: jnp.einsum("bs,bs->b", x, _nan_where_padded(y)),
        ("b, s", "b, s"),
        grad=False,
    ),
    Case("outer of two lengths", jnp.outer, ("s", "t"), naive="agrees"),
)
