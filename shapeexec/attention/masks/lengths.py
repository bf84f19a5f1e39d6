"""The mask of valid lengths.

The valid lengths of padded axes come with the call; `_rule` passes them on.
"""

import dataclasses
from typing import ClassVar

from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles, number
from shapeexec.attention.masks._value import as_int_or_array, set_field


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Lengths(Mask):
    """Allows pairs of queries and keys before the valid lengths.

    Attributes:
        queries: The valid length of the queries, an int or i32[B]. None: the call's own.
        keys: The valid length of the keys, an int or i32[B]. None: the call's own.
    """

    axes: ClassVar = {"queries": "B", "keys": "B"}

    queries: int | Array | None = None
    keys: int | Array | None = None

    def __post_init__(self) -> None:
        for name in ("queries", "keys"):
            if getattr(self, name) is not None:
                set_field(self, name, as_int_or_array(getattr(self, name), name))

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        queries, keys = self._sizes(at)
        return (at.query < queries) & (at.key < keys)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact."""
        queries, keys = self._sizes(tiles)
        return Bounds(
            (tiles.first_query < queries) & (tiles.first_key < keys),
            (tiles.last_query < queries) & (tiles.last_key < keys),
            exact=True,
        )

    def _sizes(self, where: Positions | Tiles) -> tuple[Array, Array]:
        queries = where.query_length if self.queries is None else number(where, self.queries)
        return queries, where.key_length if self.keys is None else number(where, self.keys)
