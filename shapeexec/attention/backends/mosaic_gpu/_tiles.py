"""Reads the lists of tiles inside the kernels, and turns them into items of work.

Kernels handle operands and products.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, Side, whole_tiles
from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._divided import divided
from shapeexec.attention.backends.mosaic_gpu._merged import Size
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._scratch import ROW_GROUP

TILE = 128  # queries and keys of a tile of the lists
_SECTION = 128  # rows of the heads that are taken together: see `Table.item`
_LAST_SECTION = (256, 512)  # rows of the last ones, at least and, within a section, at most
_LAST_COLUMNS = 8192  # columns of keys that the last ones have together, between the two
MANY = 3  # tiles: how many more there are, kernels are not told
WARPGROUPS = 2  # warpgroups that compute; one more moves memory
ROWS = TILE // WARPGROUPS  # rows of a tile that one warpgroup computes


def copied_rows(rows: int) -> int:
    """The rows of an array that is copied in tiles: whole groups, or fewer rows than a group."""
    return rows if rows < ROW_GROUP else whole_tiles(rows, ROW_GROUP)


def tiles_of(positions: int, of_tile: int = TILE) -> int:
    """The number of tiles, or of rows of `of_tile` positions, that hold as many positions."""
    return whole_tiles(positions, of_tile) // of_tile


class ListRefs(NamedTuple):
    """`TileLists` in device memory; without an order, rows are taken one after the other."""

    tiles: Ref
    full: Ref
    counts: Ref
    order: Ref | None

    @property
    def of_row(self) -> int:
        """The number of positions in a row."""
        return TILE

    @property
    def are_in_turn(self) -> bool:
        """Whether the rows of a head are taken one after the other."""
        return self.order is None

    @property
    def end_in_one(self) -> bool:
        """Whether only the last tile of a row may need a mask for its valid queries."""
        return False

    @property
    def may_be_empty(self) -> bool:
        """Whether a row with a valid query may have no tile, where all keys are valid."""
        return True

    def row(self, batch: Array, head: Array, place: Array, length: Array) -> Array:
        """The row at a place of a head's order; `length`: the valid length along the rows."""
        del length
        if self.order is None:
            return place
        return self.order[(*at_or_0(self.order, batch, head), place)]

    def bounds(
        self, item: "Item", head: Array, lengths: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """The numbers of full tiles and of all tiles, if any of the row is valid.

        Args:
            item: The item; only its row and example count.
            head: The head of the lists.
            lengths: The valid lengths along the rows and across them.
        """
        del lengths
        at = (*at_or_0(self.counts, item.batch, head), item.row)
        return self.full[at], self.counts[at]

    def tile(self, item: "Item", head: Array, place: Array) -> Array:
        """The number of the tile at a place of an item's list."""
        return self.tiles[(*at_or_0(self.tiles, item.batch, head), item.row, place)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FirstTiles:
    """In place of `ListRefs`, lists that are the first tiles of each row: nothing is read.

    Attributes:
        of_row: The number of positions in a row.
        reach: See `TileLists`.
    """

    of_row: int = dataclasses.field(metadata={"static": True})
    reach: Reach = dataclasses.field(metadata={"static": True})

    @property
    def are_in_turn(self) -> bool:
        """See `ListRefs`."""
        return self.reach.offset is None

    @property
    def end_in_one(self) -> bool:
        """See `ListRefs`."""
        return self.reach.ends_in_one((self.of_row, TILE))

    @property
    def may_be_empty(self) -> bool:
        """See `ListRefs`."""
        return self.reach.may_be_empty

    def row(self, batch: Array, head: Array, place: Array, length: Array) -> Array:
        """See `ListRefs`."""
        del batch, head
        return self.reach.order(place, length, of_row=self.of_row, xp=i32)

    def bounds(
        self, item: "Item", head: Array, lengths: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """See `ListRefs`."""
        del head
        return self.reach.bounds(item.row, lengths, tile=(self.of_row, TILE), xp=i32)

    def tile(self, item: "Item", head: Array, place: Array) -> Array:
        """See `ListRefs`."""
        del item, head
        return place


class Lengths(NamedTuple):
    """The valid lengths of queries and of keys.

    Attributes:
        refs: i32[B] in device memory each; None: all positions are valid.
        sizes: T and S; i32[] each if they are known only when the kernel runs.
    """

    refs: tuple[Ref | None, Ref | None]
    sizes: tuple[Size, Size]

    def of(self, batch: Array) -> tuple[Array, Array]:
        """Those of an example."""
        queries, keys = (
            jnp.int32(size) if ref is None else ref[batch]
            for ref, size in zip(self.refs, self.sizes, strict=True)
        )
        return queries, keys


class Packing(NamedTuple):
    """Rows that hold the queries of several heads: row `head * pitch + query`.

    Attributes:
        queries: The number of queries.
        heads: The number of neighbouring heads that are packed.
        pitch: The rows of a head, as many as its queries or more.
    """

    queries: int
    heads: int
    pitch: int

    @property
    def rows(self) -> int:
        """The number of rows, with those of a head that hold no query."""
        return self.pitch * self.heads

    @property
    def by_head(self) -> bool:
        """Whether the kernel reads the queries of each head; else they are packed before it."""
        return self.pitch % ROW_GROUP == 0

    def holds_query(self, row: Any) -> Any:
        """Whether a row holds a query; `row` counts from 0, as an integer of any type."""
        return (row < self.rows) & (row % self.pitch < self.queries)


class Item(NamedTuple):
    """One item of work: a row of the lists and its tiles. All i32[].

    Attributes:
        batch: The example; -1 when no work is left.
        head: The head of the row.
        row: The number of the row: a query tile, or a key tile.
        full: The number of its tiles that need no mask.
        count: The number of all its tiles.
        behind: The rows of its last tile behind the valid length; pieces of them are left out.
        query_length, key_length: Valid lengths of the example.
    """

    batch: Array
    head: Array
    row: Array
    full: Array
    count: Array  # pyright: ignore[reportIncompatibleMethodOverride] - nobody counts in a tuple
    behind: Array
    query_length: Array
    key_length: Array

    def pieces(self, rows: int) -> Array:
        """The number of pieces of this many rows, by which the position in the ring advances."""
        if rows == TILE:
            return self.count
        return self.count * (TILE // rows) - lax.div(self.behind, i32.constant(rows))

    def full_pieces(self, rows: int) -> Array:
        """The number of `pieces` that need no mask, of tiles at the beginning of the list."""
        return self.full * (TILE // rows)


class Sections(NamedTuple):
    """The heads that have items, in sections; see `Table.item`. All int, in a kernel i32[].

    Attributes:
        first: The first head, counted over all examples.
        heads: The number of heads.
        rows: The number of rows in a head.
        at_once: The number of heads in a section.
        last: The number of heads before the last section, which has more; whole sections of them.
    """

    first: Any
    heads: Any
    rows: Any
    at_once: Any
    last: Any

    @staticmethod
    def of(first: int, heads: int, *, rows: int, columns: int) -> "Sections":
        """The sections of some heads; `columns` are the columns of keys that their rows read.

        By key, those of queries. What several heads share is divided among them.
        """
        at_once, least, most = (max(1, n // rows) for n in (_SECTION, *_LAST_SECTION))
        of_last = min(max(_LAST_COLUMNS // columns, least), most)
        last = max(heads - of_last, 0)
        return Sections(first, heads, rows, at_once, last - last % at_once)


class Table(NamedTuple):
    """Maps the number of an item to the item.

    Attributes:
        lists: The lists whose rows are the items.
        sections: The heads that have items; None: nobody asks for items by number.
        heads: The number of heads of the items.
        group: The number of the lists' heads that one head of the items represents.
        lengths: The valid lengths.
        side: Whether the rows are of queries or of keys.
        longest: The most tiles of a row; if they are `MANY` or more, any number of these.
        has_one_column: Whether there is one tile in a row, at most.
        overhangs: Whether a row's last tile may extend past the valid length.
        in_order: Whether the rows of a head are taken in order, not the longest first.
        divide: `divided`, or `divided_by_threads` on the device.
    """

    lists: ListRefs | FirstTiles
    sections: Sections | None
    heads: int
    group: int
    lengths: Lengths
    side: Side
    longest: int
    has_one_column: bool
    overhangs: bool
    in_order: bool
    divide: Callable[[Array, Size], tuple[Array, Array]]

    def fits(self, rows: int) -> bool:
        """Whether the longest list fits into rings of this many rows.

        If it does, a kernel starts all copies of an item before it looks up the next one, which
        takes microseconds. If not it looks up earlier, or the next item would be late.
        """
        return self.longest < MANY and self.longest * TILE <= rows

    @property
    def may_be_empty(self) -> bool:
        """Whether an item may have no tile."""
        return self.overhangs or self.lists.may_be_empty

    @property
    def rows(self) -> Size:
        """The number of rows in a head."""
        size = self.lengths.sizes[0 if self.side == "query" else 1]
        return tiles_of(size, self.lists.of_row) if isinstance(size, int) else self._sections.rows

    @property
    def total(self) -> Array:
        """The number of items, i32[]."""
        return self._sections.heads * self.rows

    @property
    def _sections(self) -> Sections:
        assert self.sections is not None
        return self.sections

    def item(self, number: Array) -> Item:
        """Item `number`.

        Rows of one length are taken head by head, so that the programs at work share a head's
        operands in the second-level cache. Where rows differ, heads form sections, within which
        the longest rows of all heads come first. Sections are small, for that cache's sake, but
        the last one has rows enough for all programs to end together. It has no more heads than
        that takes: its longest rows read the keys and values of all of them, and its other rows
        nothing else, so the memory is busy first and idle then. See docs/adr/0009.
        """
        rows, total = self.rows, self.total
        has_one_row = isinstance(rows, int) and rows == 1
        is_in_turn = has_one_row or self.in_order or self.lists.are_in_turn
        find = self.divide if is_in_turn else self._in_sections
        head, row = find(i32.minimum(number, total - 1), rows)
        batch, head = divided(self._sections.first + head, self.heads)
        lengths = self.lengths.of(batch)
        if not is_in_turn:
            length = lengths[0 if self.side == "query" else 1]
            row = self.lists.row(batch, head * self.group, row, length)
        item = self._item_of(batch, head, row, lengths)
        return item._replace(batch=i32.where(number < total, batch, -1))

    def _in_sections(self, number: Array, rows: Size) -> tuple[Array, Array]:
        """The head of an item, counted in the sections, and its place in the head's order."""
        _, all_heads, _, at_once, last = self._sections
        is_last = number >= last * rows
        first = i32.where(is_last, last, self.divide(number, at_once * rows)[0] * at_once)
        heads = i32.where(is_last, all_heads - last, at_once)
        place, head = self.divide(number - first * rows, heads)
        return first + head, place

    def first_item(self, batch: Array, head: Array) -> Item:
        """The item of the first row of a head."""
        return self._item_of(batch, head, i32.constant(0), self.lengths.of(batch))

    def _item_of(self, batch: Array, head: Array, row: Array, lengths: tuple[Array, Array]) -> Item:
        """The item of a row, with the tiles of the first of the lists' heads."""
        zero = i32.constant(0)
        item = Item(batch, head, row, zero, zero, zero, *lengths)
        return self.of_head(item, head * self.group)

    def of_head(self, item: Item, head: Array) -> Item:
        """The item with the tiles of one of the lists' heads: none behind the valid length."""
        along, across = item.query_length, item.key_length
        if self.side == "key":
            along, across = across, along
        has_any = item.row * self.lists.of_row < along
        bounds = self.lists.bounds(item, head, (along, across))
        full, count = (i32.where(has_any, x, 0) for x in bounds)
        behind = i32.constant(0)
        if self.overhangs:
            # If a tile extends past the end, it is the last one: partial ones come last, in order.
            last = self._tile(item, head, i32.maximum(count, 1) - 1)
            behind = i32.where(count > 0, i32.maximum((last + 1) * TILE - across, 0), 0)
        return item._replace(full=full, count=count, behind=behind)

    def first_column(self, item: Item, step: Array, size: int) -> Array:
        """The first position of piece `step` of an item's tiles, in pieces of `size`."""
        place, piece = divided(step, TILE // size)
        return self._tile(item, item.head, place) * TILE + piece * size

    def _tile(self, item: Item, head: Array, place: Array) -> Array:
        return i32.constant(0) if self.has_one_column else self.lists.tile(item, head, place)


def place_of(position: Array, places: int) -> Array:
    """The place in a ring with this many places of a position, which counts from 0."""
    return lax.rem(position, i32.constant(places))


def free_all(*rings: Ref) -> None:
    """Signal that all places of rings are free; for each warpgroup that reads, before it does.

    Args:
        *rings: The barriers `free` of each ring, one for each place.
    """
    for free in rings:
        for place in range(free.shape[0]):
            plgpu.barrier_arrive(free.at[place])


def at_or_0(ref: Ref, *index: Array) -> tuple[Array | int, ...]:
    """An index into the first axes; an axis of size 1 is shared, so its index is 0."""
    sizes = ref.shape[: len(index)]
    shared = (isinstance(size, int) and size == 1 for size in sizes)
    return tuple(0 if is_shared else i for is_shared, i in zip(shared, index, strict=True))
