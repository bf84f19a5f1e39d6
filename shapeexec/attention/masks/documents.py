"""The mask of packed documents: several sequences in one row, none sees another."""

import dataclasses
from typing import ClassVar

import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles
from shapeexec.attention.masks._value import as_array, set_field


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """A query attends to the keys whose id equals its own.

    Attributes:
        query_ids: int[B or 1, T], or int[T] for all examples alike.
        key_ids: int[B or 1, S], or int[S]. None: those of the queries.
    """

    axes: ClassVar = {"query_ids": "BT", "key_ids": "BS"}

    query_ids: Array
    key_ids: Array = None

    def __post_init__(self) -> None:
        query_ids = _ids(self.query_ids, "query_ids")
        set_field(self, "query_ids", query_ids)
        key_ids = query_ids if self.key_ids is None else _ids(self.key_ids, "key_ids")
        set_field(self, "key_ids", key_ids)

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return at.of_queries(self.query_ids) == at.of_keys(self.key_ids)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact for self-attention whose ids ascend; else a tile may be empty unseen.

        Only the least and the largest id of a tile are compared: T + S elements are read.
        """
        query_low, query_high = tiles.range_of_queries(self.query_ids)
        key_low, key_high = tiles.range_of_keys(self.key_ids)
        return Bounds(
            (query_low <= key_high) & (key_low <= query_high),
            (query_low == key_high) & (key_low == query_high),
        )


def _ids(ids: Array, name: str) -> Array:
    ids = as_array(ids)
    if ids.ndim not in (1, 2) or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(
            f"{name} is {ids.dtype}{list(ids.shape)}.",
            fix="pass an integer for each position, as [T] or [B, T]",
        )
    return ids[None] if ids.ndim == 1 else ids
