"""The base class of masks, and the two views that a mask is evaluated on: elements and tiles.

A mask is a pytree: its arrays are leaves, so it goes through `jax.jit` and, with references in
their place, into a kernel. It never builds an array of queries by keys. The views are made by
`_positions`, `_grid` and the back ends.
"""

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._value import Array, Value, saturated

_Function = TypeVar("_Function", bound=Callable[..., Any])
Tile = tuple[int, int]
"""Queries and keys of a tile."""


class TileKind(enum.IntEnum):
    """The part of a tile that a mask allows."""

    EMPTY = 0  # nothing: it is skipped
    PARTIAL = 1  # not known to be one of the others: the mask is evaluated for each pair
    FULL = 2  # all pairs: the mask is not evaluated


class Positions(Protocol):
    """The elements of one tile, as a mask sees them.

    `query` and `key` broadcast against each other to the tile. The back end decides which array
    library makes them, and whether the arrays of a mask are arrays or references.

    Attributes:
        batch: The example, i32[]. Under `vmap` mapped examples are merged into the batch, and this
            is the number in the merged batch, as in the mask's arrays. See `Value.of_merged`.
        head: The query head, i32[].
        query: Positions of the queries, i32, from 0.
        key: Positions of the keys, i32, from 0.
        query_length: The valid length of the queries, i32[].
        key_length: The valid length of the keys, i32[].
    """

    @property
    def batch(self) -> Array: ...
    @property
    def head(self) -> Array: ...
    @property
    def query(self) -> Array: ...
    @property
    def key(self) -> Array: ...
    @property
    def query_length(self) -> Array: ...
    @property
    def key_length(self) -> Array: ...

    def of_batch(self, array: Array) -> Array:
        """The element of array[B or 1] for this example."""
        ...

    def of_head(self, array: Array) -> Array:
        """The element of array[B or 1, N or 1] for this head."""
        ...

    def of_queries(self, array: Array) -> Array:
        """The elements of array[B or 1, T] at these queries; broadcasts like `query`."""
        ...

    def of_keys(self, array: Array) -> Array:
        """The elements of array[B or 1, S] at these keys; broadcasts like `key`."""
        ...

    def of_pairs(self, array: Array) -> Array:
        """The elements of array[B or 1, N or 1, T or 1, S or 1] at these pairs."""
        ...

    def of_tile(self, array: Array, tile: Tile) -> Array:
        """The elements of array[B or 1, N or 1, query tiles, key tiles], of tiles of size `tile`.

        The result is one number if these positions lie within one such tile.
        """
        ...

    def of_table(self, array: Array, index: Array) -> Array:
        """The elements of array[B or 1, N or 1, entries] at `index`, which broadcasts to the tile.

        Only score modifiers need it.
        """
        ...


class Tiles(Protocol):
    """All tiles of a call at once, by their first and last positions.

    Everything broadcasts to [B or 1, N or 1, query tiles, key tiles]. Arrays are NumPy's, and `xp`
    is `numpy`, if everything is known; inside `jax.jit` it is `jax.numpy`. Positions behind the
    valid lengths are ignored, and results for a tile wholly behind them are unspecified.

    Attributes:
        xp: The array library.
        sizes: T and S, of the arrays.
        tile: Queries and keys of a tile.
        batch: B; None: unknown.
        heads: N; None: unknown.
        first_query: The first query of each tile, i32.
        last_query: The last query of each tile before the valid length, i32.
        first_key: The first key of each tile, i32.
        last_key: The last key of each tile before the valid length, i32.
        query_length: The valid length of the queries, i32.
        key_length: The valid length of the keys, i32.
    """

    @property
    def xp(self) -> Any: ...
    @property
    def sizes(self) -> tuple[int, int]: ...
    @property
    def tile(self) -> Tile: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def heads(self) -> int | None: ...
    @property
    def first_query(self) -> Array: ...
    @property
    def last_query(self) -> Array: ...
    @property
    def first_key(self) -> Array: ...
    @property
    def last_key(self) -> Array: ...
    @property
    def query_length(self) -> Array: ...
    @property
    def key_length(self) -> Array: ...

    def of_batch(self, array: Array) -> Array:
        """array[B or 1] in terms of these tiles."""
        ...

    def range_of_queries(self, array: Array) -> tuple[Array, Array]:
        """Least and largest element of array[B or 1, T] in each query tile."""
        ...

    def range_of_keys(self, array: Array) -> tuple[Array, Array]:
        """Least and largest element of array[B or 1, S] in each key tile."""
        ...

    def any_and_all(self, array: Array) -> tuple[Array, Array]:
        """Whether any and whether all of bool array[B or 1, N or 1, T or 1, S or 1], by tile."""
        ...

    def range_of_tiles(self, array: Array, tile: Tile) -> tuple[Array, Array]:
        """The least and largest of array[B or 1, N or 1, query tiles, key tiles] in each tile.

        Args:
            array: One element per tile of size `tile`, over the same T and S.
            tile: The tile size of the array; it may differ from the size of these tiles.
        """
        ...

    def whole(self) -> "Tiles":
        """These tiles with full valid lengths."""
        ...

    def answers(self, mask: "Mask") -> tuple[Array, Array]:
        """Whether any and whether all pairs of each tile are allowed, by evaluating each pair.

        Args:
            mask: Its arrays must be known. Valid lengths are ignored.

        Returns:
            NumPy's bool[B or 1, N or 1, query tiles, key tiles] each.
        """
        ...

    def asks_for(self, mask: "Mask") -> tuple[bool, bool]:
        """Whether a mask may depend on the example, and on the head."""
        ...


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Bounds on the pairs of whole tiles, known without evaluating each pair.

    Attributes:
        some: False only where no pair of the tile is allowed.
        all: True only where every pair of the tile is allowed.
        exact: Whether both hold in the other direction too.
    """

    some: Array
    all: Array
    exact: bool = False


class MaskTruthError(ConfigError, TypeError):
    """A mask was used as a truth value."""


class Mask(Value, abc.ABC):
    """Which keys each query may attend to. Joined by `&`, `|` and `~`, with bool arrays too.

    A mask is a frozen dataclass (`eq=False`: it compares by its arrays' values). A subclass says
    in `axes` which axes the arrays in its fields have.
    """

    @abc.abstractmethod
    def allows(self, at: Positions) -> Array:
        """Whether each pair of a tile is allowed, as bool broadcastable to the tile."""

    @abc.abstractmethod
    def bounds(self, tiles: Tiles) -> Bounds:
        """Bounds on all tiles; exact where that is cheap, else safe."""

    def __and__(self, other: Any) -> "Mask":
        return _JOINS["&"](self, other)

    def __rand__(self, other: Any) -> "Mask":
        return _JOINS["&"](other, self)

    def __or__(self, other: Any) -> "Mask":
        return _JOINS["|"](self, other)

    def __ror__(self, other: Any) -> "Mask":
        return _JOINS["|"](other, self)

    def __invert__(self) -> "Mask":
        return _JOINS["~"](self)

    def __bool__(self) -> NoReturn:
        # `Causal() and SlidingWindow(4)` would silently be only the second mask.
        raise MaskTruthError(
            f"{self!r} has no truth value.",
            why="`and`, `or` and `not` would drop one of two masks",
            fix="join masks by &, | and ~; ask `mask is not None` for whether there is one",
        )


_JOINS: dict[str, Callable[..., Mask]] = {}
"""The functions behind the operators of masks. `_joined` fills it, as it imports this module."""


def joins(operator: Literal["&", "|", "~"]) -> Callable[[_Function], _Function]:
    """Register the decorated function as an operator of masks; it takes the operands in order."""

    def register(function: _Function) -> _Function:
        assert operator not in _JOINS
        _JOINS[operator] = function
        return function

    return register


def number(where: Positions | Tiles, value: Array) -> Array:
    """An int, or array[B or 1], in terms of a tile or of all tiles; see `saturated`."""
    return saturated(value) if isinstance(value, int) else where.of_batch(value)
