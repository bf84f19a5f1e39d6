"""The forward kernel: along the list of each query tile, with a running softmax in vector memory."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Work
from shapeexec.attention.backends.mosaic_tpu._scores import Blocks, Given, by_head, prepared
from shapeexec.attention.backends.mosaic_tpu._steps import (
    Scalars,
    Setting,
    Where,
    by_query,
    launch,
    of_keys,
    of_queries,
)

Array = Any
Ref = Any


@functools.partial(jax.jit, static_argnames="setting")
def forward(
    work: Work, q: Array, k: Array, v: Array, bias: Any, *, setting: Setting
) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp f32[B, N, T]."""
    batch, length, heads, _ = q.shape
    (tile_q, tile_k), size = setting.signature.tile, v.shape[3]
    given, scalars, blocks = prepared(setting, work.by_query, work, bias)
    grid, order = by_query(setting, work.by_query)
    out = jax.ShapeDtypeStruct((batch, heads, length, size), q.dtype)
    logsumexp = jax.ShapeDtypeStruct((batch, heads, length, 1), np.float32)
    out, logsumexp = launch(
        functools.partial(_kernel, given),
        "forward",
        grid,
        order,
        scalars,
        (
            blocks,
            of_queries(by_head(q), tile_q),
            of_keys(by_head(k), tile_k),
            of_keys(by_head(v), tile_k),
        ),
        (of_queries(out, tile_q), of_queries(logsumexp, tile_q)),
        [(tile_q, size), (tile_q, 1), (tile_q, 1)],
        interpret=setting.interpret,
    )
    return by_head(out), logsumexp[..., 0]


def _kernel(
    given: Given,
    where: Where,
    scalars: Scalars,
    inputs: tuple[Blocks, Ref, Ref, Ref],
    outputs: tuple[Ref, Ref],
    state: tuple[Ref, Ref, Ref],
) -> None:
    blocks, q_ref, k_ref, v_ref = inputs

    @pl.when(where.is_first)
    def _() -> None:
        tile, size = state[0].shape
        _put(state, _softmax.start(tile, size, columns=True))

    def step(is_partial: bool) -> None:
        q = where.clean(0, q_ref[0, 0], is_partial)
        k = where.clean(1, k_ref[0, 0], is_partial)
        v = where.clean(1, v_ref[0, 0], is_partial)
        scores = given.scores(where, scalars, blocks, q, k, masked=is_partial).final
        total, largest, weight = (ref[...] for ref in state)
        _put(state, _softmax.advance((total, largest, weight), scores, v))

    pl.when(where.is_full)(functools.partial(step, False))
    pl.when(where.is_partial)(functools.partial(step, True))

    @pl.when(where.is_last)
    def _() -> None:
        total, largest, weight = (ref[...] for ref in state)
        for ref, x in zip(outputs, _softmax.finish((total, largest, weight)), strict=True):
            ref[0, 0] = x.astype(ref.dtype)


def _put(refs: tuple[Ref, ...], values: tuple[Array, ...]) -> None:
    for ref, value in zip(refs, values, strict=True):
        ref[...] = jnp.asarray(value)
