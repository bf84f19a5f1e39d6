"""Cumulative reductions along ragged axes, from both ends."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case

# JAX cannot trace the gradients of all but `cumsum` at a symbolic size.
CASES = (
    Case("cumsum, summed", lambda x: jnp.cumsum(x, 1).sum(1), ("b, s",)),
    Case("cumsum from the end", lambda x: lax.cumsum(x + 1, 1, reverse=True), ("b, s",)),
    Case("cumprod from the end", lambda x: lax.cumprod(x, 0, reverse=True), ("s, b",), grad=False),
    Case(
        "cummax and cummin from the end",
        lambda x: (lax.cummax(x, 0, reverse=True), lax.cummin(-x, 0, reverse=True)),
        ("s, b",),
        dtypes=np.int32,
        integers=(-9, -1),
    ),
    Case(
        "cumlogsumexp from the end",
        lambda x: lax.cumlogsumexp(x, 1, reverse=True),
        ("b, s",),
        grad=False,
    ),
    Case(
        "complex cumlogsumexp from the end",
        lambda x: lax.cumlogsumexp(5 * x, 1, reverse=True),
        ("b, s",),
        dtypes=np.complex64,
        grad=False,
    ),
)
