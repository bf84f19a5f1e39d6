"""Sorting along ragged axes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case


def with_extremes(x: Any) -> Any:
    """Among ordinary numbers both infinities and NaN of both signs."""
    kinds = jnp.stack([x, -jnp.inf + 0 * x, jnp.inf + 0 * x, jnp.nan + 0 * x, -(jnp.nan + 0 * x)])
    which = jnp.abs(jnp.floor(x * 3)).astype(int) % 5
    return jnp.take_along_axis(kinds, which[None], 0)[0]


CASES = (
    Case("sort", lambda x: (jnp.sort(x, 0), jnp.sort(x, 1, descending=True)), ("b, s",)),
    Case("argsort of equal integers", lambda x: jnp.argsort(x, 0), ("s, b",), dtypes=np.int32),
    Case(
        "sort of extremes",
        lambda x: (jnp.sort(with_extremes(x), 1), jnp.argsort(with_extremes(x), 1)),
        ("b, s",),
    ),
    Case(
        "three columns by two keys",
        lambda x, y, z: lax.sort((x, y, z), num_keys=2),
        ("s", "s", "s"),
        dtypes=(np.int32, np.int32, np.float32),
    ),
    Case("lexsort", lambda x, y: jnp.lexsort((x, y)), ("s", "s"), dtypes=np.int32),
    Case("top_k", lambda x: lax.top_k(-jnp.abs(x), 3), ("b, s",), least={"s": 3}),
    Case(
        "top_k of all, with extremes",
        lambda x: lax.top_k(with_extremes(x), x.shape[1]),
        ("b, s",),
    ),
    Case(
        "top_k of the least integers",
        lambda x: lax.top_k(jnp.where(x > 2, -(2**31), x), x.shape[0]),
        ("s",),
        dtypes=np.int32,
    ),
    Case("approx_max_k", lambda x: lax.approx_max_k(-jnp.abs(x), 3), ("b, s",), least={"s": 3}),
    Case(
        "approx_min_k of columns",
        lambda x: lax.approx_min_k(jnp.abs(x), 2, reduction_dimension=0),
        ("s, b",),
        dtypes=np.float16,
        least={"s": 2},
    ),
    Case(
        "approx_max_k and approx_min_k of all, with infinities",
        lambda x: [
            pick(jnp.where(jnp.abs(x) > 1, x * np.inf, x), x.shape[1])[0]
            for pick in (lax.approx_max_k, lax.approx_min_k)
        ],
        ("b, s",),
    ),
    Case("median", lambda x: jnp.median(x, 1), ("b, s",)),
)
