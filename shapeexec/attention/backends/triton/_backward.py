"""The gradient kernels: of q by query tile, of k and v by key tile, of a bias by pair of tiles.

No two programs write to one place, so equal calls give equal bits. The weights are recomputed from
the log-sum-exp. Since the weights of a query sum to 1, a score's gradient is weight * (d_weight -
delta), where delta is the sum of the output times its gradient, less the gradient of the
log-sum-exp. The first kernel writes delta for the others.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, Residuals, Side, TileLists, Work, made
from shapeexec.attention.backends.triton._forward import statistics
from shapeexec.attention.backends.triton._scores import Given, Head, Operands, head_of, prepared
from shapeexec.attention.backends.triton._tiles import (
    Setting,
    Span,
    in_order,
    load_numbers,
    load_rows,
    padded,
    store_numbers,
    store_pairs,
    store_rows,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arrays:
    """The operands of the gradients: a tree of arrays, or of references.

    Attributes:
        q, k, v: The operands of the call.
        d_out: The gradient of the output.
        shift, factor: See `_softmax.weights_again`; f32[B, N, T].
    """

    q: Array
    k: Array
    v: Array
    d_out: Array
    shift: Array
    factor: Array | None


@functools.partial(jax.jit, static_argnames=("setting", "bias_gradient"))
def backward(
    work: Work,
    residuals: Residuals,
    *,
    d_out: Array,
    d_logsumexp: Array | None,
    setting: Setting,
    bias_gradient: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """The gradients of q, k, v and of a bias that is an array; None unless `bias_gradient`."""
    q, k, v, bias = residuals.q, residuals.k, residuals.v, residuals.bias
    shift, factor = _softmax.normalizer(
        residuals.logsumexp, bias, again=lambda: statistics(setting, work, q=q, k=k, v=v, bias=bias)
    )
    arrays = Arrays(q, k, v, d_out, shift, factor)
    shape = bias.shape if bias_gradient else None
    d_q, delta, *by_query = _by_query(
        setting,
        work,
        arrays=arrays,
        bias=bias,
        out=residuals.out,
        d_logsumexp=d_logsumexp,
        with_sums=shape is not None and shape[3] == 1,
    )
    over_queries = shape is not None and shape[2] == 1 != shape[3]
    d_k, d_v, *by_key = _by_key(
        setting, work, arrays=arrays, bias=bias, delta=delta, with_sums=over_queries
    )
    if shape is None:
        return d_q, d_k, d_v, None
    if by_query:
        d_bias = by_query[0][:, :, :, None]
    elif by_key:
        d_bias = by_key[0][:, :, None, :]
    else:
        d_bias = _by_pair(setting, work, arrays=arrays, bias=bias, delta=delta)
    summed = [axis for axis in range(4) if shape[axis] == 1 < d_bias.shape[axis]]
    return d_q, d_k, d_v, d_bias.sum(summed, keepdims=True).astype(bias.dtype)


# By query


def _by_query(
    setting: Setting,
    work: Work,
    *,
    arrays: Arrays,
    bias: Any,
    out: Array,
    d_logsumexp: Array | None,
    with_sums: bool,
) -> list[Array]:
    """The gradient of q; delta; and `with_sums` the scores' gradients summed over keys."""
    batch, queries, heads, _ = arrays.q.shape
    operands, given = prepared(setting, work.by_query, work=work, bias=bias)
    by_query = made((batch, heads, queries), np.float32)
    out_shape = [_like(arrays.q), by_query, *([by_query] if with_sums else [])]
    kernel = functools.partial(_query_kernel, given=given)
    grid = (work.by_query.counts.shape[2], heads, batch)
    launched = setting.launch(kernel, "gradient_by_query", grid=grid, out_shape=out_shape)
    return launched(operands, arrays, out, [] if d_logsumexp is None else [d_logsumexp])


def _query_kernel(
    operands: Operands,
    arrays: Arrays,
    out_ref: Ref,
    d_logsumexp_refs: list[Ref],
    d_q_ref: Ref,
    delta_ref: Ref,
    *sums_refs: Ref,
    given: Given,
) -> None:
    turn, head, batch = map(pl.program_id, range(3))
    own = head_of(given, operands, batch, head)
    row = own.row(in_order(operands.lists, batch, head, turn))
    queries = own.queries(row.number, some=True)
    q, d_out, out = (load_rows(x, batch, head, queries) for x in (arrays.q, arrays.d_out, out_ref))
    normalizer = _load_normalizer(arrays, own, queries, side="query")
    delta = (out.astype(np.float32) * d_out.astype(np.float32)).sum(1)
    for ref in d_logsumexp_refs:
        delta = delta - load_numbers(ref, batch, head, queries)
    store_numbers(delta_ref, batch, head, queries.first, delta)

    def step(tile: Array, carry: tuple[Array, ...], *, is_partial: bool) -> tuple[Array, ...]:
        d_q, *sums = carry
        keys = own.keys(tile, some=is_partial)
        k = load_rows(arrays.k, batch, own.key_head, keys)
        scores = own.scores(q, k, queries, keys, masked=is_partial)
        v = load_rows(arrays.v, batch, own.key_head, keys)
        d_weights = _softmax.times_transposed(d_out, v)
        d_scores = scores.weights(*normalizer) * (d_weights - delta[:, None])
        d_plain = scores.before_bias(d_scores).astype(k.dtype)
        return d_q + _softmax.times(d_plain, k), *(x + d_scores.sum(1) for x in sums)

    zeros = jnp.zeros((queries.size, padded(given.signature.head_size)), np.float32)
    no_sums = jnp.zeros((queries.size,), np.float32)
    d_q, *sums = row.each(step, (zeros, *(no_sums for _ in sums_refs)))
    store_rows(d_q_ref, batch, head, queries.first, d_q * np.float32(given.signature.scale))
    for ref, x in zip(sums_refs, sums, strict=True):
        store_numbers(ref, batch, head, queries.first, x)


# By key


def _by_key(
    setting: Setting, work: Work, *, arrays: Arrays, bias: Any, delta: Array, with_sums: bool
) -> list[Array]:
    """The gradients of k and v; and `with_sums` the scores' gradients summed over queries."""
    batch, keys, key_heads, _ = arrays.k.shape
    operands, given = prepared(setting, work.by_key, work=work, bias=bias)
    heads = setting.signature.query_heads
    by_key = made((batch, heads, keys), np.float32)
    out_shape = [_like(arrays.k), _like(arrays.v), *([by_key] if with_sums else [])]
    kernel = functools.partial(_key_kernel, given=given)
    grid = (work.by_key.counts.shape[2], key_heads, batch)
    return setting.launch(kernel, "gradient_by_key", grid=grid, out_shape=out_shape)(
        operands, arrays, delta
    )


def _key_kernel(
    operands: Operands,
    arrays: Arrays,
    delta_ref: Ref,
    d_k_ref: Ref,
    d_v_ref: Ref,
    *sums_refs: Ref,
    given: Given,
) -> None:
    signature = given.signature
    turn, key_head, batch = map(pl.program_id, range(3))
    # The heads of a group may differ in their lists: the order of the first head serves all.
    number = in_order(operands.lists, batch, key_head * np.int32(signature.group), turn)
    first = head_of(given, operands, batch, key_head * np.int32(signature.group))
    keys = first.keys(number, some=True)
    k, v = (load_rows(x, batch, key_head, keys) for x in (arrays.k, arrays.v))

    def add_head(member: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        own = dataclasses.replace(first, head=key_head * np.int32(signature.group) + member)
        sums = tuple(jnp.zeros((keys.size,), np.float32) for _ in sums_refs)
        step = functools.partial(
            _add_queries, own=own, arrays=arrays, delta_ref=delta_ref, k=k, v=v, keys=keys
        )
        d_k, d_v, sums = own.row(number).each(step, (*carry, sums))
        for ref, x in zip(sums_refs, sums, strict=True):
            store_numbers(ref, batch, own.head, keys.first, x)
        return d_k, d_v

    sizes = (padded(signature.head_size), padded(signature.value_size))
    zeros = tuple(jnp.zeros((keys.size, size), np.float32) for size in sizes)
    d_k, d_v = lax.fori_loop(np.int32(0), np.int32(signature.group), add_head, zeros)
    store_rows(d_k_ref, batch, key_head, keys.first, d_k * np.float32(signature.scale))
    store_rows(d_v_ref, batch, key_head, keys.first, d_v)


def _add_queries(
    tile: Array,
    carry: tuple[Any, ...],
    *,
    own: Head,
    arrays: Arrays,
    delta_ref: Ref,
    k: Array,
    v: Array,
    keys: Span,
    is_partial: bool,
) -> tuple[Any, ...]:
    """Add one query tile; keys lie along the first axis throughout, so nothing is transposed."""
    d_k, d_v, sums = carry
    queries = own.queries(tile, some=is_partial)
    q, d_out = (load_rows(x, own.batch, own.head, queries) for x in (arrays.q, arrays.d_out))
    delta = load_numbers(delta_ref, own.batch, own.head, queries)
    scores = own.scores(q, k, queries, keys, masked=is_partial, side="key")
    weights = scores.weights(*_load_normalizer(arrays, own, queries, side="key"))
    d_v = d_v + _softmax.times(weights.astype(d_out.dtype), d_out)
    d_scores = weights * (_softmax.times_transposed(v, d_out) - delta[None, :])
    d_plain = scores.before_bias(d_scores).astype(q.dtype)
    return d_k + _softmax.times(d_plain, q), d_v, tuple(x + d_scores.sum(1) for x in sums)


# By pair of tiles


def _by_pair(setting: Setting, work: Work, *, arrays: Arrays, bias: Array, delta: Array) -> Array:
    """The scores' gradients f32[B or 1, N or 1, T, S], summed as the bias was broadcast."""
    signature = setting.signature
    operands, given = prepared(setting, work.by_query, work=work, bias=bias)
    columns = -(-signature.key_size // signature.tile[1])
    has_work = _has_work(work.by_query, columns)
    by_batch, by_head = bias.shape[:2]
    kernel = functools.partial(_pair_kernel, given=given)
    grid = (columns, has_work.shape[2], by_batch * by_head)
    out_shape = made(bias.shape, np.float32)
    launched = setting.launch(kernel, "gradient_by_pair", grid=grid, out_shape=out_shape)
    return launched(operands, arrays, delta, has_work)


def _has_work(lists: TileLists, columns: int) -> Array:
    """Whether each tile holds work, i8[B or 1, N or 1, query tiles, key tiles]."""
    tiles = jnp.asarray(lists.tiles)
    is_listed = np.arange(tiles.shape[3], dtype=np.int32) < lists.counts[..., None]
    index = tuple(np.ix_(*map(np.arange, tiles.shape))[:-1])
    nothing = jnp.zeros((*tiles.shape[:3], columns), np.int8)
    return nothing.at[(*index, jnp.where(is_listed, tiles, columns))].set(1, mode="drop")


def _pair_kernel(
    operands: Operands,
    arrays: Arrays,
    delta_ref: Ref,
    has_work_ref: Ref,
    d_bias_ref: Ref,
    *,
    given: Given,
) -> None:
    signature = given.signature
    column, row, part = map(pl.program_id, range(3))
    counts = (signature.batch, signature.query_heads)
    parts = d_bias_ref.shape[:2]
    # Along an axis that the bias was broadcast over, this program sums.
    summed = [1 if own > 1 else count for own, count in zip(parts, counts, strict=True)]
    start = (part // np.int32(parts[1]), part % np.int32(parts[1]))

    def add(number: Array, total: Array) -> Array:
        batch = start[0] + number // np.int32(summed[1])
        head = start[1] + number % np.int32(summed[1])
        shared = (n == 1 for n in has_work_ref.shape[:2])
        place = [0 if one else i for one, i in zip(shared, (batch, head), strict=True)]
        own = head_of(given, operands, batch, head)
        more = functools.partial(_gradient_of_pair, own, arrays, delta_ref, row, column)
        return lax.cond(
            has_work_ref[(*place, row, column)] != 0, lambda: total + more(), lambda: total
        )

    total = jnp.zeros(signature.tile, np.float32)
    total = lax.fori_loop(np.int32(0), np.int32(math.prod(summed)), add, total)
    store_pairs(d_bias_ref, start, (row, column), total)


def _gradient_of_pair(
    own: Head, arrays: Arrays, delta_ref: Ref, row: Array, column: Array
) -> Array:
    queries, keys = own.queries(row, some=True), own.keys(column, some=True)
    q, d_out = (load_rows(x, own.batch, own.head, queries) for x in (arrays.q, arrays.d_out))
    k, v = (load_rows(x, own.batch, own.key_head, keys) for x in (arrays.k, arrays.v))
    delta = load_numbers(delta_ref, own.batch, own.head, queries)
    scores = own.scores(q, k, queries, keys, masked=True)
    weights = scores.weights(*_load_normalizer(arrays, own, queries, side="query"))
    return weights * (_softmax.times_transposed(d_out, v) - delta[:, None])


def _load_normalizer(
    arrays: Arrays, own: Head, queries: Span, *, side: Side
) -> tuple[Array, Array | None]:
    """Shift and factor, broadcasting to a tile whose queries lie along either axis."""

    def load(ref: Ref) -> Array:
        numbers = load_numbers(ref, own.batch, own.head, queries)
        return numbers[None, :] if side == "key" else numbers[:, None]

    return load(arrays.shift), None if arrays.factor is None else load(arrays.factor)


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return made(x.shape, x.dtype)
