"""The kinds of a mask's tiles, in one call."""

from shapeexec.attention._grid import TileGrid
from shapeexec.attention._lists import before_lengths, kinds_of
from shapeexec.attention.masks._base import Array, Mask


def tile_kinds(mask: Mask, grid: TileGrid) -> Array:
    """The kind of each tile, u8[B or 1, N or 1, query tiles, key tiles]; NumPy's if all is known.

    Args:
        mask: Its arrays must be known if `grid.xp` is NumPy.
        grid: The tiles and the valid lengths.
    """
    return before_lengths(kinds_of(mask.bounds(grid), grid), grid)
