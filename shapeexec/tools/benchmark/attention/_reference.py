"""The reference result: attention by its formula in f32, with all pairs of one head at once.

Only the last key head of the last example is computed: at 16,384 positions one head takes a
gigabyte for each of some arrays.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention.masks import ALiBi
from shapeexec.tools.benchmark.attention._contestant import NAMES_OF_RESULTS, operands
from shapeexec.tools.benchmark.attention._problems import TILE, Pattern, Problem

Array = Any

LIMITS = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-3}
"""The greatest error ||got - want|| / ||want||, by dtype; a GPU computes f32 as TF32."""


class WrongResultError(Exception):
    """The results of a contestant are wrong."""


def check(problem: Problem, results: Mapping[str, np.ndarray]) -> None:
    """Compare results with the formula.

    Args:
        problem: The problem.
        results: The arrays of `slices`.

    Raises:
        WrongResultError: They differ by more than rounding.
    """
    wanted = _wanted(problem)
    limit = LIMITS[problem.shape.dtype]
    for name, got in results.items():
        want = wanted[name]
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        if not error <= limit:  # NaN is no less wrong
            raise WrongResultError(f"{name} is off by {error:.1%} of its norm")


def dense_mask(pattern: Pattern, length: int) -> Array:
    """Whether each pair is allowed, bool[length, length]."""
    if pattern.density is not None:
        return jnp.repeat(jnp.repeat(jnp.asarray(pattern.tiles(length)), TILE, 0), TILE, 1)
    if pattern.pair_share is not None:
        return jnp.asarray(pattern.elements(length))
    first, behind = (jnp.asarray(end, jnp.int32)[:, None] for end in pattern.ranges(length))
    position = jnp.arange(length, dtype=jnp.int32)
    return (first <= position) & (position < behind)


def slopes(problem: Problem) -> np.ndarray:
    """The slopes of ALiBi, f32[heads]; zeros for a pattern without ALiBi."""
    heads = problem.shape.heads
    if not problem.pattern.has_alibi:
        return np.zeros(heads, np.float32)
    return np.asarray(ALiBi.for_heads(heads).slopes)[0]


@functools.lru_cache(maxsize=16)  # one shape's, or so
def _wanted(problem: Problem) -> dict[str, np.ndarray]:
    shape = problem.shape
    group = shape.heads // shape.key_heads
    arrays = [
        array[-1, :, -count:].astype(np.float32)
        for array, count in zip(operands(shape), (group, 1, 1, group), strict=True)
    ]
    allowed = dense_mask(problem.pattern, shape.length)
    results = _of_one_key_head(arrays, allowed, slopes=slopes(problem)[-group:])
    return dict(zip(NAMES_OF_RESULTS, map(np.asarray, results), strict=True))


@jax.jit
def _of_one_key_head(operands: list[Array], allowed: Array, *, slopes: Array) -> tuple[Array, ...]:
    """Output and gradients, f32[T, group, D], f32[T, 1, D] of k and v."""
    q, k, v, d_out = operands
    distance = abs(jnp.arange(len(q))[:, None] - jnp.arange(len(k))).astype(np.float32)

    def of_head(head: tuple[Array, ...]) -> tuple[Array, ...]:
        q, d_out, slope = head

        def attend(q: Array, k: Array, v: Array) -> Array:  # noqa: PLR0917 - the operands of attention
            scores = jnp.dot(q, k.T, precision="highest") * q.shape[-1] ** -0.5
            scores = jnp.where(allowed, scores - slope * distance, -jnp.inf)
            return jnp.dot(jax.nn.softmax(scores), v, precision="highest")

        out, transpose = jax.vjp(attend, q, k[:, 0], v[:, 0])
        return out, *transpose(d_out)

    # One head after the other: all at once would not fit.
    by_head = (q.swapaxes(0, 1), d_out.swapaxes(0, 1), slopes)
    out, dq, dk, dv = lax.map(of_head, by_head)
    return out.swapaxes(0, 1), dq.swapaxes(0, 1), dk.sum(0)[:, None], dv.sum(0)[:, None]
