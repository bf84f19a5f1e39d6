"""What a mask is: who may attend to whom, told of elements and of whole tiles.

A mask is a pytree: its arrays are leaves, so that it goes through `jax.jit` and, with references
in their place, into a kernel. It never builds an array of queries by keys by itself.
"""

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._value import Value, saturated

Array = Any
_Function = TypeVar("_Function", bound=Callable[..., Any])
Tile = tuple[int, int]
"""Queries and keys of a tile."""


class TileKind(enum.IntEnum):
    """How much of a tile a mask allows; what of it there is to do."""

    EMPTY = 0  # nothing: it is skipped
    PARTIAL = 1  # not known to be one of the others: each pair is asked
    FULL = 2  # all pairs: nobody asks


class Positions(Protocol):
    """The elements of one tile, as a mask sees them.

    `query` and `key` broadcast against each other to the tile. Which array library makes them,
    and whether an array that a mask holds is an array or a reference, is the back end's matter.

    Attributes:
        batch: The example, i32[]. Under `vmap` mapped examples are merged into the batch, and this
            is the number among all: what a mask asks arrays of. See `Value.of_merged`.
        head: The query head, i32[].
        query: Positions of the queries, i32, from 0.
        key: Positions of the keys, i32, from 0.
        query_length: How many queries there are truly, i32[].
        key_length: How many keys there are truly, i32[].
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

        One number where these positions lie in one such tile.
        """
        ...

    def of_table(self, array: Array, index: Array) -> Array:
        """The elements of array[B or 1, N or 1, entries] at `index`, which broadcasts to the tile.

        Only score modifiers need it.
        """
        ...


class Tiles(Protocol):
    """All tiles at once: between which positions each lies.

    Everything is broadcastable to [B or 1, N or 1, query tiles, key tiles]. Arrays are NumPy's
    while everything is known, and `xp` is then `numpy`; inside `jax.jit` it is `jax.numpy`.
    What lies behind the valid lengths does not count, and what is said of a tile wholly behind them
    means nothing.

    Attributes:
        xp: The array library.
        sizes: T and S, of the arrays.
        tile: Queries and keys of a tile.
        batch: B, or None if nobody told.
        heads: N, or None if nobody told.
        first_query: Of each tile, i32.
        last_query: The last one before the valid length.
        first_key: Likewise.
        last_key: Likewise.
        query_length: How many there are truly, i32.
        key_length: Likewise.
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
        """Of bool array[B or 1, N or 1, T or 1, S or 1], whether any and whether all of a tile."""
        ...

    def range_of_tiles(self, array: Array, tile: Tile) -> tuple[Array, Array]:
        """Least and largest of array[B or 1, N or 1, query tiles, key tiles] in each tile.

        Args:
            array: One element per tile of size `tile`, over the same T and S.
            tile: May differ from the size of these tiles.
        """
        ...

    def whole(self) -> "Tiles":
        """The same tiles where every query and key counts."""
        ...

    def answers(self, mask: "Mask") -> tuple[Array, Array]:
        """Whether any and whether all pairs of each tile are allowed, by asking for each pair.

        Args:
            mask: Its arrays known. Lengths do not count here, and B and N only if it asks for
                examples or heads.

        Returns:
            NumPy's bool[B or 1, N or 1, query tiles, key tiles] each.
        """
        ...

    def asks_for(self, mask: "Mask") -> tuple[bool, bool]:
        """Whether a mask may differ from example to example, and from head to head."""
        ...


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What is known of whole tiles without looking at each element.

    Attributes:
        some: False where surely no pair of the tile is allowed.
        all: True where surely every pair of the tile is allowed.
        exact: Whether these say all there is to say: no closer look at a tile finds more.
    """

    some: Array
    all: Array
    exact: bool = False


class MaskTruthError(ConfigError, TypeError):
    """A mask was asked whether it is true."""


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
        """What is known of all tiles; exact where that is cheap, and never wrong."""

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
        # `Causal() and SlidingWindow(4)` would silently be the second one alone.
        raise MaskTruthError(
            f"{self!r} has no truth value.",
            why="`and`, `or` and `not` would drop one of two masks",
            fix="join masks by &, | and ~; ask `mask is not None` for whether there is one",
        )


_JOINS: dict[str, Callable[..., Mask]] = {}
"""What the operators of masks call. `_joined` fills it: masks made of masks import this module."""


def joins(operator: Literal["&", "|", "~"]) -> Callable[[_Function], _Function]:
    """Make the decorated function what an operator of masks calls, with its operands in order."""

    def register(function: _Function) -> _Function:
        assert operator not in _JOINS
        _JOINS[operator] = function
        return function

    return register


def number(where: Positions | Tiles, value: Array) -> Array:
    """An int, or array[B or 1], in terms of a tile or of all tiles; see `saturated`."""
    return saturated(value) if isinstance(value, int) else where.of_batch(value)
