"""Block masks: the kind of each tile of a mask, as an array.

A `BlockMask` is made from an array, from any mask, or on the device from scores. It is itself a
mask, so it can be joined with others. `_lists` makes the lists that kernels loop over.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.attention._evaluate import asks_for, look_into
from shapeexec.attention._grid import TileGrid, tile_grid
from shapeexec.attention._lists import kinds_of
from shapeexec.attention._positions import Gathered, Replaced
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tile, TileKind, Tiles
from shapeexec.attention.masks._value import Value, as_array, is_known, set_field
from shapeexec.attention.masks.dense import Dense
from shapeexec.attention.masks.positions import Full

_KINDS = tuple(map(int, TileKind))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BlockMask(Mask):
    """A mask given by the kind of each tile.

    Attributes:
        kinds: u8[B or 1, N or 1, query tiles, key tiles] of `TileKind`; also with fewer axes.
        tile: Queries and keys of a tile.
        length: T and S, the total numbers of queries and of keys.
        elements: The mask inside partial tiles. None: all pairs of them are allowed.
        most_keys: An upper bound on the key tiles with work of a query tile, for traced kinds; it
            bounds the length of the lists.

    Example:
        >>> mask = BlockMask.from_mask(sx.Causal(), query_size=4, key_size=4, tile=(2, 2))
        >>> mask.kinds[0, 0].tolist()  # 0: empty, 1: partial, 2: full
        [[1, 0], [2, 1]]
    """

    axes: ClassVar = {"kinds": "BN--"}

    kinds: Array
    tile: Tile
    length: tuple[int, int]
    elements: Mask | None = None
    most_keys: int | None = None

    def __post_init__(self) -> None:
        set_field(self, "tile", _check_tile(self.tile))
        set_field(self, "length", tuple(map(operator.index, self.length)))
        fix = "pass integers: 0 for an empty, 1 for a partial, 2 for a full tile"
        kinds = as_array(self.kinds, "kinds", fix=fix)
        if isinstance(kinds, np.ndarray) and not np.isin(kinds, _KINDS).all():
            raise ConfigError(
                f"kinds is {kinds.dtype}{list(kinds.shape)} with values other than 0, 1 and 2.",
                option="kinds",
                fix=fix,
            )
        count = _count(self.length, self.tile)
        if not 2 <= kinds.ndim <= 4 or kinds.shape[-2:] != count:
            raise ConfigError(
                f"kinds has shape {list(kinds.shape)}, not {count[0]} x {count[1]} tiles.",
                option="kinds",
                got=f"{self.length[0]} queries and {self.length[1]} keys in tiles of {self.tile}",
                fix=f"pass uint8[B or 1, N or 1, {count[0]}, {count[1]}]: a TileKind for each tile",
            )
        set_field(self, "kinds", kinds.astype(np.uint8)[(None,) * (4 - kinds.ndim)])

    @classmethod
    def from_dense(cls, array: Array, tile: Tile = (128, 128)) -> "BlockMask":
        """Find the tiles of an array, which is kept for its partial tiles only.

        Args:
            array: bool[B or 1, N or 1, T, S]; also with fewer axes.
            tile: Queries and keys of a tile.

        Returns:
            The block mask of T queries and S keys, with the array for its partial tiles.

        Raises:
            ConfigError: The array is not of bool, or has fewer than two axes.
        """
        dense = Dense(array)
        query_size, key_size = dense.array.shape[2:]
        return cls.from_mask(dense, query_size=query_size, key_size=key_size, tile=tile)

    @classmethod
    def from_mask(
        cls,
        mask: Mask,
        *,
        query_size: int,
        key_size: int,
        tile: Tile = (128, 128),
        batch: int | None = None,
        heads: int | None = None,
    ) -> "BlockMask":
        """Find the tiles of a mask; exact where its arrays are known.

        It takes one byte of memory per tile. Where `Mask.bounds` does not decide the kind of a
        tile, it takes time for each pair of the tile.

        Args:
            mask: Any mask.
            query_size: T.
            key_size: S.
            tile: Queries and keys of a tile.
            batch: B; needed if a mask function depends on the example.
            heads: N; needed if a mask function depends on the head.

        Returns:
            The block mask; its kinds have an axis of B or N where the mask depends on that.

        Raises:
            ConfigError: T or S is symbolic, as while an `Exec` traces, or an array of the mask
                does not fit them.
        """
        sizes: tuple[Any, ...] = (query_size, key_size)  # whatever the caller passes
        for size in sizes:
            if not isinstance(size, (int, np.integer)):
                raise ConfigError(
                    f"BlockMask.from_mask got {size} positions, a size that is symbolic while an"
                    " Exec traces.",
                    option="key_size" if size is key_size else "query_size",
                    where=_compat.describe_line(_compat.user_place()),
                    why="a block mask holds one kind per tile, so it needs the number of tiles",
                    fix="mask=mask in place of mask=BlockMask.from_mask(mask, ...)",
                )
        sizes = (int(query_size), int(key_size))
        tile = _check_tile(tile)
        mask.check_axes({"T": query_size, "S": key_size})
        grid = tile_grid(sizes, tile, known=is_known(mask), batch=batch, heads=heads)
        kinds = refined_kinds(mask, grid)
        # Examples may share kinds but differ in pairs; `to_dense` reads B and N from this shape.
        asked = zip(asks_for(mask), (batch, heads), kinds.shape, strict=False)
        shape = (many if asks and many else one for asks, many, one in asked)
        kinds = grid.xp.broadcast_to(kinds, (*shape, *kinds.shape[2:]))
        is_partial = not is_known(kinds) or bool((kinds == TileKind.PARTIAL).any())
        return cls(kinds, tile, sizes, mask if is_partial else None)

    @classmethod
    def from_topk(
        cls,
        scores: Array,
        k: int,
        *,
        tile: Tile,
        length: tuple[int, int],
        within: Mask | None = None,
        always: Mask | None = None,
    ) -> "BlockMask":
        """Keep the k key tiles with the highest scores of each query tile.

        It runs inside `jax.jit`: a row has at most k tiles, and k is static. No gradient flows to
        the scores.

        Args:
            scores: float[B or 1, N or 1, query tiles, key tiles]; also with fewer axes. A tile
                with NaN or -inf is never chosen; among equal scores the first tile is.
            k: The most key tiles of a query tile.
            tile: Queries and keys of a tile.
            length: T and S.
            within: Only pairs that this mask allows, such as `Causal()`; a tile that it empties
                is not chosen.
            always: A tile in which this mask allows a pair, such as `SlidingWindow(0)` for the
                diagonal, is chosen before all others, and counts among the k.

        Returns:
            A block mask whose tiles are full, or partial where `within` says so.

        Raises:
            ConfigError: The scores do not fit the tiles, k is below 1, or `always` needs more
                than k tiles of a row.
        """
        _check_tile(tile)
        count = _count(length, tile)
        fix = f"pass scores as [B, N, {count[0]}, {count[1]}]: one for each pair of tiles"
        scores = as_array(scores, "scores", fix=fix)
        if not 2 <= scores.ndim <= 4 or scores.shape[-2:] != count:
            raise ConfigError(
                f"scores has shape {list(scores.shape)}, not {count[0]} x {count[1]} tiles.",
                option="scores",
                got=f"{length[0]} queries and {length[1]} keys in tiles of {tile}",
                fix=fix,
            )
        if k < 1:
            raise ConfigError(
                f"k={k} leaves no key tile to attend to.", option="k", fix="k=1 or more"
            )
        k = min(k, count[1])
        allowed = _kinds(Full() if within is None else within, length, tile=tile)
        values = jnp.asarray(scores)[(None,) * (4 - scores.ndim)]
        values = jnp.where(jnp.isnan(values) | (allowed == TileKind.EMPTY), -jnp.inf, values)
        if always is not None:
            required = _kinds(always, length, tile=tile) != TileKind.EMPTY
            kept = required & (allowed != TileKind.EMPTY)
            _check_room(kept, k)
            values = jnp.where(kept, jnp.inf, values)
        best, index = jax.lax.top_k(values, k)
        chosen = jnp.put_along_axis(
            jnp.zeros(values.shape, bool), index, best > -jnp.inf, -1, inplace=False
        )
        kinds = jnp.where(chosen, allowed, np.uint8(TileKind.EMPTY))
        return cls(kinds, tile, length, within, most_keys=k)

    @property
    def density(self) -> Array:
        """The share of tiles with work, f32[] or a float; 1 / density bounds the speed-up."""
        if is_known(self.kinds):
            return float((np.asarray(self.kinds) != TileKind.EMPTY).mean())
        return (self.kinds != TileKind.EMPTY).mean(dtype=np.float32)

    def to_dense(self) -> Array:
        """Write the mask out as bool[B or 1, N or 1, T, S]; a NumPy array if its arrays are."""
        return to_dense(self, self.length, batch=len(self.kinds), heads=self.kinds.shape[1])

    def plot(self, *, batch: int = 0, head: int = 0, axes: Any = None) -> Any:
        """Draw the tiles of one head with matplotlib, and return the axes drawn on.

        Args:
            batch: The example.
            head: The query head.
            axes: matplotlib axes to draw on; None makes new ones.

        Returns:
            The matplotlib axes.
        """
        from shapeexec.attention._plot import plot_kinds  # noqa: PLC0415 - asks for matplotlib

        return plot_kinds(self, batch, head=head, axes=axes)

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        kind = at.of_tile(self.kinds, self.tile)
        if self.elements is None:
            return kind != TileKind.EMPTY
        # `kinds` are those of arrays of full length, so `elements` is asked with that length.
        query_length, key_length = map(np.int32, self.length)
        whole: Any = Replaced(at, query_length=query_length, key_length=key_length)
        is_allowed = (kind == TileKind.PARTIAL) & self.elements.allows(whole)
        return (kind == TileKind.FULL) | is_allowed

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact as far as the kinds are for tiles of this size; else a safe bound."""
        kinds, missing = self.kinds, _missing(self.kinds, _count(tiles.sizes, self.tile))
        if any(missing):  # arrays are longer under padding, whose tiles are ignored
            kinds = tiles.xp.pad(kinds, [(0, 0), (0, 0), *((0, more) for more in missing)])
        least, largest = tiles.range_of_tiles(kinds, self.tile)
        if self.elements is None:
            is_same = tiles.tile == self.tile
            return Bounds(largest != TileKind.EMPTY, least != TileKind.EMPTY, exact=is_same)
        some, every = largest != TileKind.EMPTY, least == TileKind.FULL
        if tiles.tile != self.tile:
            inner = self.elements.bounds(tiles.whole())
            some = (largest == TileKind.FULL) | (some & inner.some)
            every = every | ((least != TileKind.EMPTY) & inner.all)
        return Bounds(some, every)

    def check_axes(self, lengths: Any) -> None:
        """See `Value`; the lengths too.

        Raises:
            ConfigError: T or S differs from the block mask's, or an array of the mask does not fit.
        """
        for axis, mine in zip("TS", self.length, strict=True):
            # `==` of symbolic sizes, too: an Exec that traces decides it and keeps a guard.
            if lengths.get(axis) is not None and not lengths[axis] == mine:
                raise ConfigError(
                    f"a BlockMask for {axis}={mine} in a call with {axis}={lengths[axis]}.",
                    option="mask",
                    where=_compat.describe_line(_compat.user_place()),
                    fix=f"make the block mask for {axis}={lengths[axis]}",
                )
        Value.check_axes(self, lengths)

    def __repr__(self) -> str:
        (queries, keys), (tile_q, tile_k) = self.length, self.tile
        parts = [f"{queries} x {keys}", f"tiles of {tile_q} x {tile_k}", *self._kinds_as_text()]
        if self.elements is not None:
            parts.append(f"partial tiles: {self.elements!r}")
        return f"BlockMask({'; '.join(parts)})"

    def _kinds_as_text(self) -> list[str]:
        if not isinstance(self.kinds, (np.ndarray, jax.Array)) or self.kinds.ndim != 4:
            return [f"kinds={self.kinds!r}"]  # the leaves of a tree may hold other objects
        batch, heads, *count = self.kinds.shape
        parts = [
            f"{count[0]} x {count[1]} of them",
            f"batch {batch}" if batch > 1 else "shared by the batch",
            f"heads {heads}" if heads > 1 else "shared by heads",
        ]
        if not is_known(self.kinds):
            most = self.most_keys
            return [*parts, "traced" if most is None else f"at most {most} in a row"]
        counts = np.bincount(np.asarray(self.kinds).reshape(-1), minlength=3)
        names = zip(counts, ("empty", "partial", "full"), strict=True)
        of_each = ", ".join(f"{n} {name}" for n, name in names)
        return [*parts, of_each, f"density {self.density:.1%}"]


def refined_kinds(mask: Mask, grid: TileGrid) -> Array:
    """The kinds of a mask's tiles at full length; exact where all arrays are known.

    Args:
        mask: Its arrays must be known if `grid.xp` is NumPy.
        grid: The tiles and valid lengths; with `batch` and `heads` if the mask depends on them.

    Returns:
        u8[B or 1, N or 1, query tiles, key tiles].
    """
    bounds = mask.bounds(grid)
    kinds = kinds_of(bounds, grid)
    return kinds if bounds.exact or grid.xp is not np else _refine(mask, kinds, grid=grid)


def to_dense(mask: Mask, sizes: tuple[int, int], *, batch: int = 1, heads: int = 1) -> Array:
    """A mask as bool[batch, heads, T, S]; a NumPy array if the mask's arrays are."""
    whole = np.asarray(sizes, np.int32)
    at = Gathered(
        np.arange(batch, dtype=np.int32).reshape(-1, 1, 1, 1),
        np.arange(heads, dtype=np.int32).reshape(1, -1, 1, 1),
        np.arange(sizes[0], dtype=np.int32).reshape(1, 1, -1, 1),
        np.arange(sizes[1], dtype=np.int32).reshape(1, 1, 1, -1),
        *whole,
    )
    allowed = mask.allows(at)
    xp: Any = np if isinstance(allowed, (np.ndarray, np.generic)) else jnp
    return xp.broadcast_to(allowed, (batch, heads, *sizes))


def _refine(mask: Mask, kinds: np.ndarray, *, grid: TileGrid) -> np.ndarray:
    """Decide partial tiles by their elements, under the lengths of each example."""
    batch = max(len(kinds), *(len(length) for length in grid.lengths))
    kinds = np.broadcast_to(kinds, (batch, *kinds.shape[1:])).copy()
    by_batch, by_head = asks_for(mask)
    if (by_batch and grid.batch != kinds.shape[0] == 1) or (
        by_head and grid.heads != kinds.shape[1] == 1
    ):
        return kinds  # one kind would have to serve examples that differ
    tiles = np.argwhere(kinds == TileKind.PARTIAL)
    some, every = look_into(mask, tiles, tile=grid.tile, lengths=grid.lengths)
    kinds[tuple(tiles[~some].T)] = TileKind.EMPTY
    kinds[tuple(tiles[some & every].T)] = TileKind.FULL
    return kinds


def _kinds(mask: Mask, sizes: tuple[int, int], *, tile: Tile) -> Array:
    return refined_kinds(mask, tile_grid(sizes, tile, known=is_known(mask)))


def _count(sizes: tuple[int, int], tile: Tile) -> tuple[int, int]:
    return tile_grid(sizes, tile).shape


def _missing(kinds: Array, count: tuple[int, int]) -> tuple[int, ...]:
    return tuple(want - have for have, want in zip(kinds.shape[2:], count, strict=True))


def _check_tile(tile: Any) -> Tile:
    is_pair = isinstance(tile, tuple) and len(tile) == 2
    if not is_pair or not all(isinstance(n, (int, np.integer)) and n > 0 for n in tile):
        raise ConfigError(
            f"tile={tile!r} is not a pair of positive integers.",
            option="tile",
            fix="tile=(128, 128), for 128 queries and 128 keys",
        )
    return int(tile[0]), int(tile[1])


def _check_room(kept: Array, k: int) -> None:
    if not is_known(kept):
        return
    most = int(np.asarray(kept).sum(-1).max(initial=0))
    if most > k:
        raise ConfigError(
            f"k={k}, but `always` keeps {most} tiles of a query tile.",
            option="k",
            fix=f"k={most} or more",
        )
