"""Masks that depend on positions only: causal, windows, prefixes and strides.

A query's and a key's position are counted from 0 in their arrays. Every bound here is exact.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import abc
import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles, number
from shapeexec.attention.masks._value import FARTHEST, as_int_or_array, set_field


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Full(Mask):
    """Every query attends to every key.

    Example:
        >>> tiles = sx.BlockMask.from_mask(Full(), query_size=2, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 1, 1], [1, 1, 1]]
    """

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return at.query >= 0

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`."""
        every = tiles.xp.ones((1, 1, 1, 1), bool)
        return Bounds(every, every, exact=True)


class Band(Mask):
    """A mask that depends on the distance of key and query only: low <= key - query <= high."""

    @abc.abstractmethod
    def limits(self, where: Positions | Tiles) -> tuple[Array | None, Array | None]:
        """The least and largest `key - query` that is allowed; None: no limit."""

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        low, high = self.limits(at)
        # Only the queries are shifted: on the whole tile there is nothing but the comparison.
        above = None if low is None else at.key >= at.query + low
        below = None if high is None else at.key <= at.query + high
        if above is None or below is None:
            return at.query >= 0 if above is below else above if below is None else below
        return above & below

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact: a tile holds every distance between those of two of its corners."""
        low, high = self.limits(tiles)
        least, largest = tiles.first_key - tiles.last_query, tiles.last_key - tiles.first_query
        some = every = tiles.xp.ones((1, 1, 1, 1), bool)
        if low is not None:
            some, every = some & (largest >= low), every & (least >= low)
        if high is not None:
            some, every = some & (least <= high), every & (largest <= high)
        return Bounds(some, every, exact=True)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Causal(Band):
    """A query attends to keys up to its own position: key <= query + offset.

    Attributes:
        offset: The number of additional keys that each query sees; an int or i32[B], may be < 0.
        align: `"start"`: query 0 stands at key 0, as in `jax.nn`. `"end"`: the last query stands
            at the last key, as when a few new queries meet a cache of keys. It uses the valid
            lengths, so it is right under padding too.

    Example:
        >>> tiles = sx.BlockMask.from_mask(Causal(), query_size=2, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0]]
        >>> tiles = sx.BlockMask.from_mask(Causal(align="end"), query_size=2, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 1, 0], [1, 1, 1]]
    """

    axes: ClassVar = {"offset": "B"}

    offset: int | Array = 0
    align: Literal["start", "end"] = "start"

    def __post_init__(self) -> None:
        set_field(self, "offset", as_int_or_array(self.offset, "offset"))
        if self.align not in ("start", "end"):
            raise ConfigError(
                f"align={self.align!r} is not an alignment.",
                option="align",
                fix='align="start" or "end"',
            )

    def limits(self, where: Positions | Tiles) -> tuple[None, Array]:
        """See `Band`."""
        offset = number(where, self.offset)
        return (
            None,
            offset + where.key_length - where.query_length if self.align == "end" else offset,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(Band):
    """A query attends to itself, `left` keys before it and `right` keys behind it.

    It is `local_window_size=(left, right)` of `jax.nn.dot_product_attention`.

    Attributes:
        left, right: The number of keys, an int or i32[B]; None: no limit on that side.

    Example:
        >>> tiles = sx.BlockMask.from_mask(SlidingWindow(1), query_size=3, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    axes: ClassVar = {"left": "B", "right": "B"}

    left: int | Array | None
    right: int | Array | None = 0

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) is not None:
                set_field(self, name, as_int_or_array(getattr(self, name), name))
        if isinstance(self.left, int) and isinstance(self.right, int) and self.left < -self.right:
            raise ConfigError(
                f"SlidingWindow({self.left}, {self.right}) allows no key.",
                option="left",
                why="it allows keys from query - left up to query + right",
                fix="left=0 or more",
            )

    def limits(self, where: Positions | Tiles) -> tuple[Array | None, Array | None]:
        """See `Band`."""
        low = None if self.left is None else -number(where, self.left)
        return low, None if self.right is None else number(where, self.right)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Global(Mask):
    """All queries attend to the first `n` keys, and the first `n` queries to all keys.

    Attributes:
        n: An int, or i32[B].

    Example:
        >>> tiles = sx.BlockMask.from_mask(Global(1), query_size=3, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    """

    axes: ClassVar = {"n": "B"}

    n: int | Array

    def __post_init__(self) -> None:
        set_field(self, "n", as_int_or_array(self.n, "n"))

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        n = number(at, self.n)
        return (at.query < n) | (at.key < n)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact: the last pair of a tile is the least global one."""
        n = number(tiles, self.n)
        return Bounds(
            (tiles.first_query < n) | (tiles.first_key < n),
            (tiles.last_query < n) | (tiles.last_key < n),
            exact=True,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PrefixLM(Mask):
    """All queries attend to the first `n` keys; beyond them it is causal.

    Attributes:
        n: An int, or i32[B].

    Example:
        >>> tiles = sx.BlockMask.from_mask(PrefixLM(2), query_size=3, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    axes: ClassVar = {"n": "B"}

    n: int | Array

    def __post_init__(self) -> None:
        set_field(self, "n", as_int_or_array(self.n, "n"))

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return (at.key < number(at, self.n)) | (at.key <= at.query)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact: no pair of a tile is allowed less than first query with last key."""
        n = number(tiles, self.n)
        return Bounds(
            (tiles.first_key < n) | (tiles.first_key <= tiles.last_query),
            (tiles.last_key < n) | (tiles.last_key <= tiles.first_query),
            exact=True,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """A query attends to itself and each `step`-th key before and behind it.

    Attributes:
        step: An int of at least 1, or i32[B].

    Example:
        >>> tiles = sx.BlockMask.from_mask(Dilated(2), query_size=3, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    """

    axes: ClassVar = {"step": "B"}

    step: int | Array

    def __post_init__(self) -> None:
        set_field(self, "step", as_int_or_array(self.step, "step"))
        if isinstance(self.step, (int, np.ndarray)) and np.less(self.step, 1).any():
            raise ConfigError(
                f"step={self.step} is less than 1.", option="step", fix="step=1 or more"
            )
        if isinstance(self.step, jax.Array):
            # Its values are unknown. 0 has one multiple, and -n has the multiples of n.
            step = jnp.where(self.step == 0, FARTHEST, abs(self.step))
            set_field(self, "step", step.astype(np.int32))

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return (at.key - at.query) % number(at, self.step) == 0

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact: a tile holds every distance between those of two of its corners."""
        step = number(tiles, self.step)
        least, largest = tiles.first_key - tiles.last_query, tiles.last_key - tiles.first_query
        some = largest - largest % step >= least
        return Bounds(some, some & ((step == 1) | (least == largest)), exact=True)
