"""Masks that are all of a call, or a band along its diagonal: what dense kernels are told of.

They are known by what they say of these sizes: a window that is wider than the arrays is none.
"""

import dataclasses
from typing import Any, Literal

import jax

from shapeexec.attention.masks import And, Full, Lengths, Mask
from shapeexec.attention.masks.positions import Band


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """Who attends to whom: -left <= key - query <= right.

    Attributes:
        left: How many keys before its own position a query sees; None: all.
        right: How many behind it; None: all.
    """

    left: int | None = None
    right: int | None = None

    @property
    def kind(self) -> Literal["full", "causal", "band"]:
        """What it is by the usual names."""
        if self == Diagonal():
            return "full"
        return "causal" if self == Diagonal(right=0) else "band"


@dataclasses.dataclass(frozen=True)
class _Lengths:
    """As much of `Positions` as a band without arrays asks for."""

    query_length: int
    key_length: int


def diagonal_of(mask: Mask, queries: int, keys: int) -> Diagonal | None:
    """What a mask leaves of so many queries and keys; None if it is no band, or not yet known."""
    lengths: Any = _Lengths(queries, keys)
    left, right = queries - 1, keys - 1
    for part in mask.masks if isinstance(mask, And) else (mask,):
        if isinstance(part, Full) or part == Lengths():
            continue
        if not isinstance(part, Band) or jax.tree.leaves(part):
            return None
        low, high = part.limits(lengths)
        left = left if low is None else min(left, -low)
        right = right if high is None else min(right, high)
    return Diagonal(None if left == queries - 1 else left, None if right == keys - 1 else right)
