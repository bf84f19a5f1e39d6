"""The scores of one tile in a Triton kernel, and the operands that all kernels share.

Loading and storing tiles is in `_tiles`.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import Array

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, Side, Signature, TileLists, Work
from shapeexec.attention.backends.triton._tiles import (
    Row,
    Setting,
    Span,
    as_leaves,
    positions,
    row_of,
    shapes_of,
    storable,
)
from shapeexec.attention.masks import Mask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands that every kernel takes beside its own: a tree of arrays, or of references.

    Attributes:
        lists: The `TileLists` that drive it, as a tuple of their fields.
        lengths: Valid lengths of queries and keys, i32[B] each.
        mask: The arrays of the mask.
        bias: The arrays of the bias.
    """

    lists: tuple[Array, ...]
    lengths: tuple[Array, Array]
    mask: list[Array]
    bias: list[Array]


@dataclasses.dataclass(frozen=True)
class Given:
    """The static part of a call, for which a kernel is compiled.

    Attributes:
        setting: The setting of the kernel.
        mask: The mask, with shapes for arrays.
        bias: The bias, with shapes for arrays; or None.
    """

    setting: Setting
    mask: Mask
    bias: Any

    @property
    def signature(self) -> Signature:
        """The call's."""
        return self.setting.signature


def prepared(
    setting: Setting, lists: TileLists, *, work: Work, bias: Any
) -> tuple[Operands, Given]:
    """The operands of a call, and its static part."""
    fields = (lists.tiles, lists.full, lists.counts, lists.order)
    operands = Operands(
        fields, (work.query_lengths, work.key_lengths), storable(work.mask), storable(bias)
    )
    return operands, Given(setting, shapes_of(work.mask), shapes_of(bias))


@dataclasses.dataclass(frozen=True)
class Head:
    """One query head of one example, in a kernel.

    Attributes:
        given: The static part of the call.
        batch, head: The numbers of example and head.
        lists: References to the lists.
        lengths: Valid lengths of its queries and keys.
        mask: The mask, with references for arrays.
        bias: The bias, likewise.
    """

    given: Given
    batch: Array
    head: Array
    lists: tuple[Ref, ...]
    lengths: tuple[Array, Array]
    mask: Mask
    bias: Any

    @property
    def key_head(self) -> Array:
        """The head of k and v that it reads."""
        return self.head // np.int32(self.given.setting.signature.group)

    def row(self, number: Array) -> Row:
        """Its list for a tile."""
        return row_of(self.lists, self.batch, self.head, number, self.given.setting.kinds)

    def queries(self, tile: Array, *, some: bool) -> Span:
        """A query tile; `some`: whether queries of it may lie behind the valid length."""
        size = self.given.signature.tile[0]
        return Span(tile * size, size, self.lengths[0] if some else None)

    def keys(self, tile: Array, *, some: bool) -> Span:
        """A key tile; `some`: whether keys of it may lie behind the valid length."""
        size = self.given.signature.tile[1]
        return Span(tile * size, size, self.lengths[1] if some else None)

    def scores(
        self, q: Array, k: Array, queries: Span, keys: Span, *, masked: bool, side: Side = "query"
    ) -> _softmax.Scores:
        """The scores of a tile.

        Args:
            q: [queries, head size].
            k: [keys, head size].
            queries: Where q is.
            keys: Where k is.
            masked: Whether pairs may be forbidden.
            side: Whether queries or keys lie along the first axis.
        """
        at = positions(
            (self.batch, self.head),
            self.lengths,
            (queries.first, keys.first),
            (queries.size, keys.size),
            side=side,
        )
        plain = _softmax.times_transposed(*((k, q) if side == "key" else (q, k)))
        plain = plain * np.float32(self.given.signature.scale)
        scores, before_bias = _softmax.biased(self.bias, at, plain)
        if masked:
            scores = _softmax.masked(self.mask, at, scores)
        return _softmax.Scores(scores, before_bias)


def head_of(given: Given, operands: Operands, batch: Array, head: Array) -> Head:
    """A query head in a kernel."""
    query_length, key_length = (length[batch] for length in operands.lengths)
    return Head(
        given,
        batch,
        head,
        operands.lists,
        (query_length, key_length),
        as_leaves(operands.mask, given.mask),
        as_leaves(operands.bias, given.bias),
    )
