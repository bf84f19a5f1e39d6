"""Whether the element rule of a mask (`Mask.allows`) can be lowered inside a Pallas kernel.

A mask may be a user's function of anything that JAX can trace; a kernel lowers fewer operations.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec import _compat
from shapeexec.attention.masks import Mask

_TILE = (16, 16)
_OPERATIONS = frozenset(
    """abs add and broadcast_in_dim ceil clamp convert_element_type cos div eq exp exp2 floor ge
    gt integer_pow jit le log log1p lt max min mul ne neg not or pow rem rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sqrt square squeeze sub tanh
    xor""".split()
)
"""The elementwise primitives that Pallas lowers both for Triton and for TPUs."""


def refusal_of_rule(mask: Mask) -> str | None:
    """Why a kernel cannot evaluate this mask inside a tile; None if it can."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), mask)
    queries, keys = ((_TILE[0], 1), (1, _TILE[1]))
    at = [jax.ShapeDtypeStruct(shape, np.int32) for shape in ((), (), (), (), queries, keys)]
    traced = jax.make_jaxpr(lambda *at: shapes.allows(_Anywhere(*at)))(*at)
    return refusal_of_operations(traced, _OPERATIONS)


def refusal_of_operations(traced: Any, known: frozenset[str]) -> str | None:
    """Why a kernel that lowers the `known` primitives cannot run a traced rule; None if it can."""
    if traced.consts:
        return "a mask's function closes over an array"
    foreign = {eqn.primitive.name for eqn in _compat.equations(traced.jaxpr)} - known
    return f"inside a tile it knows no {', '.join(sorted(foreign))}" if foreign else None


@dataclasses.dataclass(frozen=True)
class _Anywhere:
    """`Positions` for tracing a mask whose arrays are `ShapeDtypeStruct`s."""

    batch: Array
    head: Array
    query_length: Array
    key_length: Array
    query: Array
    key: Array

    def of_batch(self, array: Array) -> Array:
        return jnp.zeros((), array.dtype)

    def of_head(self, array: Array) -> Array:
        return jnp.zeros((), array.dtype)

    def of_queries(self, array: Array) -> Array:
        return jnp.zeros(self.query.shape, array.dtype)

    def of_keys(self, array: Array) -> Array:
        return jnp.zeros(self.key.shape, array.dtype)

    def of_pairs(self, array: Array) -> Array:
        return jnp.zeros(_TILE, array.dtype)

    def of_tile(self, array: Array, tile: tuple[int, int]) -> Array:
        del tile
        return jnp.zeros((), array.dtype)

    def of_table(self, array: Array, index: Array) -> Array:
        return jnp.zeros(index.shape, array.dtype)
