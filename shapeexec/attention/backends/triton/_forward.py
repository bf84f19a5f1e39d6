"""The forward kernel: one program makes the output of one query tile of one head."""

import functools
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Work
from shapeexec.attention.backends.triton._scores import Given, Operands, head_of, prepared
from shapeexec.attention.backends.triton._tiles import (
    Setting,
    in_order,
    load_rows,
    padded,
    store_numbers,
    store_rows,
)

Array = Any
Ref = Any


@functools.partial(jax.jit, static_argnames="setting")
def forward(
    work: Work, q: Array, k: Array, v: Array, bias: Any, *, setting: Setting
) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp f32[B, N, T]."""
    batch, length, heads, _ = q.shape
    operands, given = prepared(setting, work.by_query, work, bias)
    out_shape = (
        jax.ShapeDtypeStruct((batch, length, heads, v.shape[3]), q.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), np.float32),
    )
    kernel = functools.partial(_kernel, given=given)
    grid = (work.by_query.counts.shape[2], heads, batch)
    return setting.launch(kernel, "forward", grid, out_shape)(operands, q, k, v)


def _kernel(
    operands: Operands,
    q_ref: Ref,
    k_ref: Ref,
    v_ref: Ref,
    out_ref: Ref,
    logsumexp_ref: Ref,
    *,
    given: Given,
) -> None:
    turn, head, batch = map(pl.program_id, range(3))
    own = head_of(given, operands, batch, head)
    row = own.row(in_order(operands.lists, batch, head, turn))
    queries = own.queries(row.number, some=True)
    q = load_rows(q_ref, batch, head, queries)

    def step(tile: Array, state: _softmax.State, is_partial: bool) -> _softmax.State:
        keys = own.keys(tile, some=is_partial)
        k = load_rows(k_ref, batch, own.key_head, keys)
        scores = own.scores(q, k, queries, keys, masked=is_partial).final
        return _softmax.advance(state, scores, load_rows(v_ref, batch, own.key_head, keys))

    empty = _softmax.start(queries.size, padded(given.signature.value_size), columns=False)
    out, logsumexp = _softmax.finish(row.each(step, empty))
    store_rows(out_ref, batch, head, queries.first, out)
    store_numbers(logsumexp_ref, batch, head, queries.first, logsumexp)
