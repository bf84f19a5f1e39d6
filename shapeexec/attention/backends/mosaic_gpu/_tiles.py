"""The tiles of a call as the kernels read them: lists, sizes, positions and the mask's arrays.

Nothing here multiplies anything; the kernels do.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.masks._base import Mask

Array = Any
Ref = Any

TILE = 128  # queries and keys of a tile of the lists
WARPGROUPS = 2  # that compute; one more moves memory
ROWS = TILE // WARPGROUPS  # rows of a tile that one warpgroup computes
WIDE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # what products read


class ListRefs(NamedTuple):
    """`TileLists` in device memory."""

    tiles: Ref
    full: Ref
    counts: Ref
    order: Ref


class Item(NamedTuple):
    """One piece of work: a row of the lists and the tiles that it meets. All i32[].

    Attributes:
        batch: The example; -1 when no work is left.
        head: The head whose row it is.
        row: The tile.
        full: How many of its tiles need no mask.
        count: How many there are.
    """

    batch: Array
    head: Array
    row: Array
    full: Array
    count: Array


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array that a mask holds, as the kernel has it.

    Attributes:
        ref: In device memory; its axes of queries and keys are padded to whole tiles.
        is_bool: Whether it holds booleans, as integers.
    """

    ref: Ref
    is_bool: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.ref.shape

    def value(self, loaded: Array) -> Array:
        """What was loaded, as the mask wrote it."""
        return loaded != 0 if self.is_bool else loaded


def whole_tiles(size: int) -> int:
    """The least multiple of the tile from `size` up."""
    return -(-size // TILE) * TILE


def as_operand(leaf: Array, role: str, *, by_key: bool) -> Array:
    """An array of a mask as the kernels take it.

    Args:
        leaf: The array.
        role: What the mask asks of it, a method of `Positions`.
        by_key: Whether rows are keys; pairs are then told by key.

    Returns:
        Integers or floats; lengths are whole tiles, since a load, unlike a copy by the tensor
        unit, is not clipped at an array's end.
    """
    array = jnp.asarray(leaf)
    if array.dtype == bool:
        array = array.astype(jnp.int8 if role == "of_pairs" else jnp.int32)
    along = {"of_queries": (1,), "of_keys": (1,), "of_pairs": (2, 3)}.get(role, ())
    pads = [
        (0, whole_tiles(size) - size if axis in along and size > 1 else 0)
        for axis, size in enumerate(array.shape)
    ]
    if any(after for _, after in pads):
        array = jnp.pad(array, pads)
    return array.swapaxes(2, 3) if by_key and role == "of_pairs" else array


def rebuild(structure: Any, refs: list[Ref], bools: tuple[bool, ...]) -> Mask:
    """The mask, with references where its arrays were."""
    return jax.tree.unflatten(structure, [Leaf(*pair) for pair in zip(refs, bools, strict=True)])


def at_or_0(ref: Ref, *index: Array) -> tuple[Array, ...]:
    """An index into the first axes, which may be 1 long and then count for all."""
    return tuple(i if ref.shape[axis] > 1 else 0 for axis, i in enumerate(index))


class Table(NamedTuple):
    """From the number of an item to the item.

    Attributes:
        lists: Whose rows are the items.
        heads: How many heads the items have.
        group: How many heads of the lists one head of the items stands for.
        row_sizes: Valid lengths of what the rows are of, i32[B].
    """

    lists: ListRefs
    heads: int
    group: int
    row_sizes: Ref

    @property
    def rows(self) -> int:
        """How many rows a head has."""
        return self.lists.counts.shape[2]

    def item(self, number: Array) -> Item:
        """Item `number`: example by example, head by head, in a head the longest row first.

        Programs at work at a time then share a head's operands in the second-level cache.
        """
        total = self.row_sizes.shape[0] * self.heads * self.rows
        head, place = _divide(jnp.minimum(number, total - 1), self.rows)
        batch, head = _divide(head, self.heads)
        order = self.lists.order
        row = order[(*at_or_0(order, batch, head * self.group), place)]
        full, count = self.extent(batch, head * self.group, row)
        return Item(jnp.where(number < total, batch, -1), head, row, full, count)

    def extent(self, batch: Array, head: Array, row: Array) -> tuple[Array, Array]:
        """How many tiles of a row are full, and how many it has; none behind the valid length."""
        at = (*at_or_0(self.lists.counts, batch, head), row)
        valid = row * TILE < self.row_sizes[batch]
        full, count = self.lists.full[at], self.lists.counts[at]
        return jnp.where(valid, full, 0), jnp.where(valid, count, 0)

    def first_column(self, item: Item, step: Array, size: int) -> Array:
        """Where the piece of a step begins: the listed tiles in order, in pieces of `size`."""
        tiles, pieces = self.lists.tiles, TILE // size
        place, piece = _divide(step, pieces)
        tile = tiles[(*at_or_0(tiles, item.batch, item.head), item.row, place)]
        return tile * TILE + piece * size


def _divide(number: Array, by: int) -> tuple[Array, Array]:
    divisor = jnp.int32(by)
    return lax.div(number, divisor), lax.rem(number, divisor)


class TilePositions:
    """`Positions` of a tile that one warpgroup holds in an accumulator's layout.

    Args:
        batch, head: The example and the query head.
        first_query, first_key: Where the tile begins.
        shape: Rows and columns of the tile.
        by_key: Whether the rows are keys; they are queries otherwise.
        sizes: Valid lengths of queries and of keys.
    """

    def __init__(
        self,
        batch: Array,
        head: Array,
        first_query: Array,
        first_key: Array,
        *,
        shape: tuple[int, int],
        by_key: bool,
        sizes: tuple[Array, Array],
    ) -> None:
        self.batch, self.head = batch, head
        self.query_size, self.key_size = sizes
        self._first = (first_query, first_key)
        self._shape = shape
        self._axes = (1, 0) if by_key else (0, 1)  # of queries and of keys; its own inverse
        self.query, self.key = (
            plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA) + first
            for axis, first in zip(self._axes, self._first, strict=True)
        )

    def of_batch(self, array: Leaf) -> Array:
        """The element of array[B or 1] for this example."""
        return array.value(array.ref[at_or_0(array, self.batch)])

    def of_head(self, array: Leaf) -> Array:
        """The element of array[B or 1, N or 1] for this head."""
        return array.value(array.ref[at_or_0(array, self.batch, self.head)])

    def of_queries(self, array: Leaf) -> Array:
        """The elements of array[B or 1, T] at these queries."""
        return self._vector(array, at_or_0(array, self.batch), self._axes[0])

    def of_keys(self, array: Leaf) -> Array:
        """The elements of array[B or 1, S] at these keys."""
        return self._vector(array, at_or_0(array, self.batch), self._axes[1])

    def of_pairs(self, array: Leaf) -> Array:
        """The elements of array[B or 1, N or 1, T or 1, S or 1] at these pairs.

        By key the array has its last two axes swapped; see `as_operand`.
        """
        lead = at_or_0(array, self.batch, self.head)
        axes = [axis for axis in (0, 1) if array.shape[2 + axis] > 1]  # of this tile
        if not axes:
            return array.value(array.ref[(*lead, 0, 0)])
        if len(axes) == 1:
            behind = (0,) if axes[0] == 0 else ()
            return self._vector(array, (*lead, 0)[: 3 - len(behind)], axes[0], behind)
        at = [
            pl.ds(self._first[side], size)
            for side, size in zip(self._axes, self._shape, strict=True)
        ]
        ref = array.ref.at[(*lead, *at)]
        return array.value(plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False))

    def of_tile(self, array: Leaf, tile: tuple[int, int]) -> Array:
        """The element of array[B or 1, N or 1, query tiles, key tiles] for this tile."""
        lead = at_or_0(array, self.batch, self.head)
        at = [
            lax.div(first, jnp.int32(size)) for first, size in zip(self._first, tile, strict=True)
        ]
        return array.value(array.ref[(*lead, *at)])

    def _vector(self, array: Leaf, lead: tuple, axis: int, behind: tuple = ()) -> Array:
        at = (*lead, pl.ds(self._first[self._axes[axis]], self._shape[axis]), *behind)
        layout = plgpu.Layout.WGMMA.reduce(1 - axis)
        loaded = plgpu.load(array.ref.at[at], layout=layout, optimized=False)
        return array.value(lax.broadcast_in_dim(loaded, self._shape, [axis]))
