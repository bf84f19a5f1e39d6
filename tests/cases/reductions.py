"""Reductions over ragged axes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case


def with_nan(x: jax.Array) -> jax.Array:
    """NaN among complex numbers, and in the last places."""
    is_last = jnp.arange(x.shape[1]) == x.shape[1] - 1
    return jnp.where(is_last | (jnp.sin(9 * x.real) > 0), jnp.nan, x)


def extremes_among_nan(x):
    x = with_nan(x)
    return x.max(1), x.min((0, 1)), lax.cummax(x, 1, True)


CASES = (
    Case("product of all", lambda x: ((x + 2).prod(1), jnp.floor(x + 2).prod()), ("b, s",)),
    Case("covariance", lambda x: jnp.cov(x + 1), ("b, s",), least={"s": 2}),
    Case("sum over all axes", lambda x: x.sum(), ("b, s",), naive="agrees"),
    Case("mean over s", lambda x: x.mean(1), ("b, s",)),
    Case("softmax over s", lambda x: jax.nn.softmax(x, -1), ("b, s",)),
    Case("max of negative numbers", lambda x: (-jnp.abs(x) - 1).max(1), ("b, s",)),
    Case("argmin over s", lambda x: jnp.argmin(jnp.abs(x) + 1, 1), ("b, s",)),
    Case(
        "a sum over a vmapped axis",
        jax.vmap(lambda row: row * lax.psum(row + 1, "i"), axis_name="i"),
        ("b, s",),
    ),
    Case(
        "extremes over a vmapped axis",
        jax.vmap(
            lambda row: (lax.pmax(-jnp.abs(row) - 1, "i"), lax.pmin(jnp.abs(row) + 1, "i")),
            axis_name="i",
        ),
        ("b, s",),
        no_gradient="none of pmax",
    ),
    Case(
        "complex extremes with NaN",
        # Of the values alone: which one XLA takes among NaN depends on the order of its reduction.
        lambda x: extremes_among_nan(lax.stop_gradient(x)),
        ("b, s",),
        dtypes=np.complex64,
        naive="agrees",  # the last place is NaN there too
    ),
    Case(
        "all of a comparison", lambda x: (x > 0).all(1), ("b, s",), dtypes=np.int32, integers=(1, 5)
    ),
    Case(
        "any of a comparison",
        lambda x: (x % 8 == 0).any(1),  # of some rows only
        ("b, s",),
        dtypes=np.int32,
        integers=(1, 9),
    ),
    Case(
        "a reduction of one's own, and of bits",
        lambda n: (
            lax.reduce(n, np.int32(3), lambda a, b: a + b - 3, (1,)),  # 3 is its identity
            lax.reduce_xor(n + 1, (1,)),
        ),
        ("b, s",),
        dtypes=np.int32,
    ),
)
