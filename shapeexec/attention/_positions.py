"""`Positions` as arrays, for masks outside of Pallas kernels.

`Gathered` is any set of elements, and `block` makes the elements of one tile, whose position may be
traced. `Replaced` is a `Positions` with some attributes replaced.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention.masks._base import Array, Positions, Tile


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Elements at arrays of indices; the `Positions` of array-based code.

    Everything broadcasts against everything else: [B, 1, 1, 1] examples, [1, N, 1, 1] heads,
    [1, 1, t, 1] queries and [1, 1, 1, s] keys are a tile of each head of each example.
    Indices that lie in no array are read as the last one, so a tile may overhang.

    Attributes:
        batch, head, query, key: Indices, i32.
        query_length, key_length: Valid lengths, i32, broadcast like the others.
    """

    batch: Array
    head: Array
    query: Array
    key: Array
    query_length: Array
    key_length: Array

    def of_batch(self, array: Array) -> Array:
        """See `Positions`."""
        return array[_index(self.batch, array.shape[0])]

    def of_head(self, array: Array) -> Array:
        """See `Positions`."""
        return array[_index(self.batch, array.shape[0]), _index(self.head, array.shape[1])]

    def of_queries(self, array: Array) -> Array:
        """See `Positions`."""
        return array[_index(self.batch, array.shape[0]), _index(self.query, array.shape[1])]

    def of_keys(self, array: Array) -> Array:
        """See `Positions`."""
        return array[_index(self.batch, array.shape[0]), _index(self.key, array.shape[1])]

    def of_pairs(self, array: Array) -> Array:
        """See `Positions`."""
        return self._at(array, query=self.query, key=self.key)

    def of_tile(self, array: Array, tile: Tile) -> Array:
        """See `Positions`."""
        return self._at(array, query=self.query // tile[0], key=self.key // tile[1])

    def of_table(self, array: Array, index: Array) -> Array:
        """See `Positions`."""
        batch, head = _index(self.batch, array.shape[0]), _index(self.head, array.shape[1])
        return array[batch, head, index]

    def _at(self, array: Array, *, query: Array, key: Array) -> Array:
        indices = (self.batch, self.head, query, key)
        return array[tuple(map(_index, indices, array.shape))]


@dataclasses.dataclass(frozen=True)
class Block(Gathered):
    """`Gathered` for contiguous positions, of all examples and heads or of one; it can slice.

    Attributes:
        first: The first query and key, which may be traced.
        tile: The numbers of queries and keys.
        every: Whether `batch` holds all examples instead of one; the same for `head`.
    """

    first: tuple[Array, Array] = (0, 0)
    tile: Tile = (1, 1)
    every: tuple[bool, bool] = (False, False)

    def of_queries(self, array: Array) -> Array:
        """See `Positions`."""
        return self._cut(array[:, None, :, None], (self.tile[0], None))

    def of_keys(self, array: Array) -> Array:
        """See `Positions`."""
        return self._cut(array[:, None, None, :], (None, self.tile[1]))

    def of_pairs(self, array: Array) -> Array:
        """See `Positions`."""
        return self._cut(array, self.tile)

    def of_tile(self, array: Array, tile: Tile) -> Array:
        """See `Positions`."""
        if any(theirs % mine for theirs, mine in zip(tile, self.tile, strict=True)):
            return super().of_tile(array, tile)
        array = self._of_examples(array)
        for axis in (2, 3):
            number = self.first[axis - 2] // tile[axis - 2]
            array = lax.dynamic_slice_in_dim(array, number, 1, axis)
        return array

    def _of_examples(self, array: Array) -> Array:
        for axis, number in ((0, self.batch), (1, self.head)):
            if array.shape[axis] > 1 and not self.every[axis]:
                array = lax.dynamic_slice_in_dim(array, jnp.reshape(number, ()), 1, axis)
        return array

    def _cut(self, array: Array, tile: tuple[int | None, int | None]) -> Array:
        array = self._of_examples(array)
        for axis, first, count, positions in (
            (2, self.first[0], tile[0], self.query),
            (3, self.first[1], tile[1], self.key),
        ):
            if array.shape[axis] == 1 or count is None:
                continue
            # A slice that overhangs would be moved back to the front, under the wrong positions.
            if array.shape[axis] % count == 0:
                array = lax.dynamic_slice_in_dim(array, first, count, axis)
            else:
                array = jnp.take(array, positions.reshape(-1), axis, mode="clip")
        return array


def block(
    first: tuple[Array, Array],
    tile: Tile,
    *,
    lengths: tuple[Array, Array],
    batch: Array,
    head: Array,
) -> Block:
    """The elements of one tile, as four axes [B or 1, N or 1, tile, tile].

    Args:
        first: The first query and the first key, multiples of the tile; ints or traced i32[].
        tile: The numbers of queries and keys.
        lengths: Valid lengths of queries and keys, i32[B or 1].
        batch: All examples, as i32[B] ascending from 0, or one, as i32[].
        head: All query heads, as i32[N] ascending from 0, or one, as i32[].
    """
    batch, head = jnp.asarray(batch, jnp.int32), jnp.asarray(head, jnp.int32)
    query = first[0] + lax.broadcasted_iota(jnp.int32, (1, 1, tile[0], 1), 2)
    key = first[1] + lax.broadcasted_iota(jnp.int32, (1, 1, 1, tile[1]), 3)
    every = (batch.ndim == 1, head.ndim == 1)
    valid = [jnp.asarray(length, jnp.int32).reshape(-1) for length in lengths]
    if not every[0]:
        valid = [length[_index(batch, length.shape[0])] for length in valid]
    query_length, key_length = (length.reshape(-1, 1, 1, 1) for length in valid)
    return Block(
        batch.reshape(-1, 1, 1, 1),
        head.reshape(1, -1, 1, 1),
        query,
        key,
        query_length,
        key_length,
        first,
        tile,
        every,
    )


class Replaced:
    """`Positions` with some attributes replaced.

    Args:
        at: The positions.
        **attributes: The new values by name, such as `batch` or `query_length`.
    """

    def __init__(self, at: Positions, **attributes: Any) -> None:
        self._at = at
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._at, name)


def _index(index: Array, size: int) -> Array:
    # An axis of 1 broadcasts; elsewhere a tile may overhang the array's end.
    if size == 1:
        return np.zeros((1,) * np.ndim(index), np.int32)
    return index.clip(0, size - 1)
