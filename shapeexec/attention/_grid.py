"""All tiles of a call at once, as arrays: the `Tiles` that masks compute their bounds for.

It does not know masks. `_positions` has the view on single elements.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention._evaluate import asks_for, look_into
from shapeexec.attention.masks._base import Array, Tile
from shapeexec.attention.masks._value import FARTHEST, is_known


@dataclasses.dataclass(frozen=True)
class TileGrid:
    """The tiles of [T, S] pairs; the `Tiles` of array-based code.

    Attributes:
        sizes: T and S, of the arrays.
        tile: Queries and keys of a tile.
        lengths: Valid lengths of queries and keys, each i32[B or 1, 1, 1, 1].
        xp: `numpy` or `jax.numpy`, the library of its arrays and of the masks' bounds.
        batch: B; None: unknown.
        heads: N; None: unknown.
    """

    sizes: tuple[int, int]
    tile: Tile
    lengths: tuple[Array, Array]
    xp: Any
    batch: int | None = None
    heads: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of query tiles and of key tiles."""
        (queries, keys), (tile_q, tile_k) = self.sizes, self.tile
        return -(-queries // tile_q), -(-keys // tile_k)

    @property
    def first_query(self) -> Array:
        """See `Tiles`; i32[1, 1, query tiles, 1]."""
        return (np.arange(self.shape[0], dtype=np.int32) * self.tile[0])[None, None, :, None]

    @property
    def last_query(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, query tiles, 1]."""
        return self.xp.minimum(self.first_query + (self.tile[0] - 1), self.lengths[0] - 1)

    @property
    def first_key(self) -> Array:
        """See `Tiles`; i32[1, 1, 1, key tiles]."""
        return (np.arange(self.shape[1], dtype=np.int32) * self.tile[1])[None, None, None, :]

    @property
    def last_key(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, 1, key tiles]."""
        return self.xp.minimum(self.first_key + (self.tile[1] - 1), self.lengths[1] - 1)

    @property
    def query_length(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, 1, 1]."""
        return self.lengths[0]

    @property
    def key_length(self) -> Array:
        """See `Tiles`; i32[B or 1, 1, 1, 1]."""
        return self.lengths[1]

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
        """See `Tiles`. Padding counts if several examples share the array.

        Excluding padding would read the array once per example, and only affect one row of tiles.
        """
        inside, xp = None, self.xp
        array = xp.asarray(array)
        for axis, length in ((2, self.lengths[0]), (3, self.lengths[1])):
            is_shared = array.shape[0] == 1 < length.shape[0]
            if not self._is_whole(axis - 2) and array.shape[axis] > 1 and not is_shared:
                position = np.arange(array.shape[axis]).reshape(
                    [-1 if i == axis else 1 for i in range(4)]
                )
                inside = (position < length) & (True if inside is None else inside)
        some = array if inside is None else array & inside
        every = array if inside is None else array | ~inside
        for axis, tile in ((2, self.tile[0]), (3, self.tile[1])):
            some = _by_tile(xp.logical_or, some, axis=axis, tile=tile, identity=False)
            every = _by_tile(xp.logical_and, every, axis=axis, tile=tile, identity=True)
        return some, every

    def range_of_tiles(self, array: Array, tile: Tile) -> tuple[Array, Array]:
        """See `Tiles`."""
        least = largest = self.xp.asarray(array)
        for side, size in enumerate(self.sizes):
            both, axis = (tile[side], self.tile[side]), side + 2
            least = _retiled(self.xp.minimum, least, axis=axis, tiles=both, size=size)
            largest = _retiled(self.xp.maximum, largest, axis=axis, tiles=both, size=size)
        return least, largest

    def whole(self) -> "TileGrid":
        """See `Tiles`."""
        lengths = (np.full((1, 1, 1, 1), size, np.int32) for size in self.sizes)
        return dataclasses.replace(self, lengths=tuple(lengths))

    def answers(self, mask: Any) -> tuple[Array, Array]:
        """See `Tiles`."""
        return _answers(mask, self.sizes, tile=self.tile, counts=(self.batch or 1, self.heads or 1))

    def asks_for(self, mask: Any) -> tuple[bool, bool]:
        """See `Tiles`."""
        return asks_for(mask)

    def _ranges(self, array: Array, side: int) -> tuple[Array, Array]:
        xp, tile = self.xp, self.tile[side]
        array = xp.asarray(array)
        low, high = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        least = largest = array
        if not self._is_whole(side):
            inside = np.arange(array.shape[1])[None] < self.lengths[side].reshape(-1, 1)
            least, largest = xp.where(inside, array, high), xp.where(inside, array, low)
        return (
            _by_tile(xp.minimum, least, axis=1, tile=tile, identity=high),
            _by_tile(xp.maximum, largest, axis=1, tile=tile, identity=low),
        )

    def _is_whole(self, side: int) -> bool:
        length = self.lengths[side]
        return isinstance(length, np.ndarray) and bool((length >= self.sizes[side]).all())


def tile_grid(
    sizes: tuple[int, int],
    tile: Tile,
    *,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    known: bool = True,
    batch: int | None = None,
    heads: int | None = None,
) -> TileGrid:
    """The tiles of a call.

    Args:
        sizes: T and S, of the arrays.
        tile: Queries and keys of a tile.
        query_lengths: Valid lengths of the queries, i32[B or 1] or i32[]; None: T.
        key_lengths: Valid lengths of the keys; None: S.
        known: Whether the masks hold no traced array. If the lengths are known too, everything is
            computed with NumPy.
        batch: B; needed by mask functions only.
        heads: N; needed by mask functions only.

    Raises:
        ConfigError: T or S is too large.
    """
    if max(sizes) > FARTHEST:
        raise ConfigError(
            f"attention over {sizes[0]} queries and {sizes[1]} keys is too long.",
            option="query" if sizes[0] > FARTHEST else "key",
            why=f"positions must stay below {FARTHEST}, so that their sums fit into int32",
            fix="cut the sequences into parts",
        )
    given = (query_lengths, key_lengths)
    lengths = [
        np.full((1, 1, 1, 1), size, np.int32) if length is None else _lengths(length)
        for size, length in zip(sizes, given, strict=True)
    ]
    xp = np if known and is_known(*lengths) else jnp
    return TileGrid(sizes, tile, (lengths[0], lengths[1]), xp, batch, heads)


@functools.lru_cache(maxsize=32)  # each layer of a model asks for the same answers
def _answers(
    mask: Any, sizes: tuple[int, int], *, tile: Tile, counts: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    asked = zip(counts, asks_for(mask), strict=True)
    shape = (*(n if is_asked else 1 for n, is_asked in asked), *tile_grid(sizes, tile).shape)
    tiles = np.argwhere(np.ones(shape, bool))
    some, every = look_into(mask, tiles, tile=tile, lengths=sizes)
    return some.reshape(shape), every.reshape(shape)


def _lengths(length: Array) -> Array:
    if is_known(length):
        return np.asarray(length, np.int32).reshape(-1, 1, 1, 1)
    return jnp.asarray(length, jnp.int32).reshape(-1, 1, 1, 1)


def _by_tile(reduce: Any, array: Array, *, axis: int, tile: int, identity: Any) -> Array:
    """Reduce `axis` tile by tile; an axis of 1 broadcasts and stays."""
    size = array.shape[axis]
    if size == 1:
        return array
    if isinstance(reduce, np.ufunc):
        return reduce.reduceat(array, range(0, size, tile), axis=axis)
    missing = -size % tile
    pads = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    padded = jnp.pad(array, pads, constant_values=identity) if missing else array
    shape = (*array.shape[:axis], -1, tile, *array.shape[axis + 1 :])
    return reduce.reduce(padded.reshape(shape), axis=axis + 1)


def _retiled(reduce: Any, array: Array, *, axis: int, tiles: Tile, size: int) -> Array:
    """Elements per tile of size tiles[0], reduced or repeated to tiles of size tiles[1]."""
    theirs, mine = tiles
    if theirs == mine:
        return array
    count = -(-size // mine)
    first = np.arange(count) * mine // theirs
    last = (np.minimum(np.arange(1, count + 1) * mine, size) - 1) // theirs
    out = array.take(first, axis)
    for step in range(1, int((last - first).max(initial=0)) + 1):
        out = reduce(out, array.take(np.minimum(first + step, last), axis))
    return out
