"""Cumulative reductions along ragged axes, from both ends."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case


def recur(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


CASES = (
    Case("cumsum, summed", lambda x: jnp.cumsum(x, 1).sum(1), ("b, s",)),
    Case("cumsum from the end", lambda x: lax.cumsum(x + 1, 1, reverse=True), ("b, s",)),
    Case("cumprod from the end", lambda x: lax.cumprod(x, 0, reverse=True), ("s, b",)),
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
    ),
    Case(
        "a linear recurrence",
        lambda a, x: lax.associative_scan(recur, (a, x), reverse=True, axis=1),
        ("b, s", "b, s"),
    ),
    Case(
        "complex cumlogsumexp from the end",
        lambda x: lax.cumlogsumexp(5 * x, 1, reverse=True),
        ("b, s",),
        dtypes=np.complex64,
    ),
)
