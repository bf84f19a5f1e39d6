"""Tiles and positions as arrays: what masks are asked with outside of a kernel.

It knows no mask. `TileGrid` is all tiles of a call at once; `Gathered` is any set of elements, and
`block` the elements of one tile, whose number may be traced.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec.attention.masks._base import Array, Tile
from shapeexec.attention.masks._value import is_known


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The tiles of [T, S] pairs; the `Tiles` of array-based code.

    Attributes:
        length: T and S, of the arrays.
        tile: Queries and keys of a tile.
        sizes: How many queries and keys there are truly, each i32[B or 1, 1, 1, 1].
        xp: `numpy` or `jax.numpy`: what the masks of this grid, and its sizes, are made with.
    """

    length: tuple[int, int]
    tile: Tile
    sizes: tuple[Array, Array]
    xp: Any

    @property
    def shape(self) -> tuple[int, int]:
        """How many query tiles and key tiles there are."""
        (length_q, length_k), (tile_q, tile_k) = self.length, self.tile
        return -(-length_q // tile_q), -(-length_k // tile_k)

    @property
    def first_query(self) -> Array:
        """See `Tiles`; i32[1, 1, query tiles, 1]."""
        return (np.arange(self.shape[0], dtype=np.int32) * self.tile[0])[None, None, :, None]

    @property
    def last_query(self) -> Array:
        """See `Tiles`; i32[1, 1, query tiles, 1]."""
        return np.minimum(self.first_query + (self.tile[0] - 1), self.length[0] - 1)

    @property
    def first_key(self) -> Array:
        """See `Tiles`; i32[1, 1, 1, key tiles]."""
        return (np.arange(self.shape[1], dtype=np.int32) * self.tile[1])[None, None, None, :]

    @property
    def last_key(self) -> Array:
        """See `Tiles`; i32[1, 1, 1, key tiles]."""
        return np.minimum(self.first_key + (self.tile[1] - 1), self.length[1] - 1)

    @property
    def query_size(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, 1, 1]."""
        return self.sizes[0]

    @property
    def key_size(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, 1, 1]."""
        return self.sizes[1]

    def of_batch(self, array: Array) -> Array:
        """See `Tiles`."""
        return self.xp.asarray(array).reshape(-1, 1, 1, 1)

    def range_of_queries(self, array: Array) -> tuple[Array, Array]:
        """See `Tiles`; [B or 1, 1, query tiles, 1] each."""
        least, largest = self._ranges(array, 0)
        return least[:, None, :, None], largest[:, None, :, None]

    def range_of_keys(self, array: Array) -> tuple[Array, Array]:
        """See `Tiles`; [B or 1, 1, 1, key tiles] each."""
        least, largest = self._ranges(array, 1)
        return least[:, None, None, :], largest[:, None, None, :]

    def any_and_all(self, array: Array) -> tuple[Array, Array]:
        """See `Tiles`. Garbage behind sizes of several examples counts if they share the array.

        Leaving it out would read the array once per example, to gain one strip of tiles.
        """
        inside, xp = None, self.xp
        array = xp.asarray(array)
        for axis, size in ((2, self.sizes[0]), (3, self.sizes[1])):
            is_shared = array.shape[0] == 1 < size.shape[0]
            if not self._is_whole(axis - 2) and array.shape[axis] > 1 and not is_shared:
                position = np.arange(array.shape[axis]).reshape(
                    [-1 if i == axis else 1 for i in range(4)]
                )
                inside = (position < size) & (True if inside is None else inside)
        some = array if inside is None else array & inside
        every = array if inside is None else array | ~inside
        for axis, tile in ((2, self.tile[0]), (3, self.tile[1])):
            some = _by_tile(xp.logical_or, some, axis, tile, False)
            every = _by_tile(xp.logical_and, every, axis, tile, True)
        return some, every

    def range_of_tiles(self, array: Array, tile: Tile) -> tuple[Array, Array]:
        """See `Tiles`."""
        least = largest = self.xp.asarray(array)
        for axis, length, tiles in zip(
            (2, 3), self.length, zip(tile, self.tile, strict=True), strict=True
        ):
            least = _retiled(self.xp.minimum, least, axis, tiles, length)
            largest = _retiled(self.xp.maximum, largest, axis, tiles, length)
        return least, largest

    def _ranges(self, array: Array, side: int) -> tuple[Array, Array]:
        xp, tile = self.xp, self.tile[side]
        array = xp.asarray(array)
        low, high = _extremes(array.dtype)
        least = largest = array
        if not self._is_whole(side):
            inside = np.arange(array.shape[1])[None] < self.sizes[side].reshape(-1, 1)
            least, largest = xp.where(inside, array, high), xp.where(inside, array, low)
        return (
            _by_tile(xp.minimum, least, 1, tile, high),
            _by_tile(xp.maximum, largest, 1, tile, low),
        )

    def _is_whole(self, side: int) -> bool:
        size = self.sizes[side]
        return isinstance(size, np.ndarray) and bool((size >= self.length[side]).all())


def tile_grid(
    length: tuple[int, int],
    tile: Tile,
    query_sizes: Array | None = None,
    key_sizes: Array | None = None,
    *,
    known: bool = True,
) -> TileGrid:
    """The tiles of a call.

    Args:
        length: T and S, of the arrays.
        tile: Queries and keys of a tile.
        query_sizes: How many queries there are truly, i32[B or 1] or i32[]; None: all.
        key_sizes: Likewise of keys.
        known: Whether the masks to be asked hold no traced array. If the sizes are known too,
            everything is made with NumPy.
    """
    given = (query_sizes, key_sizes)
    sizes = [
        np.full((1, 1, 1, 1), whole, np.int32) if size is None else _sizes(size)
        for whole, size in zip(length, given, strict=True)
    ]
    xp = np if known and is_known(*sizes) else jnp
    return TileGrid(length, tile, (sizes[0], sizes[1]), xp)


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Elements at arrays of indices; the `Positions` of array-based code.

    Everything broadcasts against everything else: [B, 1, 1, 1] examples, [1, N, 1, 1] heads,
    [1, 1, t, 1] queries and [1, 1, 1, s] keys are a tile of each head of each example.
    Indices that lie in no array are read as the last one, so a tile may overhang.

    Attributes:
        batch, head, query, key: Indices, i32.
        query_size, key_size: How many there are truly, i32, broadcast like the others.
    """

    batch: Array
    head: Array
    query: Array
    key: Array
    query_size: Array
    key_size: Array

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
        return self._at(array, self.query, self.key)

    def of_tile(self, array: Array, tile: Tile) -> Array:
        """See `Positions`."""
        return self._at(array, self.query // tile[0], self.key // tile[1])

    def of_table(self, array: Array, index: Array) -> Array:
        """See `Positions`."""
        batch, head = _index(self.batch, array.shape[0]), _index(self.head, array.shape[1])
        return array[batch, head, index]

    def _at(self, array: Array, query: Array, key: Array) -> Array:
        indices = (self.batch, self.head, query, key)
        return array[tuple(map(_index, indices, array.shape))]


@dataclasses.dataclass(frozen=True)
class Block(Gathered):
    """`Gathered` of neighbours, of every example and head or of one; it slices where it can.

    Attributes:
        first: The first query and key, which may be traced.
        tile: How many of each.
        one: Whether batch and head are one number each, as against all of them.
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

    def _cut(self, array: Array, tile: tuple[int | None, int | None]) -> Array:
        for axis, number in ((0, self.batch), (1, self.head)):
            if array.shape[axis] > 1 and not self.every[axis]:
                array = lax.dynamic_slice_in_dim(array, jnp.reshape(number, ()), 1, axis)
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
    sizes: tuple[Array, Array],
    *,
    batch: Array,
    head: Array,
) -> Block:
    """The elements of one tile, as four axes [B or 1, N or 1, tile, tile].

    Args:
        first: The first query and the first key, multiples of the tile; ints or traced i32[].
        tile: How many queries and keys.
        sizes: How many queries and keys there are truly, i32[B or 1].
        batch: All examples, as i32[B] ascending from 0, or one, as i32[].
        head: All query heads, as i32[N] ascending from 0, or one, as i32[].
    """
    batch, head = jnp.asarray(batch, jnp.int32), jnp.asarray(head, jnp.int32)
    query = first[0] + lax.broadcasted_iota(jnp.int32, (1, 1, tile[0], 1), 2)
    key = first[1] + lax.broadcasted_iota(jnp.int32, (1, 1, 1, tile[1]), 3)
    every = (batch.ndim == 1, head.ndim == 1)
    truly = [jnp.asarray(size, jnp.int32).reshape(-1) for size in sizes]
    if not every[0]:
        truly = [size[_index(batch, size.shape[0])] for size in truly]
    query_size, key_size = (size.reshape(-1, 1, 1, 1) for size in truly)
    return Block(
        batch.reshape(-1, 1, 1, 1),
        head.reshape(1, -1, 1, 1),
        query,
        key,
        query_size,
        key_size,
        first,
        tile,
        every,
    )


def _sizes(size: Array) -> Array:
    if is_known(size):
        return np.asarray(size, np.int32).reshape(-1, 1, 1, 1)
    return jnp.asarray(size, jnp.int32).reshape(-1, 1, 1, 1)


def _index(index: Array, length: int) -> Array:
    # An axis of 1 broadcasts; elsewhere a tile may overhang the array's end.
    return index * 0 if length == 1 else index.clip(0, length - 1)


def _extremes(dtype: Any) -> tuple[Any, Any]:
    if np.issubdtype(dtype, np.bool_):
        return False, True
    limits = jnp.iinfo(dtype) if np.issubdtype(dtype, np.integer) else jnp.finfo(dtype)
    return limits.min, limits.max


def _by_tile(reduce: Any, array: Array, axis: int, tile: int, neutral: Any) -> Array:
    """Reduce `axis` tile by tile; an axis of 1 broadcasts and stays."""
    length = array.shape[axis]
    if length == 1:
        return array
    if isinstance(reduce, np.ufunc):
        return reduce.reduceat(array, range(0, length, tile), axis=axis)
    missing = -length % tile
    pads = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    padded = jnp.pad(array, pads, constant_values=neutral) if missing else array
    shape = (*array.shape[:axis], -1, tile, *array.shape[axis + 1 :])
    return reduce.reduce(padded.reshape(shape), axis=axis + 1)


def _retiled(reduce: Any, array: Array, axis: int, tiles: Tile, length: int) -> Array:
    """Elements per tile of size tiles[0], reduced or repeated to those of size tiles[1]."""
    theirs, mine = tiles
    if theirs == mine:
        return array
    count = -(-length // mine)
    first = np.arange(count) * mine // theirs
    last = (np.minimum(np.arange(1, count + 1) * mine, length) - 1) // theirs
    out = array.take(first, axis)
    for step in range(1, int((last - first).max(initial=0)) + 1):
        out = reduce(out, array.take(np.minimum(first + step, last), axis))
    return out
