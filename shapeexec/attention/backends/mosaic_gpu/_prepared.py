"""The static part and the operands of a call, in the form that the kernels take.

`_backward` chooses the kernels of a gradient; what the kernels do is in the modules beside it.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Side, Signature, TileLists, Work
from shapeexec.attention.backends.mosaic_gpu import _few
from shapeexec.attention.backends.mosaic_gpu._any_length import (
    rule_of_any_length,
    signature_of_any_length,
)
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._elements import as_operand
from shapeexec.attention.backends.mosaic_gpu._packing import packed, packing_of
from shapeexec.attention.backends.mosaic_gpu._pieces import piece_of
from shapeexec.attention.backends.mosaic_gpu._rules import rule_of
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    MANY,
    TILE,
    FirstTiles,
    ListRefs,
    Packing,
    Sections,
    copied_rows,
    tiles_of,
)
from shapeexec.attention.backends.mosaic_gpu._totals import is_single
from shapeexec.attention.masks import And, Full, Lengths, Mask, Positions, ScoreModifier

_INTERPRETED_PROGRAMS = 2
"""The number of programs in the interpreter."""


def prepare(signature: Signature, work: Work, *, bias: Any, interpret: Any) -> "Prepared":
    """The call with its bias; `interpret`: see `Config`."""
    modifier = _Added(bias) if hasattr(bias, "shape") else bias
    overhangs = signature.is_ragged or signature.query_size % TILE or signature.key_size % TILE
    # A bias may hold anything behind the valid lengths, so with a bias the mask checks them.
    mask = work.mask if bias is not None and overhangs else _without_lengths(work.mask)
    rule, of_kernels = rule_of(mask, modifier), dataclasses.replace(signature, batch=0)
    leaves, packing = jax.tree.leaves((mask, modifier)), None
    lengths, piece = "TS", None
    if _few.are_few(signature):
        list_heads = work.by_query.counts.shape[1]
        packing = packing_of(signature, rule, list_heads=list_heads, most_rows=_few.MOST_ROWS)
        (rule, leaves), lengths = packed(rule, leaves, packing), "S"
    general = rule_of_any_length(signature, rule, lengths=lengths)
    if general is not None:
        rule = general
        if not (signature.is_backward or _few.are_few(signature)):
            piece = piece_of(signature)
        of_kernels = signature_of_any_length(of_kernels, lengths=lengths, piece=piece)
    config = Config(
        signature=of_kernels,
        rule=rule,
        programs=_device.multiprocessors() if interpret is None else _INTERPRETED_PROGRAMS,
        any_length=general is not None,
        interpret=interpret,
    )
    return Prepared(signature, config, work, leaves, packing)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Added(ScoreModifier):
    """A bias given as an array.

    Attributes:
        array: float[B or 1, N or 1, T or 1, S or 1].
    """

    axes: ClassVar = {"array": "BNTS"}

    array: Array

    def modify(self, at: Positions, scores: Array) -> Array:
        """See `ScoreModifier`."""
        return scores + at.of_pairs(self.array).astype(scores.dtype)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The static part and the operands of a call, in the form that the kernels take.

    Attributes:
        signature: The call's signature.
        config: The static part of the call.
        work: The tiles.
        leaves: The arrays of mask and bias.
        packing: How few queries are packed, for which rule and arrays are made, too; else None.
    """

    signature: Signature
    config: Config
    work: Work
    leaves: list[Array]
    packing: Packing | None = None

    def sparsity(
        self, *, side: Side, of_row: int = TILE, span: tuple[int, int] | None = None
    ) -> Sparsity:
        """The sparsity operands of a kernel whose rows are queries, or keys.

        Args:
            side: Which of them.
            of_row: The positions of a row; others than a tile's are for `FirstTiles` only.
            span: The first of the heads of that side that have items, counted over all examples,
                and their number; None: all have.
        """
        known = zip(self.leaves, self.config.rule.uses, strict=True)
        leaves = [as_operand(leaf, asked, side=side) for leaf, asked in known]
        work, signature = self.work, self.signature
        query_lengths = _if_shorter(work.query_lengths, signature.query_size)
        key_lengths = _if_shorter(work.key_lengths, signature.key_size)
        longest = self._tile_lists(side).tiles.shape[3]
        heads, size = signature.query_heads, signature.query_size
        if side == "key":
            heads, size = signature.key_heads, signature.key_size
        sections = Sections.of(
            *(span or (0, signature.batch * heads)),
            rows=tiles_of(size, of_row),
            columns=self.config.read_columns(side),
        )
        sizes = signature.batch, signature.query_size, signature.key_size, longest, *sections
        return Sparsity(
            self._lists(side, of_row),
            query_lengths,
            key_lengths,
            leaves,
            jnp.asarray(sizes, jnp.int32),
            longest=min(longest, MANY),
        )

    @property
    def mean_row(self) -> float:
        """The mean number of tiles with work in a row of keys, as far as it is known; else 0."""
        return (self.work.density or 0.0) * self.signature.query_size / TILE

    def _tile_lists(self, side: Side) -> TileLists:
        return self.work.by_key if side == "key" else self.work.by_query

    def _lists(self, side: Side, of_row: int) -> ListRefs | FirstTiles:
        lists = self._tile_lists(side)
        are_few = _few.are_few(self.config.signature)
        if lists.reach is not None:
            is_whole = are_few and side == "query"
            return FirstTiles(self.config.signature.query_size if is_whole else of_row, lists.reach)
        tiles, order = lists.tiles, lists.order
        if is_single(self.config) and not are_few:
            # They hold only 0 and are not read; as arrays of their own XLA would fill them anew.
            tiles, order = lists.counts[..., None], lists.counts
        elif self.work.by_query.reach is not None and _is_in_turn(order):
            order = None  # at all lengths, or a kernel would not serve all
        arrays = (tiles, lists.full, lists.counts, order)
        return ListRefs(*(x if x is None else jnp.asarray(x, jnp.int32) for x in arrays))


def _is_in_turn(order: Any) -> bool:
    """Whether orders are known to be 0, 1, 2, ..., which XLA would make by a kernel each time."""
    return isinstance(order, np.ndarray) and bool((order == np.arange(order.shape[-1])).all())


def _if_shorter(lengths: Any, size: int) -> Any:
    """Valid lengths as an operand; None if they are known to be the whole size."""
    if isinstance(lengths, np.ndarray) and (lengths == size).all():
        return None
    return jnp.asarray(lengths, jnp.int32)


def _without_lengths(mask: Mask) -> Mask:
    """The mask without the call's own valid lengths, which the kernels handle themselves."""
    if not isinstance(mask, And):
        return Full() if mask == Lengths() else mask
    return functools.reduce(operator.and_, map(_without_lengths, mask.masks))


def as_copied(**arrays: Array) -> dict[str, Array]:
    """Arrays [B, T, N, H] padded so that the TMA unit can copy tiles of them.

    It clips tiles at an array's end, but needs multiples of 8 rows and 64 columns. Padding to these
    costs a pass over the array.
    """
    return {name: _one_as_copied(array) for name, array in arrays.items()}


def _one_as_copied(array: Array) -> Array:
    _, rows_given, _, size = array.shape
    rows = copied_rows(rows_given) - rows_given
    columns = missing_columns(size)
    return jnp.pad(array, ((0, 0), (0, rows), (0, 0), (0, columns))) if rows or columns else array


def missing_columns(size: int) -> int:
    return 0 if size % 64 == 0 or (size < 64 and size % 8 == 0) else -size % 64
