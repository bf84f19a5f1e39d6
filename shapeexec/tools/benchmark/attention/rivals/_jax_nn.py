"""`jax.nn.dot_product_attention`: two rivals are its two implementations.

Each rival knows the devices that it runs on.
"""

# The rivals are not installed here, so their types are unknown.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from shapeexec.tools.benchmark.attention._problems import Problem
from shapeexec.tools.benchmark.attention._reference import dense_mask, slopes

Array = Any


def attention(
    implementation: Literal["cudnn", "xla"], problem: Problem
) -> tuple[Any, tuple[Any, ...]]:
    """The function for a problem, and its arrays; masks that `jax.nn` lacks are made dense."""
    pattern, length = problem.pattern, problem.shape.length
    attend = functools.partial(
        jax.nn.dot_product_attention,
        is_causal=pattern.is_causal,
        local_window_size=None if pattern.window is None else (pattern.window - 1, 0),
        implementation=implementation,
    )
    bias = mask = None
    has_name = pattern.density is None and pattern.pair_share is None and not pattern.documents
    if not has_name:
        mask = dense_mask(pattern, length)[None, None]
    if pattern.has_alibi:
        bias = _alibi(slopes(problem), length, dtype=problem.shape.dtype)
    return attend, (bias, mask)


@functools.partial(jax.jit, static_argnames=("length", "dtype"))
def _alibi(slopes: Array, length: int, *, dtype: str) -> Array:
    position = jnp.arange(length)
    distance = abs(position[:, None] - position).astype(jnp.float32)
    return (-slopes[None, :, None, None] * distance).astype(dtype)
