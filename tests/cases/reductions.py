"""Reductions over ragged axes."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.cases._case import Case

CASES = (
    Case("sum over all axes", lambda x: x.sum(), ("b, s",), naive="agrees"),
    Case("mean over s", lambda x: x.mean(1), ("b, s",)),
    Case("softmax over s", lambda x: jax.nn.softmax(x, -1), ("b, s",)),
    Case("max of negative numbers", lambda x: (-jnp.abs(x) - 1).max(1), ("b, s",)),
    Case("argmin over s", lambda x: jnp.argmin(jnp.abs(x) + 1, 1), ("b, s",)),
    Case(
        "all of a comparison", lambda x: (x > 0).all(1), ("b, s",), dtypes=np.int32, integers=(1, 5)
    ),
)
