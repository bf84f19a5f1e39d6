"""The lists of tiles by one kernel for a Hopper: as `_lists_kernel`, which is in Triton.

JAX has deprecated its Triton. A program makes the lists of four rows, one by each warp. To find the
rows' places in the order it counts the tiles of all rows of the head, from shared memory.

A thread sees its own numbers: the code is that of one thread, and conditions are those of `when`.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, Side, TileLists, made
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._scratch import Shared
from shapeexec.attention.backends.mosaic_gpu._start import start_grid
from shapeexec.attention.backends.mosaic_gpu._threads import (
    WARP,
    WARPGROUP,
    Number,
    Words,
    ballot,
    load,
    number,
    ones,
    repeat,
    store,
    sum_of,
    thread,
    wait_for_all,
    when,
    where,
)
from shapeexec.attention.masks._base import TileKind

_LARGEST = 128 * 128
"""Most tiles of a head: with its counts they fit into shared memory. See `_lists_kernel`."""

_WARPS = WARPGROUP // WARP


def suffices(shape: tuple[int, ...]) -> bool:
    """Whether kinds u8[B, N, query tiles, key tiles] are not empty and fit into shared memory."""
    return 0 not in shape and shape[2] * shape[3] <= _LARGEST


def lists(kinds: Array, *, room: int, side: Side) -> TileLists:
    """The lists of `_lists`, by a kernel; see `_lists_kernel.lists`."""
    *lead, queries, keys = kinds.shape
    grid = _Grid(queries, keys, side, room)
    heads, rows = math.prod(lead), grid.rows
    programs = -(-rows // _WARPS)
    of_rows = made((heads, rows), jnp.int32)

    def attention_lists(*refs: Ref) -> None:
        program, by = lax.axis_index("program"), jnp.int32(programs)
        head, part = lax.div(program, by), lax.rem(program, by)
        of_head, scratch = [ref.at[head] for ref in refs[:5]], refs[5:]
        types = (plgpu.Layout.WG_SPLAT, *[plgpu.RefType()] * len(refs))
        inline: Any = plgpu.inline_mgpu(arg_types=types)(functools.partial(_lists_of_head, grid))
        inline(part, *of_head, *scratch)

    results = start_grid(
        attention_lists,
        operands=[kinds.reshape(heads, queries, keys)],
        results=[made((heads, rows, room), jnp.int32), *[of_rows] * 3],
        grid={"program": heads * programs},
        key=grid,
        scratch=[
            Shared((queries * grid.pitch,), jnp.uint8),
            Shared((rows,), jnp.int32),
            Shared((rows,), jnp.int32),
        ],
    )
    tiles, full, counts, order = (x.reshape(*lead, *x.shape[1:]) for x in results)
    return TileLists(tiles, full, counts, order)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """The tiles of a head.

    Attributes:
        queries, keys: The numbers of tiles.
        side: Whether the rows are of queries or of keys.
        room: The width of the lists.
    """

    queries: int
    keys: int
    side: Side
    room: int

    @property
    def rows(self) -> int:
        return self.keys if self.side == "key" else self.queries

    @property
    def columns(self) -> int:
        return self.queries if self.side == "key" else self.keys

    @property
    def pitch(self) -> int:
        """The bytes from one query to the next one in shared memory.

        An odd number of words, so that threads that read a column each read another bank.
        """
        return 4 * (-(-self.keys // 4) | 1)

    def byte(self, row: Number, column: Number) -> Number:
        """Where the kind of a tile is in shared memory."""
        query, key = (column, row) if self.side == "key" else (row, column)
        return query * self.pitch + key


def _lists_of_head(
    grid: _Grid,
    _: Any,
    part: Any,
    kinds: Any,
    tiles: Any,
    full: Any,
    counts: Any,
    order: Any,
    staged: Any,
    all_full: Any,
    all_counts: Any,
) -> None:
    """The lists of rows 4 part, ..., 4 part + 3 of a head.

    Args:
        grid: The tiles.
        part: i32[]; the context comes before it.
        kinds: u8[query tiles, key tiles] in device memory.
        tiles: i32[rows, room] in device memory, as what follows: the head's results.
        full: i32[rows].
        counts: i32[rows].
        order: i32[rows].
        staged: u8[query tiles * pitch] in shared memory: the kinds.
        all_full: i32[rows] in shared memory: how many tiles are full.
        all_counts: i32[rows] in shared memory: how many tiles have work.
    """
    _stage(grid, kinds, staged)
    wait_for_all()
    _count(grid, staged, all_full, all_counts)
    wait_for_all()
    lane, warp = thread() % WARP, thread() // WARP
    row = Number(part.registers.item()) * _WARPS + warp
    with when(row < grid.rows):
        row_full, row_count = load(all_full, row), load(all_counts, row)
        _list(grid, staged, tiles, row, row_full, row_count)
        place = _place_in_order(grid, all_counts, row, row_count)
        with when(lane.equals(0)):
            store(full, row_full, row)
            store(counts, row_count, row)
            store(order, row, place)


def _stage(grid: _Grid, kinds: Any, staged: Any) -> None:
    """Copy the kinds of the head into shared memory."""
    # Words of 4 bytes if none holds tiles of two queries. The kinds of each head, too, then begin
    # at a multiple of 4.
    width = 4 if grid.keys % 4 == 0 else 1
    count = grid.queries * grid.keys // width
    source, target = Words(kinds, width), Words(staged, width)

    def copy(steps: Sequence[Number], nothing: Sequence[Number]) -> Sequence[Number]:
        # Threads behind the end copy the last word again.
        starts = [(thread() + step * WARPGROUP).at_most(count - 1) * width for step in steps]
        for start, word in [(start, source.load(start)) for start in starts]:
            target.store(word, start // grid.keys * grid.pitch + start % grid.keys)
        return nothing

    repeat(-(-count // WARPGROUP), copy, at_a_time=32)


def _count(grid: _Grid, staged: Any, all_full: Any, all_counts: Any) -> None:
    """Count the tiles of each row of the head."""
    # Few rows have several threads each.
    share = next(n for n in (32, 16, 8, 4, 2, 1) if n == 1 or n * grid.rows <= WARPGROUP)

    def count_row(steps: Sequence[Number], nothing: Sequence[Number]) -> Sequence[Number]:
        (step,) = steps
        place = thread() + step * WARPGROUP
        # Threads behind the end count the last row again.
        row = (place // share).at_most(grid.rows - 1)
        full, count = (sum_of(x, share) for x in _sums(grid, staged, row, place % share, share))
        store(all_full, full, row)
        store(all_counts, count, row)
        return nothing

    repeat(-(-grid.rows * share // WARPGROUP), count_row, at_a_time=1)


def _sums(grid: _Grid, staged: Any, row: Number, first: Number, by: int) -> Sequence[Number]:
    """The numbers of full tiles and of tiles in columns `first`, `first` + `by`, ... of a row."""

    def add(steps: Sequence[Number], sums: Sequence[Number]) -> Sequence[Number]:
        full, count = sums
        for kind in [_kind(grid, staged, row, first + step * by) for step in steps]:
            # Kinds are 0, 1 and 2: a sum of them counts full tiles twice.
            is_full = kind // int(TileKind.FULL)
            full, count = full + is_full, count + kind - is_full
        return full, count

    return repeat(-(-grid.columns // by), add, [number(0)] * 2, at_a_time=16)


def _list(
    grid: _Grid, staged: Any, tiles: Any, row: Number, row_full: Number, row_count: Number
) -> None:
    """Store the list of a row: full, partial, then empty tiles, so that each place is written."""
    lane = thread() % WARP
    lower = (number(1) << lane) - 1

    def put(steps: Sequence[Number], before: Sequence[Number]) -> Sequence[Number]:
        columns = [step * WARP + lane for step in steps]
        kinds = [_kind(grid, staged, row, column) for column in columns]
        for column, kind in zip(columns, kinds, strict=True):
            is_full, is_partial = kind.equals(TileKind.FULL), kind.equals(TileKind.PARTIAL)
            bits = ballot(is_full), ballot(is_partial)
            full, partial = (n + ones(b & lower) for n, b in zip(before, bits, strict=True))
            of_empty = row_count + column - full - partial
            place = where(is_full, full, where(is_partial, row_full + partial, of_empty))
            with when((column < grid.columns) & (place < grid.room)):
                store(tiles, column, row, place)
            before = [n + ones(b) for n, b in zip(before, bits, strict=True)]
        return before

    repeat(-(-grid.columns // WARP), put, [number(0)] * 2, at_a_time=4)


def _place_in_order(grid: _Grid, all_counts: Any, row: Number, row_count: Number) -> Number:
    """The number of rows that are longer than a row, or as long and before it."""

    def add(steps: Sequence[Number], total: Sequence[Number]) -> Sequence[Number]:
        others = [step * WARP + thread() % WARP for step in steps]
        counts = [load(all_counts, other.at_most(grid.rows - 1)) for other in others]
        for other, count in zip(others, counts, strict=True):
            is_before = (count > row_count) | (count.equals(row_count) & (other < row))
            total = [total[0] + where((other < grid.rows) & is_before, 1, 0)]
        return total

    (total,) = repeat(-(-grid.rows // WARP), add, [number(0)], at_a_time=4)
    return sum_of(total, WARP)


def _kind(grid: _Grid, staged: Any, row: Number, column: Number) -> Number:
    """The kind of a tile; behind the last column it is empty."""
    kind = load(staged, grid.byte(row, column.at_most(grid.columns - 1)))
    return where(column < grid.columns, kind, int(TileKind.EMPTY))
