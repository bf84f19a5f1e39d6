"""The forward kernel: along the list of each query tile, a running softmax in vector memory.

`_steps` steps through the lists, and `backends._softmax` computes the softmax.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownMemberType=false

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, Work, made
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


@functools.partial(jax.jit, static_argnames="setting")
def forward(
    work: Work, *, q: Array, k: Array, v: Array, bias: Any, setting: Setting
) -> tuple[Array, Array]:
    """The output [B, T, N, V], and the log-sum-exp f32[B, N, T]."""
    q, k, v = map(by_head, (q, k, v))
    out = made((*q.shape[:3], v.shape[3]), q.dtype)
    logsumexp = made((*q.shape[:3], 1), np.float32)
    results = _launch(
        setting, work, arrays=(q, k, v), bias=bias, end=_softmax.finish, results=(out, logsumexp)
    )
    return by_head(results[0]), results[1][..., 0]


def statistics(
    setting: Setting, work: Work, *, q: Array, k: Array, v: Array, bias: Any
) -> tuple[Array, Array]:
    """Shift and factor of the weights, f32[B, N, T, 1] each; see `_softmax.statistics`.

    Args:
        setting: The setting of the kernel.
        work: The tiles.
        q: Queries by head, [B, N, T, H].
        k: Keys by head, [B, K, S, H].
        v: Values by head, [B, K, S, V].
        bias: The bias.
    """
    by_row = made((*q.shape[:3], 1), np.float32)
    return _launch(
        setting,
        work,
        arrays=(q, k, v),
        bias=bias,
        end=_softmax.statistics,
        results=(by_row, by_row),
    )


def _launch(
    setting: Setting,
    work: Work,
    *,
    arrays: tuple[Array, Array, Array],
    bias: Any,
    end: Callable[[_softmax.State], tuple[Array, Array]],
    results: tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct],
) -> tuple[Array, Array]:
    q, k, v = arrays
    (tile_q, tile_k), size = setting.signature.tile, v.shape[3]
    given, scalars, blocks = prepared(setting, work.by_query, work=work, bias=bias)
    grid, order = by_query(setting, work.by_query)
    return launch(
        functools.partial(_kernel, given, end),
        "forward",
        grid=grid,
        order=order,
        scalars=scalars,
        inputs=(blocks, of_queries(q, tile_q), of_keys(k, tile_k), of_keys(v, tile_k)),
        outputs=(of_queries(results[0], tile_q), of_queries(results[1], tile_q)),
        scratch=[(tile_q, size), (tile_q, 1), (tile_q, 1)],
        interpret=setting.interpret,
    )


def _kernel(
    given: Given,
    end: Callable[[_softmax.State], tuple[Array, Array]],
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

    def step(*, is_partial: bool) -> None:
        q = where.clean(0, q_ref[0, 0], is_partial=is_partial)
        k = where.clean(1, k_ref[0, 0], is_partial=is_partial)
        v = where.clean(1, v_ref[0, 0], is_partial=is_partial)
        scores = given.scores(where, scalars, blocks, q, k, masked=is_partial).final
        total, largest, weight = (ref[...] for ref in state)
        _put(state, _softmax.advance((total, largest, weight), scores, v))

    where.each_kind(given.setting.kinds, step)

    @pl.when(where.is_last)
    def _() -> None:
        total, largest, weight = (ref[...] for ref in state)
        for ref, x in zip(outputs, end((total, largest, weight)), strict=True):
            ref[0, 0] = x.astype(ref.dtype)


def _put(refs: tuple[Ref, ...], values: tuple[Array, ...]) -> None:
    for ref, value in zip(refs, values, strict=True):
        ref[...] = jnp.asarray(value)
