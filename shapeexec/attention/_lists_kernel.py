"""The lists of tiles by one Triton kernel: on a GPU each operation costs 1 to 2 microseconds.

The operations of `_lists` would cost more than a twentieth of a short forward pass. A program makes
the list of one row; to find the row's place in the order it counts the tiles of all rows.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from shapeexec.attention.backends._base import Ref, Side, TileLists, made
from shapeexec.attention.masks._base import TileKind

_LARGEST = 128 * 128
"""Most tiles of a head that fit into registers. With more, lists are cheap beside attention."""


def suffices(shape: tuple[int, ...]) -> bool:
    """Whether kinds u8[B, N, query tiles, key tiles] are not empty and fit into registers."""
    rows, columns = map(pl.next_power_of_2, shape[2:])
    return 0 not in shape and rows * columns <= _LARGEST


def lists(kinds: Array, *, room: int, side: Side, interpret: bool = False) -> TileLists:
    """The lists of `_lists`, by a kernel.

    Args:
        kinds: u8[B or 1, N or 1, query tiles, key tiles] of `TileKind`.
        room: The width of the lists.
        side: Whether the rows are of queries or of keys.
        interpret: Whether Pallas' interpreter runs it, on any device.
    """
    *heads, queries, keys = kinds.shape
    rows, columns = (keys, queries) if side == "key" else (queries, keys)
    of_rows = made((*heads, rows), jnp.int32)
    results = pl.pallas_call(
        functools.partial(_kernel, rows=rows, columns=columns, room=room, side=side),
        grid=(*heads, rows),
        out_shape=[made((*heads, rows, room), jnp.int32), *[of_rows] * 3],
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=8),
        name="attention_lists",
    )(kinds)
    return TileLists(*results)


def _kernel(
    kinds_ref: Ref,
    tiles_ref: Ref,
    full_ref: Ref,
    counts_ref: Ref,
    order_ref: Ref,
    *,
    rows: int,
    columns: int,
    room: int,
    side: Side,
) -> None:
    batch, head, mine = map(pl.program_id, range(3))
    row, column, place = (jnp.arange(pl.next_power_of_2(n)) for n in (rows, columns, room))

    def kinds(row: Array, column: Array) -> Array:
        at = (column, row) if side == "key" else (row, column)
        inside = (row < rows) & (column < columns)
        return plgpu.load(kinds_ref.at[batch, head, *at], mask=inside, other=0).astype(jnp.int32)

    counts = (kinds(row[:, None], column[None, :]) != TileKind.EMPTY).astype(jnp.int32).sum(axis=1)
    kind = kinds(jnp.full_like(column, mine), column)
    is_full, is_partial = (
        (kind == which).astype(jnp.int32) for which in (TileKind.FULL, TileKind.PARTIAL)
    )
    full, partial = is_full.sum(), is_partial.sum()
    count = full + partial
    rank_full, rank_partial = jnp.cumsum(is_full), jnp.cumsum(is_partial)
    # The place of each tile among all of the row: full, partial, then empty ones. What lies behind
    # the kinds is empty, so it comes last, and is not stored.
    of_empty = count + column - rank_full - rank_partial
    of_others = jnp.where(is_full > 0, rank_full, full + rank_partial) - 1
    places = jnp.where(kind == TileKind.EMPTY, of_empty, of_others)
    tiles = jnp.where(places[:, None] == place[None, :], column[:, None], 0).sum(axis=0)
    plgpu.store(tiles_ref.at[batch, head, mine, place], tiles, mask=place < room)
    full_ref[batch, head, mine] = full
    counts_ref[batch, head, mine] = count
    is_before = (counts > count) | ((counts == count) & (row < mine))
    order_ref[batch, head, is_before.astype(jnp.int32).sum()] = mine
