"""The forward kernel: one program makes the output of one query tile of one head."""

import functools
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Work
from shapeexec.attention.backends.triton._tiles import (
    Setting,
    Span,
    as_leaves,
    in_order,
    load_rows,
    operands_of,
    padded,
    positions,
    row_of,
    shapes_of,
    storable,
    store_numbers,
    store_rows,
)
from shapeexec.attention.masks import Mask

Array = Any
Ref = Any


def forward(
    setting: Setting, work: Work, q: Array, k: Array, v: Array, bias: Any
) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp f32[B, N, T]."""
    sizes = (work.query_sizes, work.key_sizes)
    lists = operands_of(work.by_query)
    return _forward(lists, sizes, work.mask, q, k, v, bias, setting=setting)


@functools.partial(jax.jit, static_argnames="setting")
def _forward(
    lists: tuple[Array, ...],
    sizes: tuple[Array, Array],
    mask: Mask,
    q: Array,
    k: Array,
    v: Array,
    bias: Any,
    *,
    setting: Setting,
) -> tuple[Array, Array]:
    batch, length, heads, _ = q.shape
    kernel = functools.partial(
        _kernel, setting=setting, mask_like=shapes_of(mask), bias_like=shapes_of(bias)
    )
    out_shape = (
        jax.ShapeDtypeStruct((batch, length, heads, v.shape[3]), q.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), np.float32),
    )
    launched = setting.launch(kernel, "forward", (lists[2].shape[2], heads, batch), out_shape)
    return launched(lists, sizes, storable(mask), storable(bias), q, k, v)


def _kernel(
    lists: tuple[Ref, ...],
    sizes: tuple[Ref, Ref],
    mask_refs: list[Ref],
    bias_refs: list[Ref],
    q_ref: Ref,
    k_ref: Ref,
    v_ref: Ref,
    out_ref: Ref,
    logsumexp_ref: Ref,
    *,
    setting: Setting,
    mask_like: Mask,
    bias_like: Any,
) -> None:
    signature = setting.signature
    tile_q, tile_k = signature.tile
    batch, head = pl.program_id(2), pl.program_id(1)
    row = row_of(lists, batch, head, in_order(lists, batch, head, pl.program_id(0)))
    query_size, key_size = (size[batch] for size in sizes)
    mask, bias = as_leaves(mask_refs, mask_like), as_leaves(bias_refs, bias_like)
    first_query = row.number * tile_q
    q = load_rows(q_ref, batch, head, Span(first_query, tile_q, query_size))

    def step(tile: Array, state: _softmax.State, is_partial: bool) -> _softmax.State:
        keys = Span(tile * tile_k, tile_k, key_size if is_partial else None)
        k = load_rows(k_ref, batch, head // setting.group, keys)
        first = (first_query, keys.first)
        at = positions((batch, head), (query_size, key_size), first, signature.tile)
        scores = _softmax.times_transposed(q, k) * np.float32(signature.scale)
        scores = _softmax.biased(bias, at, scores)
        if is_partial:
            scores = _softmax.masked(mask, at, scores)
        return _softmax.advance(state, scores, load_rows(v_ref, batch, head // setting.group, keys))

    empty = _softmax.start(tile_q, padded(signature.value_size), columns=False)
    out, logsumexp = _softmax.finish(row.each(step, empty))
    store_rows(out_ref, batch, head, first_query, out)
    store_numbers(logsumexp_ref, batch, head, first_query, logsumexp)
