"""The mask of packed documents: sequences in one row that do not attend to each other.

It ignores valid lengths; see `lengths`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles
from shapeexec.attention.masks._value import as_array, set_field


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """A query attends to the keys whose id equals its own.

    Attributes:
        query_ids: int[B or 1, T], or int[T] for all examples, of any integer dtype. NumPy arrays
            that do not fit into int32 are replaced by their ranks.
        key_ids: int[B or 1, S], or int[S]. None: `query_ids`.

    Example:
        >>> mask = Documents(np.array([7, 7, 8]))
        >>> tiles = sx.BlockMask.from_mask(mask, query_size=3, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    axes: ClassVar = {"query_ids": "BT", "key_ids": "BS"}

    query_ids: Array
    key_ids: Array = None

    def __post_init__(self) -> None:
        query_ids = _ids(self.query_ids, "query_ids")
        key_ids = query_ids if self.key_ids is None else _ids(self.key_ids, "key_ids")
        for name, ids in zip(("query_ids", "key_ids"), _alike(query_ids, key_ids), strict=True):
            set_field(self, name, ids)

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return at.of_queries(self.query_ids) == at.of_keys(self.key_ids)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact for self-attention with ascending ids; else it may miss empty tiles.

        It compares the least and the largest id of a tile, and reads T + S elements.
        """
        query_low, query_high = tiles.range_of_queries(self.query_ids)
        key_low, key_high = tiles.range_of_keys(self.key_ids)
        return Bounds(
            (query_low <= key_high) & (key_low <= query_high),
            (query_low == key_high) & (key_low == query_high),
        )


def _ids(ids: Array, name: str) -> Array:
    fix = "pass an integer for each position, as [T] or [B, T]"
    ids = as_array(ids, name, fix=fix)
    if ids.ndim not in (1, 2) or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(
            f"{name} is {ids.dtype}{list(ids.shape)}, not integers of 1 or 2 axes.",
            option=name,
            fix=fix,
        )
    return ids[None] if ids.ndim == 1 else ids


def _alike(query_ids: Array, key_ids: Array) -> tuple[Array, Array]:
    """Both arrays of ids in one dtype that JAX transfers without truncation.

    Raises:
        ConfigError: There is no such dtype.
    """
    both = (query_ids, key_ids)
    known = [isinstance(ids, np.ndarray) for ids in both]
    if all(known):
        if all(map(_fits, both, (np.int32, np.int32))):
            return _as_int32(query_ids), _as_int32(key_ids)
        return _ranks(query_ids, key_ids)
    wanted = [_wider(ids.dtype) for ids, of_host in zip(both, known, strict=True) if not of_host]
    common = np.promote_types(wanted[0], wanted[-1])
    is_held = np.issubdtype(common, np.integer) and jax.dtypes.canonicalize_dtype(common) == common
    if is_held and all(_fits(ids, common) for ids in both if isinstance(ids, np.ndarray)):
        return query_ids.astype(common), key_ids.astype(common)
    raise ConfigError(
        f"query_ids is {query_ids.dtype} and key_ids is {key_ids.dtype}: no integer dtype that JAX"
        " has here holds the ids of both.",
        option="query_ids",
        why="an id that is cast to another value would name another document",
        fix="give both one dtype, such as int32, with ids that it holds",
    )


def _fits(ids: np.ndarray, dtype: Any) -> bool:
    info = np.iinfo(dtype)
    return ids.size == 0 or (int(ids.min()) >= info.min and int(ids.max()) <= info.max)


def _as_int32(ids: np.ndarray) -> np.ndarray:
    return ids.astype(np.int32, copy=False)


def _wider(dtype: Any) -> Any:
    """A dtype of 32 bits or more."""
    return np.int32 if np.iinfo(dtype).bits < 32 else dtype


def _ranks(query_ids: np.ndarray, key_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each id among all ids, which keeps their order."""
    if not np.issubdtype(np.result_type(query_ids, key_ids), np.integer):
        query_ids, key_ids = query_ids.astype(object), key_ids.astype(object)
    every = np.unique(np.concatenate([query_ids.reshape(-1), key_ids.reshape(-1)]))
    queries, keys = (np.searchsorted(every, ids).astype(np.int32) for ids in (query_ids, key_ids))
    return queries, keys
