"""Recognizes full masks and bands along the diagonal, for dense kernels such as cuDNN's.

It compares them at the call's sizes: a window that is wider than the arrays is a full mask.
"""

import dataclasses
from typing import Any, Literal

import jax

from shapeexec.attention.masks import And, Full, Lengths, Mask
from shapeexec.attention.masks.positions import Band


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """A band of pairs: -left <= key - query <= right.

    Attributes:
        left: The number of keys before its own position that a query attends to; None: all.
        right: The number of keys after its own position; None: all.
    """

    left: int | None = None
    right: int | None = None

    @property
    def kind(self) -> Literal["full", "causal", "band"]:
        """The usual name of the mask."""
        if self == Diagonal():
            return "full"
        return "causal" if self == Diagonal(right=0) else "band"


@dataclasses.dataclass(frozen=True)
class _Lengths:
    """The attributes of `Positions` that a band without arrays reads."""

    query_length: int
    key_length: int


def diagonal_of(mask: Mask, *, queries: int, keys: int) -> Diagonal | None:
    """The band of a mask at these sizes; None if it is not a band, or traced."""
    lengths: Any = _Lengths(queries, keys)
    left: Any = queries - 1
    right: Any = keys - 1  # ints, for the mask holds no array
    for part in mask.masks if isinstance(mask, And) else (mask,):
        if isinstance(part, Full) or part == Lengths():
            continue
        if not isinstance(part, Band) or jax.tree.leaves(part):
            return None
        low, high = part.limits(lengths)
        left = left if low is None else min(left, -low)
        right = right if high is None else min(right, high)
    return Diagonal(None if left == queries - 1 else left, None if right == keys - 1 else right)
