"""The forward kernel: one program computes the output of one query tile of one head.

`_tiles` reads tiles, and `backends._softmax` computes the running softmax.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, Work, made
from shapeexec.attention.backends.triton._scores import Given, Operands, head_of, prepared
from shapeexec.attention.backends.triton._tiles import (
    Setting,
    in_order,
    load_rows,
    padded,
    store_numbers,
    store_rows,
)


@functools.partial(jax.jit, static_argnames="setting")
def forward(
    work: Work, *, q: Array, k: Array, v: Array, bias: Any, setting: Setting
) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp f32[B, N, T]."""
    batch, queries, heads, _ = q.shape
    out_shape = (
        made((batch, queries, heads, v.shape[3]), q.dtype),
        made((batch, heads, queries), np.float32),
    )
    return _launch(
        setting, work, arrays=(q, k, v), bias=bias, end=_softmax.finish, out_shape=out_shape
    )


def statistics(
    setting: Setting, work: Work, *, q: Array, k: Array, v: Array, bias: Any
) -> tuple[Array, Array]:
    """Shift and factor of the weights, f32[B, N, T] each; see `_softmax.statistics`."""
    batch, queries, heads, _ = q.shape
    by_query = made((batch, heads, queries), np.float32)
    return _launch(
        setting,
        work,
        arrays=(q, k, v),
        bias=bias,
        end=_softmax.statistics,
        out_shape=(by_query, by_query),
    )


def _launch(
    setting: Setting,
    work: Work,
    *,
    arrays: tuple[Array, Array, Array],
    bias: Any,
    end: Callable[[_softmax.State], tuple[Array, Array]],
    out_shape: Any,
) -> tuple[Array, Array]:
    operands, given = prepared(setting, work.by_query, work=work, bias=bias)
    kernel = functools.partial(_kernel, given=given, end=end)
    batch, _, heads, _ = arrays[0].shape
    grid = (work.by_query.counts.shape[2], heads, batch)
    return setting.launch(kernel, "forward", grid=grid, out_shape=out_shape)(operands, *arrays)


def _kernel(
    operands: Operands,
    q_ref: Ref,
    k_ref: Ref,
    v_ref: Ref,
    *result_refs: Ref,
    given: Given,
    end: Callable[[_softmax.State], tuple[Array, Array]],
) -> None:
    turn, head, batch = map(pl.program_id, range(3))
    own = head_of(given, operands, batch, head)
    row = own.row(in_order(operands.lists, batch, head, turn))
    queries = own.queries(row.number, some=True)
    q = load_rows(q_ref, batch, head, queries)

    def step(tile: Array, state: _softmax.State, *, is_partial: bool) -> _softmax.State:
        keys = own.keys(tile, some=is_partial)
        k = load_rows(k_ref, batch, own.key_head, keys)
        scores = own.scores(q, k, queries, keys, masked=is_partial).final
        return _softmax.advance(state, scores, load_rows(v_ref, batch, own.key_head, keys))

    empty = _softmax.start(queries.size, padded(given.signature.value_size), columns=False)
    for ref, result in zip(result_refs, end(row.each(step, empty)), strict=True):
        store = store_rows if result.ndim == 2 else store_numbers
        store(ref, batch, head, queries.first, result)
