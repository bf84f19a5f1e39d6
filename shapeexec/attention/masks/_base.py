"""What a mask is: who may attend to whom, told of elements and of whole tiles.

A mask is a pytree: its arrays are leaves, so that it goes through `jax.jit` and, with references
in their place, into a kernel. It never builds an array of queries by keys by itself.
"""

import abc
import dataclasses
from typing import Any, Protocol

Array = Any


class Positions(Protocol):
    """The elements of one tile, as a mask sees them.

    `query` and `key` broadcast against each other to the tile. Which array library makes them,
    and whether an array that a mask holds is an array or a reference, is the back end's matter.

    Attributes:
        batch: The example, i32[].
        head: The query head, i32[].
        query: Positions of the queries, i32, from 0.
        key: Positions of the keys, i32, from 0.
        query_size: How many queries there are truly, i32[].
        key_size: How many keys there are truly, i32[].
    """

    batch: Array
    head: Array
    query: Array
    key: Array
    query_size: Array
    key_size: Array

    def of_queries(self, array: Array) -> Array:
        """The elements of array[B or 1, T] at these queries; broadcasts like `query`."""
        ...

    def of_keys(self, array: Array) -> Array:
        """The elements of array[B or 1, S] at these keys; broadcasts like `key`."""
        ...

    def of_pairs(self, array: Array) -> Array:
        """The elements of array[B or 1, N or 1, T or 1, S or 1] at these pairs."""
        ...

    def of_tile(self, array: Array) -> Array:
        """The element of array[B or 1, N or 1, query tiles, key tiles] for this tile."""
        ...

    def of_head(self, array: Array) -> Array:
        """The element of array[N] for this head."""
        ...


class Tiles(Protocol):
    """All tiles at once: between which positions each lies.

    Everything is broadcastable to [B or 1, N or 1, query tiles, key tiles]. Arrays are NumPy's
    while everything is known, and `xp` is then `numpy`; inside `jax.jit` it is `jax.numpy`.

    Attributes:
        xp: The array library.
        first_query, last_query: Of each tile, i32; the last one that is in the array.
        first_key, last_key: Likewise.
        query_size, key_size: How many there are truly, i32.
    """

    xp: Any
    first_query: Array
    last_query: Array
    first_key: Array
    last_key: Array
    query_size: Array
    key_size: Array

    def range_of_queries(self, array: Array) -> tuple[Array, Array]:
        """Least and largest element of array[B or 1, T] in each query tile."""
        ...

    def range_of_keys(self, array: Array) -> tuple[Array, Array]:
        """Least and largest element of array[B or 1, S] in each key tile."""
        ...

    def any_and_all(self, array: Array) -> tuple[Array, Array]:
        """Of bool array[B or 1, N or 1, T or 1, S or 1], whether any and whether all of a tile."""
        ...

    def of_tile(self, array: Array) -> Array:
        """array[B or 1, N or 1, query tiles, key tiles] in terms of these tiles."""
        ...


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What is known of whole tiles without looking at each element.

    Attributes:
        some: False where surely no pair of the tile is allowed.
        all: True where surely every pair of the tile is allowed.
    """

    some: Array
    all: Array


class Mask(abc.ABC):
    """Which keys each query may attend to. Joined by `&`, `|` and `~`."""

    @abc.abstractmethod
    def allows(self, at: Positions) -> Array:
        """Whether each pair of a tile is allowed, as bool broadcastable to the tile."""

    @abc.abstractmethod
    def bounds(self, tiles: Tiles) -> Bounds:
        """What is known of all tiles; exact where that is cheap, and never wrong."""
