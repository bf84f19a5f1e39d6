"""Lists of tiles that a formula gives, as queries see their first keys: none need be made."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class Reach:
    """The keys that each query sees, if they are the first ones.

    Attributes:
        offset: Query i sees the keys up to i + offset; None: all.
        from_end: Whether the last query and the last key count as the same position, not the first.
    """

    offset: int | None = None
    from_end: bool = False

    def bounds(
        self, row: Any, lengths: tuple[Any, Any], *, tile: tuple[int, int], xp: Any = jnp
    ) -> tuple[Any, Any]:
        """The numbers of full tiles and of all tiles of a row with a valid query, i32.

        Args:
            row: The number of the row of tiles.
            lengths: The valid lengths of queries and keys.
            tile: Queries and keys of a tile.
            xp: `numpy`, or what has its `where`, `minimum` and `maximum` for traced numbers.
        """
        (of_row, of_column), first = tile, row * tile[0]
        last = xp.minimum(first + of_row, lengths[0]) - 1
        full = divide(self._keys(first, lengths, xp=xp), of_column, xp=xp)
        count = divide(self._keys(last, lengths, xp=xp) + (of_column - 1), of_column, xp=xp)
        return xp.where(first + of_row <= lengths[0], full, 0), count

    def order(self, place: Any, length: Any, *, of_row: int, xp: Any = jnp) -> Any:
        """The row at a place of the order of rows, longest first; `length`: of the queries."""
        if self.offset is None:
            return place
        valid = divide(length + (of_row - 1), of_row, xp=xp)
        return xp.where(place < valid, valid - 1 - place, place)

    def ends_in_one(self, tile: tuple[int, int]) -> bool:
        """Whether of each row's tiles only the last one may hold a key that a query does not see.

        For the argument see `bounds`.
        """
        queries, keys = tile
        if self.offset is None:
            return True
        return not self.from_end and self.offset % keys == 0 and keys % queries == 0

    @property
    def may_be_empty(self) -> bool:
        """Whether a query may see no key, where all keys are valid."""
        return self.offset is not None and (self.from_end or self.offset < 0)

    def _keys(self, query: Any, lengths: tuple[Any, Any], *, xp: Any) -> Any:
        """The number of valid keys that a query sees."""
        query_length, key_length = lengths
        if self.offset is None:
            return key_length
        seen = query + (self.offset + 1)
        if self.from_end:
            seen = seen + (key_length - query_length)
        return xp.minimum(xp.maximum(seen, 0), key_length)  # a `clip` costs kernels a trace


def divide(number: Any, by: Any, *, xp: Any) -> Any:
    """The quotient, rounded down, of numbers that are not negative, i32.

    A traced `//` would be several operations.
    """
    divisor = np.int32(by) if isinstance(by, int) else by
    return number // divisor if xp is np else lax.div(number, divisor)
