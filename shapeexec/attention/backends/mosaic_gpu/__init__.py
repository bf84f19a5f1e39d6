"""The back end for Hopper GPUs: block-sparse kernels in Pallas Mosaic GPU.

It takes bf16 and fp16, masks whose element rules Mosaic lowers, and biases without a gradient. Only
tiles with work are visited; padding behind valid lengths never affects a result. This module
prepares calls; the kernels are in the modules beside it.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import (
    Residuals,
    Side,
    Signature,
    TileLists,
    Tiling,
    Work,
    is_valid,
    whole_tiles,
)
from shapeexec.attention.backends.mosaic_gpu import _few, _support
from shapeexec.attention.backends.mosaic_gpu._any_length import (
    rule_of_any_length,
    signature_of_any_length,
)
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._elements import as_operand
from shapeexec.attention.backends.mosaic_gpu._forward import forward
from shapeexec.attention.backends.mosaic_gpu._gradients import Rows
from shapeexec.attention.backends.mosaic_gpu._into_queries import is_possible
from shapeexec.attention.backends.mosaic_gpu._join import joined, joined_output
from shapeexec.attention.backends.mosaic_gpu._of_keys import backward_at_once, backward_of_keys
from shapeexec.attention.backends.mosaic_gpu._of_queries import backward_of_queries
from shapeexec.attention.backends.mosaic_gpu._packing import (
    packed,
    packed_queries,
    packing_of,
    unpacked,
)
from shapeexec.attention.backends.mosaic_gpu._pieces import (
    default_piece,
    piece_of,
    takes_whole_tiles,
)
from shapeexec.attention.backends.mosaic_gpu._rules import rule_of
from shapeexec.attention.backends.mosaic_gpu._shares import share
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    MANY,
    TILE,
    FirstTiles,
    ListRefs,
    Packing,
    copied_rows,
)
from shapeexec.attention.backends.mosaic_gpu._totals import crosses_programs, is_single
from shapeexec.attention.masks import And, Full, Lengths, Mask, Positions, ScoreModifier

_LONG = 8
"""From this mean number of tiles in a row on, one kernel is faster than two, with 128 columns of
keys; with 64 from half of it on. See docs/adr/0009."""

_INTERPRETED_PROGRAMS = 2
"""The number of programs in the interpreter."""


class MosaicGpu:
    """See the module.

    Attributes:
        name: See `TunableBackend`.
        shares_lists: See `SharingBackend`.
        interpret: Parameters of Pallas' GPU interpreter, to run on the CPU; None: on the device.
    """

    name = "mosaic_gpu"
    shares_lists = True

    def __init__(self, interpret: Any = None) -> None:
        self.interpret = interpret

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """The tile that two warpgroups compute together; few queries are one tile."""
        del mask
        return (signature.query_size if _few.are_few(signature) else TILE), TILE

    def tilings(self, signature: Signature, mask: Mask) -> tuple[Tiling, ...]:
        """The default; and, if forward can take a whole tile of keys at a time, the other piece."""
        own = Tiling(self.tile(signature, mask))
        if signature.is_backward or _few.are_few(signature) or not takes_whole_tiles(signature):
            return (own,)
        other = TILE if default_piece(signature) < TILE else TILE // 2
        return own, dataclasses.replace(own, piece=other)

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """See `Backend`. It takes half precision, heads up to 256, and makes no bias gradient."""
        if self.interpret is None and (reason := _support.of_device(platform)):
            return reason
        if _few.are_few(signature) and (reason := _few.refusal_of_work(signature)):
            return reason
        return _support.of_call(signature, mask)

    def reads_pages(self, signature: Signature) -> bool:
        """See `PagedBackend`. It does for few queries, if pages need no padding."""
        size = signature.page_size
        if size is None or size % _few.PAGE_ROWS or not _few.are_few(signature):
            return False
        return not any(map(_missing_columns, (signature.head_size, signature.value_size)))

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        prepared = self._prepare(signature, work, bias=bias)
        if _few.are_few(signature):
            return _forward_of_few(prepared, q=q, k=k, v=v)
        arrays = _as_copied(q=q, k=k, v=v)
        out, *statistics = forward(prepared.config, prepared.sparsity(side="query"), **arrays)
        queries = signature.query_size
        logsumexp = prepared.config.weights.logsumexp([x[:, :, :queries] for x in statistics])
        logsumexp = jnp.where(is_valid(work.query_lengths, queries)[:, None], logsumexp, -jnp.inf)
        return out[:, :queries, :, : signature.value_size], logsumexp

    def backward(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        d_out: Array,
        d_logsumexp: Array | None,
        deterministic: bool,
        bias_gradient: bool = False,
    ) -> tuple[Array, Array, Array, Any]:
        """See `Backend`."""
        del bias_gradient
        operands, out = (residuals.q, residuals.k, residuals.v), residuals.out
        prepared = self._prepare(signature, work, bias=residuals.bias)
        config, by_query = prepared.config, prepared.sparsity(side="query")
        arrays = _as_copied(q=residuals.q, k=residuals.k, v=residuals.v)
        ends = _as_copied(out=out, d_out=d_out)

        def again() -> list[Array]:
            _, *statistics = forward(config, by_query, **arrays)
            return statistics

        queries = signature.query_size
        to_whole = ((0, 0), (0, 0), (0, whole_tiles(queries, TILE) - queries))
        logsumexp = jnp.pad(residuals.logsumexp, to_whole, constant_values=-jnp.inf)
        alive = is_valid(work.query_lengths, logsumexp.shape[2])[:, None]
        dead = ~alive | (logsumexp == -jnp.inf)
        of_weights = config.weights.of_gradient(logsumexp, dead, again)
        given = [] if d_logsumexp is None else [d_logsumexp]
        d_logsumexps = [jnp.where(dead, 0.0, jnp.pad(x, to_whole)) for x in given]
        by_key = prepared.sparsity(side="key")
        if self.fuses(config, work, queries=queries, deterministic=deterministic):
            addend = jnp.where(dead, 0.0, jnp.pad(-_sum_of_products(out, d_out), to_whole))
            rows = Rows(of_weights, functools.reduce(operator.add, d_logsumexps, addend))
            d_q, d_k, d_v = backward_at_once(
                config, by_key, rows=rows, **arrays, d_out=ends["d_out"]
            )
        else:
            d_q, addend = backward_of_queries(
                config, by_query, of_weights=of_weights, d_logsumexp=d_logsumexps, **arrays, **ends
            )
            rows = Rows(of_weights, addend)
            d_k, d_v = backward_of_keys(config, by_key, rows=rows, **arrays, d_out=ends["d_out"])
        gradients = (
            gradient[:, : x.shape[1], :, : x.shape[3]]
            for gradient, x in zip((d_q, d_k, d_v), operands, strict=True)
        )
        return (*gradients, None)

    def fuses(self, config: Config, work: Work, *, queries: int, deterministic: bool) -> bool:
        """Whether one kernel for all three gradients is allowed, and faster than two.

        One kernel needs an f32 array that is zeroed, added to and rounded, which is worth its cost
        if rows of tiles are long. If their length is unknown at trace time, two kernels run. If dq
        does not cross programs, it needs no such array, and each run gives the same bits.
        """
        if not crosses_programs(config):
            return is_possible(config)
        row = (work.density or 0.0) * queries / TILE
        is_faster = row >= _LONG * config.columns[0] / 128
        return not deterministic and is_possible(config) and is_faster

    def _prepare(self, signature: Signature, work: Work, *, bias: Any) -> "_Prepared":
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
            programs=_device.multiprocessors() if self.interpret is None else _INTERPRETED_PROGRAMS,
            any_length=general is not None,
            interpret=self.interpret,
        )
        return _Prepared(signature, config, work, leaves, packing)


backend = MosaicGpu()


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
class _Prepared:
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

    def sparsity(self, *, side: Side) -> Sparsity:
        """The sparsity operands of a kernel whose rows are queries, or keys."""
        known = zip(self.leaves, self.config.rule.uses, strict=True)
        leaves = [as_operand(leaf, asked, side=side) for leaf, asked in known]
        work, signature = self.work, self.signature
        query_lengths = _if_shorter(work.query_lengths, signature.query_size)
        key_lengths = _if_shorter(work.key_lengths, signature.key_size)
        longest = self._tile_lists(side).tiles.shape[3]
        sizes = (signature.batch, signature.query_size, signature.key_size, longest)
        return Sparsity(
            self._lists(side),
            query_lengths,
            key_lengths,
            leaves,
            jnp.asarray(sizes, jnp.int32),
            longest=min(longest, MANY),
        )

    def _tile_lists(self, side: Side) -> TileLists:
        return self.work.by_key if side == "key" else self.work.by_query

    def _lists(self, side: Side) -> ListRefs | FirstTiles:
        lists = self._tile_lists(side)
        are_few = _few.are_few(self.config.signature)
        if lists.reach is not None:
            of_row = self.config.signature.query_size if are_few else TILE
            return FirstTiles(of_row, lists.reach)
        tiles, order = lists.tiles, lists.order
        if is_single(self.config) and not are_few:
            # They hold only 0 and are not read; as arrays of their own XLA would fill them anew.
            tiles, order = lists.counts[..., None], lists.counts
        elif self.work.by_query.reach is not None and _is_in_turn(order):
            order = None  # at all lengths, or a kernel would not serve all
        arrays = (tiles, lists.full, lists.counts, order)
        return ListRefs(*(x if x is None else jnp.asarray(x, jnp.int32) for x in arrays))


def _forward_of_few(prepared: _Prepared, *, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """See `Backend.forward`."""
    config, work, signature = prepared.config, prepared.work, prepared.signature
    counts, packing = work.by_query.counts, prepared.packing
    assert packing is not None
    batch, heads = signature.batch, signature.query_heads // packing.heads
    alike = heads if counts.shape[1] == 1 else 1
    xp: Any = np if isinstance(counts, np.ndarray) else jnp
    of_groups = xp.broadcast_to(counts[..., 0], (batch, heads // alike)).reshape(-1)
    longest = work.by_query.tiles.shape[-1]
    # A program that finds no work ends at once, and their number is part of a kernel's text.
    programs = (
        config.programs if config.any_length else min(config.programs, batch * heads * longest)
    )
    shares, parts = share(of_groups, longest=longest, programs=programs, alike=alike)
    arrays = _as_copied(q=packed_queries(packing, q), k=k, v=v)
    shares = jax.tree.map(jnp.asarray, shares)
    results = _few.forward_of_few(
        config,
        packing,
        prepared.sparsity(side="query"),
        shares=shares,
        pages=work.pages,
        **arrays,
    )
    # XLA drops what nobody reads: on the device the value, and mostly the statistics.
    value, statistics = joined(config.weights, shares, results, parts=parts, rows=packing.rows)
    as_given = functools.partial(unpacked, packing, batch=batch)
    if config.interpret is None:
        size = signature.value_size
        made = jax.ShapeDtypeStruct((batch, packing.queries, signature.query_heads, size), q.dtype)
        out = joined_output(config.weights, packing, shares, results, made=made, parts=parts)
    else:  # which has no numbers of single threads
        out = as_given(value[..., : signature.value_size]).transpose(0, 2, 1, 3)
    alive = is_valid(work.query_lengths, signature.query_size)
    logsumexp = config.weights.logsumexp([as_given(x) for x in statistics])
    out = jnp.where(alive[:, :, None, None], out, 0).astype(q.dtype)
    return out, jnp.where(alive[:, None], logsumexp, -jnp.inf)


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


def _as_copied(**arrays: Array) -> dict[str, Array]:
    """Arrays [B, T, N, H] padded so that the TMA unit can copy tiles of them.

    It clips tiles at an array's end, but needs multiples of 8 rows and 64 columns. Padding to these
    costs a pass over the array.
    """
    return {name: _one_as_copied(array) for name, array in arrays.items()}


def _one_as_copied(array: Array) -> Array:
    _, rows_given, _, size = array.shape
    rows = copied_rows(rows_given) - rows_given
    columns = _missing_columns(size)
    return jnp.pad(array, ((0, 0), (0, rows), (0, 0), (0, columns))) if rows or columns else array


def _missing_columns(size: int) -> int:
    return 0 if size % 64 == 0 or (size < 64 and size % 8 == 0) else -size % 64


def _sum_of_products(out: Array, d_out: Array) -> Array:
    product = out.astype(np.float32) * d_out.astype(np.float32)
    return product.sum(-1).transpose(0, 2, 1)
