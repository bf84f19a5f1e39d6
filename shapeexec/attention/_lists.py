"""The kinds of a mask's tiles, and the lists of tiles that kernels loop over.

Numbers known at trace time are computed with NumPy and become constants of the graph. The rest is
a few operations on one number per tile, without a sort of tiles, or one kernel (`_lists_kernel`;
on a Hopper `_lists_hopper`).
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.attention._grid import TileGrid
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Side, TileLists
from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.masks._base import Array, Bounds, TileKind
from shapeexec.attention.masks._value import is_known

_WIDEST_PRODUCT = 1024
"""The most tiles of a row that are counted by a product, as its constant grows by the square."""

_EMPTY, _PARTIAL, _FULL = map(np.uint8, (TileKind.EMPTY, TileKind.PARTIAL, TileKind.FULL))


def kinds_of(bounds: Bounds, grid: TileGrid) -> Array:
    """Bounds as kinds, u8[B or 1, N or 1, query tiles, key tiles], without the valid lengths."""
    xp = grid.xp
    kinds = xp.where(bounds.all, _FULL, xp.where(bounds.some, _PARTIAL, _EMPTY))
    return xp.broadcast_to(kinds, (*kinds.shape[:2], *grid.shape))


def before_lengths(kinds: Array, grid: TileGrid) -> Array:
    """Apply valid lengths to kinds: tiles across their end become partial, tiles behind it empty.

    So a kernel may read all of a full tile.
    """
    (query_length, key_length), (tile_q, tile_k) = grid.lengths, grid.tile
    some = (grid.first_query < query_length) & (grid.first_key < key_length)
    whole = (grid.first_query + tile_q <= query_length) & (grid.first_key + tile_k <= key_length)
    at_most = grid.xp.where(whole, _FULL, grid.xp.where(some, _PARTIAL, _EMPTY))
    return grid.xp.minimum(kinds, at_most)


def lists_by_query(kinds: Array, *, width: int | None = None) -> TileLists:
    """The lists of key tiles, one for each query tile.

    Args:
        kinds: u8[B or 1, N or 1, query tiles, key tiles] of `TileKind`.
        width: The capacity of each list. None: the length of the longest list if the kinds are
            known, else the number of key tiles. For traced kinds it is not checked, and tiles that
            do not fit are lost: pass an upper bound.

    Returns:
        The lists, with the axes B and N of `kinds`.

    Raises:
        ConfigError: The kinds are known, and `width` is less than the longest list.

    Inside `jax.jit` this costs two products of the kinds with a constant square matrix (in long
    rows two cumulative sums), a scatter of one number per tile, and a sort of the counts; on an
    NVIDIA GPU one kernel, if there are not too many tiles.
    """
    return _lists(kinds, width, side="query")


def lists_by_key(kinds: Array, *, width: int | None = None) -> TileLists:
    """The lists of query tiles, one for each key tile; else as `lists_by_query`."""
    return _lists(kinds, width, side="key")


def _lists(kinds: Array, width: int | None, *, side: Side) -> TileLists:
    columns = kinds.shape[-2 if side == "key" else -1]
    if is_known(kinds):
        lists = _by_operations(np.asarray(kinds), room=columns, side=side)
        room = min(_longest(lists.counts, width), columns)
        return dataclasses.replace(lists, tiles=np.ascontiguousarray(lists.tiles[..., :room]))
    if kinds.shape[-2:] == (1, 1):
        return _of_one_tile(kinds)
    options: dict[str, Any] = {"room": min(width or columns, columns), "side": side}
    by_operations = functools.partial(_by_operations, **options)
    kernel = _kernel_for(kinds.shape)
    if kernel is None:
        return by_operations(kinds)
    return lax.platform_dependent(
        kinds, cuda=functools.partial(kernel, **options), default=by_operations
    )


def lists_of_reach(grid: TileGrid, reach: Reach, *, side: Side = "query") -> TileLists:
    """The lists of one side, where each query sees its first keys; by key only if it sees all.

    So only the counts are computed, with NumPy if the lengths are known: on a GPU one kernel, which
    XLA may fuse. The other arrays are constants that examples share, but for the order of rows.
    """
    axes = (0, 1) if side == "query" else (1, 0)
    xp, (rows, columns) = grid.xp, (grid.shape[axis] for axis in axes)
    of_row, of_column = (grid.tile[axis] for axis in axes)
    row_length, column_length = (xp.asarray(grid.lengths[axis])[..., 0] for axis in axes)
    row, tiles = (np.arange(size, dtype=np.int32) for size in (rows, columns))
    lengths = (row_length, column_length)
    full, counts = reach.bounds(row, lengths, tile=(of_row, of_column), xp=xp)
    is_valid = row * of_row < row_length
    full, counts = (xp.where(is_valid, x, 0) for x in (full, counts))
    order = reach.order(row[None, None], row_length, of_row=of_row, xp=xp)
    width = _longest(counts, None) if xp is np else columns
    tiles = xp.broadcast_to(tiles[:width], (1, 1, rows, width))
    return TileLists(tiles, full, counts, xp.asarray(order), reach=reach)


def _of_one_tile(kinds: Array) -> TileLists:
    """The lists of one tile, which XLA fuses into what makes the kinds: no kernel is started."""
    kinds = kinds[..., 0]
    counts = (kinds != TileKind.EMPTY).astype(np.int32)
    zeros = jnp.zeros_like(counts)
    return TileLists(zeros[..., None], (kinds == TileKind.FULL).astype(np.int32), counts, zeros)


def _kernel_for(shape: tuple[int, ...]) -> Callable[..., TileLists] | None:
    """The kernel that makes the lists on the GPU at hand; None if there is none, or not for it."""
    capability = _device.compute_capability()
    if capability is None or capability < _device.OLDEST_FOR_TRITON:
        return None
    if capability == _device.HOPPER and _compat.pallas_has("mosaic_gpu"):
        from shapeexec.attention.backends.mosaic_gpu import _support  # noqa: PLC0415 - see below

        if _support.of_device("cuda") is None:
            from shapeexec.attention import _lists_hopper  # noqa: PLC0415 - nor is Mosaic

            return _lists_hopper.lists if _lists_hopper.suffices(shape) else None
    if not _compat.pallas_has("triton"):
        return None
    from shapeexec.attention import _lists_kernel  # noqa: PLC0415 - Triton is not everywhere

    return _lists_kernel.lists if _lists_kernel.suffices(shape) else None


def _by_operations(kinds: Array, *, room: int, side: Side) -> TileLists:
    if side == "key":
        kinds = kinds.swapaxes(-1, -2)
    xp: Any = np if isinstance(kinds, np.ndarray) else jnp
    if side == "key" and xp is jnp:
        # Without it XLA makes both sides' lists in one layout, which is slow for one of them.
        kinds = lax.optimization_barrier(kinds)
    columns = kinds.shape[-1]
    is_full, is_partial = kinds == TileKind.FULL, kinds == TileKind.PARTIAL
    rank_full, rank_partial = _running_count(is_full), _running_count(is_partial)
    full, partial = rank_full[..., -1], rank_partial[..., -1]
    counts = full + partial
    # The place of each tile among all of its row: full, partial, then empty ones. A permutation,
    # so the scatter writes every place once and what lies behind the counts is a tile too.
    column = np.arange(columns, dtype=np.int32).reshape((1,) * (kinds.ndim - 1) + (-1,))
    place_empty = counts[..., None] + (column - rank_full - rank_partial)
    place_partial = full[..., None] + rank_partial - 1
    place = xp.where(is_full, rank_full - 1, xp.where(is_partial, place_partial, place_empty))
    order = xp.argsort(-counts, axis=-1, stable=True).astype(np.int32)
    return TileLists(_scatter(place, column, room=room), full, counts, order)


def _running_count(chosen: Array) -> Array:
    if isinstance(chosen, np.ndarray):
        return np.cumsum(chosen, -1, dtype=np.int32)
    # On a GPU a cumulative sum is a chain of kernels, which costs more than it adds up. A product
    # is one, and exact: zeros and ones in any precision, summed in f32.
    width = chosen.shape[-1]
    if width > _WIDEST_PRODUCT:
        return jnp.cumsum(chosen, -1, dtype=np.int32)
    return jnp.dot(chosen.astype(np.float32), np.triu(np.ones((width, width), np.float32))).astype(
        np.int32
    )


def _longest(counts: Any, width: int | None) -> int:
    longest = int(counts.max(initial=1))
    if width is not None and longest > width:
        raise ConfigError(
            f"width={width}, but a list holds {longest} tiles.",
            option="width",
            fix=f"width={longest} or more, or None",
        )
    return width or longest


def _scatter(place: Array, column: np.ndarray, *, room: int) -> Array:
    if isinstance(place, np.ndarray):
        tiles = np.empty(place.shape, np.int32)
        np.put_along_axis(tiles, place, np.broadcast_to(column, place.shape), -1)
        return tiles[..., :room]
    index = tuple(np.ix_(*map(np.arange, place.shape))[:-1])
    empty = jnp.zeros((*place.shape[:-1], room), np.int32)
    columns = jnp.broadcast_to(column, place.shape)
    return empty.at[(*index, place)].set(columns, mode="drop", unique_indices=True)
