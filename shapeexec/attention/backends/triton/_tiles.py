"""Code shared by all Triton kernels: launches, lists, loads and stores, and `Positions` for masks.

Sizes of Triton's arrays are powers of 2, so loads are masked, and elements outside an array are 0
in the kernel. The softmax is in `backends._softmax`.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from shapeexec.attention.backends._base import Ref, Side, Signature
from shapeexec.attention.masks._base import Tile


@dataclasses.dataclass(frozen=True)
class Setting:
    """The static part of a kernel.

    Attributes:
        signature: The call.
        kinds: Whether full tiles, and partial ones, may occur; there is no loop over the others.
        warps: Warps of a program.
        stages: Stages of Triton's software pipeline.
        interpret: Whether Pallas' interpreter runs it.
    """

    signature: Signature
    kinds: tuple[bool, bool]
    warps: int
    stages: int
    interpret: bool

    def launch(
        self, kernel: Callable[..., None], name: str, *, grid: tuple[int, ...], out_shape: Any
    ) -> Callable[..., Any]:
        """The kernel as a function; its operands are trees of arrays, and references inside."""
        return pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=out_shape,
            interpret=self.interpret,
            compiler_params=plgpu.CompilerParams(num_warps=self.warps, num_stages=self.stages),
            name=f"attention_{name}",
        )


def padded(size: int) -> int:
    """The next power of 2 that a product takes: 16 or more."""
    return max(16, pl.next_power_of_2(size))


# Lists


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the lists: a tile on one side, and the tiles it meets on the other.

    Attributes:
        number: The number of the tile.
        place: The index of its list: example, head and row.
        tiles: The reference to all lists.
        full: The number of its full tiles.
        count: The number of all its tiles.
        kinds: Whether there may be full tiles, and whether partial ones.
    """

    number: Array
    place: tuple[Array | int, Array | int, Array]
    tiles: Ref
    full: Array
    count: Array
    kinds: tuple[bool, bool]

    def each(self, step: Callable[..., Any], carry: Any) -> Any:
        """`step(tile, carry, is_partial=...)` for each tile: full ones first."""

        def run(*, is_partial: bool) -> Callable[[Array, Any], Any]:
            return lambda j, carry: step(self.tiles[(*self.place, j)], carry, is_partial=is_partial)

        has_full, has_partial = self.kinds
        if has_full:
            carry = lax.fori_loop(0, self.full, run(is_partial=False), carry)
        return (
            lax.fori_loop(self.full, self.count, run(is_partial=True), carry)
            if has_partial
            else carry
        )


def row_of(
    lists: tuple[Ref, ...],
    batch: Array,
    head: Array,
    number: Array,
    kinds: tuple[bool, bool],
) -> Row:
    """The row of tile `number`."""
    tiles, full, counts, _ = lists
    place = (_or_first(batch, tiles.shape[0]), _or_first(head, tiles.shape[1]), number)
    return Row(number, place, tiles, full[place], counts[place], kinds)


def in_order(lists: tuple[Ref, ...], batch: Array, head: Array, turn: Array) -> Array:
    """The number of the row at this turn: rows with the most tiles come first."""
    order = lists[3]
    return order[_or_first(batch, order.shape[0]), _or_first(head, order.shape[1]), turn]


# Parts of arrays


@dataclasses.dataclass(frozen=True)
class Span:
    """Contiguous positions: the queries or the keys of a tile.

    Attributes:
        first: The first position.
        size: The number of positions.
        limit: The valid length: elements from there on are loaded as 0. None: all are valid.
    """

    first: Array
    size: int
    limit: Array | None

    @property
    def positions(self) -> Array:
        """i32[size]."""
        return self.first + lax.iota(np.int32, self.size)

    def is_inside(self, positions: Array) -> Array | None:
        """Which positions are valid; None: all."""
        return None if self.limit is None else positions < self.limit


def load_rows(ref: Ref, batch: Array, head: Array, span: Span) -> Array:
    """[span, columns of a tile] of an array [B, T or S, heads, size]."""
    rows, columns = _grid_of(span, ref.shape[3])
    is_inside = _both(span.is_inside(rows), _columns_inside(columns, ref.shape[3]))
    return _load(ref, (batch, rows, head, columns), is_inside)


def store_rows(ref: Ref, batch: Array, head: Array, first: Array, value: Array) -> None:
    """Store [rows, columns of a tile] into [B, T or S, heads, size]; clipped at its end."""
    span = Span(first, value.shape[0], ref.shape[1])
    rows, columns = _grid_of(span, ref.shape[3])
    is_inside = _both(span.is_inside(rows), _columns_inside(columns, ref.shape[3]))
    place = ref.at[batch, rows, head, columns]
    plgpu.store(place, value.astype(ref.dtype), mask=_broadcast(is_inside, value.shape))


def load_numbers(ref: Ref, batch: Array, head: Array, span: Span) -> Array:
    """[span] of an array [B, N, T]."""
    positions = span.positions
    return _load(ref, (batch, head, positions), span.is_inside(positions))


def store_numbers(ref: Ref, batch: Array, head: Array, first: Array, value: Array) -> None:
    """Store [positions] into an array [B, N, T], clipped at its end."""
    positions = first + lax.iota(np.int32, value.shape[0])
    plgpu.store(ref.at[batch, head, positions], value, mask=positions < ref.shape[2])


def store_pairs(
    ref: Ref, place: tuple[Array, Array], tile: tuple[Array, Array], value: Array
) -> None:
    """Store a tile into an array [B, N, T, S], clipped at its end."""
    rows, columns = (
        number * size + lax.iota(np.int32, size)
        for number, size in zip(tile, value.shape, strict=True)
    )
    rows, columns = rows[:, None], columns[None, :]
    is_inside = (rows < ref.shape[2]) & (columns < ref.shape[3])
    plgpu.store(ref.at[(*place, rows, columns)], value, mask=is_inside)


def _grid_of(span: Span, width: int) -> tuple[Array, Array]:
    return span.positions[:, None], lax.iota(np.int32, padded(width))[None, :]


def _columns_inside(columns: Array, width: int) -> Array | None:
    return None if columns.shape[1] == width else columns < width


def _load(ref: Ref, index: tuple[Array, ...], is_inside: Array | None) -> Array:
    shape = jnp.broadcast_shapes(*(np.shape(i) for i in index))
    if is_inside is None:
        return plgpu.load(ref.at[index])
    return plgpu.load(ref.at[index], mask=_broadcast(is_inside, shape), other=0)


def _both(one: Array | None, other: Array | None) -> Array | None:
    return one & other if one is not None and other is not None else other if one is None else one


def _broadcast(is_inside: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if is_inside is None else jnp.broadcast_to(is_inside, shape)


def _or_first(index: Array, size: int) -> Array | int:
    return 0 if size == 1 else index


# Positions


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of a mask or bias as a reference, with the shape and type it had.

    Attributes:
        ref: The reference.
        dtype: The array's dtype; a reference holds bool as i8.
    """

    ref: Ref
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.ref.shape

    def load(self, *index: Array) -> Array:
        """The elements at `index`; 0 where `index` lies behind the array's end."""
        place: tuple[Any, ...] = tuple(map(_or_first, index, self.shape))
        is_inside = None
        for positions, size in zip(place, self.shape, strict=True):
            if np.ndim(positions):
                is_inside = _both(is_inside, positions < size)
        loaded = self.ref[place] if is_inside is None else _load(self.ref, place, is_inside)
        return loaded.astype(self.dtype)


def storable(tree: Any) -> list[Array]:
    """The arrays of a mask or bias as operands of a kernel."""
    arrays = map(jnp.asarray, jax.tree.leaves(tree))
    return [x.astype(np.int8) if x.dtype == np.bool_ else x for x in arrays]


def shapes_of(tree: Any) -> Any:
    """A mask or bias with shapes and dtypes in place of its arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def as_leaves(refs: list[Ref], like: Any) -> Any:
    """The mask or bias with these references for arrays; `like` has their shapes and dtypes."""
    arrays, structure = jax.tree.flatten(like)
    leaves = [Leaf(ref, array.dtype) for ref, array in zip(refs, arrays, strict=True)]
    return jax.tree.unflatten(structure, leaves)


@dataclasses.dataclass(frozen=True)
class At:
    """The `Positions` of a tile in a kernel; arrays are `Leaf`s.

    Attributes:
        batch, head, query, key, query_length, key_length: See `Positions`; queries may lie along
            either axis.
        first: The first query and key.
        tile: How many of each.
    """

    batch: Array
    head: Array
    query: Array
    key: Array
    query_length: Array
    key_length: Array
    first: tuple[Array, Array]
    tile: Tile

    def of_batch(self, array: Leaf) -> Array:
        """See `Positions`."""
        return array.load(self.batch)

    def of_head(self, array: Leaf) -> Array:
        """See `Positions`."""
        return array.load(self.batch, self.head)

    def of_queries(self, array: Leaf) -> Array:
        """See `Positions`."""
        return array.load(self.batch, self.query)

    def of_keys(self, array: Leaf) -> Array:
        """See `Positions`."""
        return array.load(self.batch, self.key)

    def of_pairs(self, array: Leaf) -> Array:
        """See `Positions`."""
        return array.load(self.batch, self.head, self.query, self.key)

    def of_tile(self, array: Leaf, tile: Tile) -> Array:
        """See `Positions`."""
        is_one = all(theirs % mine == 0 for theirs, mine in zip(tile, self.tile, strict=True))
        row, column = self.first if is_one else (self.query, self.key)
        return array.load(self.batch, self.head, row // tile[0], column // tile[1])

    def of_table(self, array: Leaf, index: Array) -> Array:
        """See `Positions`."""
        return array.load(self.batch, self.head, index)


def positions(
    place: tuple[Array, Array],
    lengths: tuple[Array, Array],
    first: tuple[Array, Array],
    tile: Tile,
    *,
    side: Side = "query",
) -> At:
    """The positions of a tile.

    Args:
        place: Example and query head.
        lengths: Valid lengths of queries and keys.
        first: The first of each.
        tile: How many of each.
        side: Whether queries or keys lie along the first axis.
    """
    query, key = (start + lax.iota(np.int32, n) for start, n in zip(first, tile, strict=True))
    query = query[None, :] if side == "key" else query[:, None]
    key = key[:, None] if side == "key" else key[None, :]
    return At(*place, query, key, *lengths, first, tile)
