"""Advice on graphs that do not fit into memory."""

from typing import Any

import jax.numpy as jnp

import shapeexec as sx
from tests.advice.row import Advice, option, somewhat

X = somewhat(5)
VAST = sx.Linear(2**24)
"""At its first bucket the pairs of elements take more bytes than there are addresses."""


def gram(x: Any) -> Any:
    """A sum that takes the memory of all pairs."""
    return jnp.sort(jnp.outer(x, x), axis=0).sum()


ROWS = [
    Advice(
        "a graph that does not fit",
        "memory",
        sx.OutOfMemoryError,
        lambda: sx.Exec(gram, ("s",), buckets=VAST)(X),
        'on_memory="exact", which runs the sizes of such a bucket exactly; or a finer strategy',
        lambda told: [
            sx.Exec(gram, ("s",), buckets=VAST, on_memory=option(told, "on_memory"))(X),
            sx.Exec(gram, ("s",), buckets=sx.Linear(8))(X),
        ],
        lambda: [gram(X)] * 2,
    ),
]
