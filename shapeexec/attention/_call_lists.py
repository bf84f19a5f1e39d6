"""The lists of tiles that a call visits, and the share of tiles in them, as far as it is static.

It connects two parts that do not know each other: masks, which give the kinds of their tiles, and
back ends, which loop over lists.
"""

import functools
import math

import jax
import numpy as np

from shapeexec.attention._blocks import BlockMask, refined_kinds
from shapeexec.attention._grid import TileGrid, tile_grid
from shapeexec.attention._lists import (
    before_lengths,
    lists_by_key,
    lists_by_query,
    lists_of_reach,
)
from shapeexec.attention.backends._base import TileLists
from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.masks import And, Causal, Full, Lengths, Mask
from shapeexec.attention.masks._base import Array, Tile
from shapeexec.attention.masks._value import FARTHEST, is_known

_ALL = (Full, Lengths)


def call_lists(
    mask: Mask,
    sizes: tuple[int, int],
    *,
    tile: Tile,
    batch: int,
    heads: int,
    query_lengths: Array | None = None,
    key_lengths: Array | None = None,
    shares: bool = False,
) -> tuple[TileLists, TileLists]:
    """The lists of tiles of a call, by query and by key.

    They are NumPy arrays where the mask's arrays and the valid lengths are known, and cached where
    there are neither. Otherwise they are computed in the graph, as wide as `most_keys` allows.

    Args:
        mask: Any mask; it need not contain the valid lengths.
        sizes: T and S.
        tile: Queries and keys of a tile.
        batch: B.
        heads: N.
        query_lengths: Valid lengths of the queries, i32[B or 1]; None: T.
        key_lengths: Valid lengths of the keys, i32[B or 1]; None: S.
        shares: Whether each array may have axes B and N of its own; if not, the lists are `alike`.
    """
    if query_lengths is None and key_lengths is None and not jax.tree.leaves(mask):
        return _static_lists(mask, sizes, tile=tile, batch=batch, heads=heads)
    grid = tile_grid(
        sizes,
        tile,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        known=is_known(mask),
        batch=batch,
        heads=heads,
    )
    by_query, by_key = _lists_of(mask, grid)
    return (by_query, by_key) if shares else (by_query.alike(), by_key.alike())


@functools.lru_cache(maxsize=32)  # each layer of a model asks for the same lists
def _static_lists(
    mask: Mask, sizes: tuple[int, int], *, tile: Tile, batch: int, heads: int
) -> tuple[TileLists, TileLists]:
    return _lists_of(mask, tile_grid(sizes, tile, batch=batch, heads=heads))


def _lists_of(mask: Mask, grid: TileGrid) -> tuple[TileLists, TileLists]:
    reach = _reach(mask)
    if reach is not None and reach.offset is None:
        return lists_of_reach(grid, reach), lists_of_reach(grid, reach, side="key")
    kinds = before_lengths(refined_kinds(mask, grid), grid)
    if reach is not None:
        return lists_of_reach(grid, reach), lists_by_key(kinds)
    width = None if grid.xp is np else most_keys(mask, grid.tile)
    return lists_by_query(kinds, width=width), lists_by_key(kinds)


def _reach(mask: Mask) -> Reach | None:
    """The reach of a mask that leaves each query its first keys, as far as its type tells."""
    parts = mask.masks if isinstance(mask, And) else (mask,)
    others = [part for part in parts if not isinstance(part, _ALL)]
    if not others:
        return Reach()
    if len(others) == 1 and isinstance(others[0], And):
        return _reach(others[0])
    if len(others) > 1 or type(others[0]) is not Causal or not isinstance(others[0].offset, int):
        return None
    offset = min(max(others[0].offset, -FARTHEST), FARTHEST)
    return Reach(offset, from_end=others[0].align == "end")


def most_keys(mask: Mask, tile: Tile) -> int | None:
    """An upper bound on the key tiles with work per query tile of this size; None: unknown."""
    if isinstance(mask, BlockMask) and mask.tile == tile:
        return mask.most_keys
    if isinstance(mask, And):
        known = [most for part in mask.masks if (most := most_keys(part, tile)) is not None]
        return min(known, default=None)
    return None


def static_density(mask: Mask, *, expected: float | None) -> float | None:
    """The approximate share of tiles with work, as far as it is static when a call is traced.

    That of a `BlockMask` may be known; for tiles that are chosen on the device it is an upper
    bound. Of another mask it is what the caller expects, if anything. It is rounded down to a power
    of 2, so that masks of similar density share a graph.
    """
    known = _known_density(mask)
    density = expected if known is None else known
    if density is None:
        return None
    return 2.0 ** math.floor(math.log2(density)) if density else 0.0


def _known_density(mask: Mask) -> float | None:
    if not isinstance(mask, BlockMask):
        return None
    if is_known(mask.kinds):
        return float(mask.density)
    return None if mask.most_keys is None else mask.most_keys / mask.kinds.shape[-1]
