"""The gradient kernels: for q along the list of each query tile, for k and v of each key tile.

A score's gradient is weight * (d_weight - delta), where delta is the sum of the output times its
gradient, less the gradient of the log-sum-exp. The first kernel writes delta for the second.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from shapeexec.attention.backends import _softmax
from shapeexec.attention.backends._base import Ref, Residuals, Work, made
from shapeexec.attention.backends.mosaic_tpu._forward import statistics
from shapeexec.attention.backends.mosaic_tpu._scores import Blocks, Given, by_head, prepared
from shapeexec.attention.backends.mosaic_tpu._steps import (
    Block,
    Scalars,
    Setting,
    Where,
    by_key,
    by_query,
    launch,
    of_keys,
    of_queries,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arrays:
    """The operands of the gradients, by head: arrays, `Block`s, or references.

    Attributes:
        q, k, v: [B, N, T, H], [B, K, S, H] and [B, K, S, V].
        d_out: The gradient of the output, [B, N, T, V].
        shift, factor: See `_softmax.weights_again`; f32[B, N, T, 1].
    """

    q: Any
    k: Any
    v: Any
    d_out: Any
    shift: Any
    factor: Any

    def blocks(self, tile: tuple[int, int]) -> "Arrays":
        """The blocks of these operands that a step reads."""
        return Arrays(
            of_queries(self.q, tile[0]),
            of_keys(self.k, tile[1]),
            of_keys(self.v, tile[1]),
            of_queries(self.d_out, tile[0]),
            of_queries(self.shift, tile[0]),
            None if self.factor is None else of_queries(self.factor, tile[0]),
        )

    def clean(self, where: Where, *, is_partial: bool) -> "Arrays":
        """The values of references, with 0 behind the valid lengths."""
        q, d_out, shift, factor = (
            None if ref is None else where.clean(0, ref[0, 0], is_partial=is_partial)
            for ref in (self.q, self.d_out, self.shift, self.factor)
        )
        k, v = (where.clean(1, ref[0, 0], is_partial=is_partial) for ref in (self.k, self.v))
        return Arrays(q, k, v, d_out, shift, factor)


@functools.partial(jax.jit, static_argnames="setting")
def backward(
    work: Work,
    residuals: Residuals,
    *,
    d_out: Array,
    d_logsumexp: Array | None,
    setting: Setting,
) -> tuple[Array, Array, Array]:
    """The gradients of q, k and v."""
    q, k, v, d_out = map(by_head, (residuals.q, residuals.k, residuals.v, d_out))
    bias = residuals.bias
    shift, factor = _softmax.normalizer(
        residuals.logsumexp[..., None],
        bias,
        again=lambda: statistics(setting, work, q=q, k=k, v=v, bias=bias),
    )
    arrays = Arrays(q, k, v, d_out, shift, factor)
    ends = None if d_logsumexp is None else d_logsumexp[..., None]
    d_q, delta = _of_queries(
        setting, work, arrays=arrays, bias=bias, out=by_head(residuals.out), d_logsumexp=ends
    )
    d_k, d_v = _of_keys(setting, work, arrays=arrays, bias=bias, delta=delta)
    return by_head(d_q), by_head(d_k), by_head(d_v)


# By query


def _of_queries(
    setting: Setting,
    work: Work,
    *,
    arrays: Arrays,
    bias: Any,
    out: Array,
    d_logsumexp: Array | None,
) -> tuple[Array, Array]:
    """The gradient of q, and delta f32[B, N, T, 1]."""
    tile = setting.signature.tile
    given, scalars, blocks = prepared(setting, work.by_query, work=work, bias=bias)
    grid, order = by_query(setting, work.by_query)
    ends = [] if d_logsumexp is None else [of_queries(d_logsumexp, tile[0])]
    seen = arrays.blocks(tile)
    return launch(
        functools.partial(_query_kernel, given),
        "gradient_by_query",
        grid=grid,
        order=order,
        scalars=scalars,
        inputs=(blocks, seen, of_queries(out, tile[0]), ends),
        outputs=(_like(seen.q), _like(seen.shift)),
        scratch=[(tile[0], arrays.q.shape[3]), (tile[0], 1)],
        interpret=setting.interpret,
    )


def _query_kernel(
    given: Given,
    where: Where,
    scalars: Scalars,
    inputs: tuple[Blocks, Arrays, Ref, list[Ref]],
    outputs: tuple[Ref, Ref],
    scratch: tuple[Ref, Ref],
) -> None:
    blocks, refs, out_ref, ends = inputs
    (d_q_ref, delta_ref), (total, delta) = outputs, scratch

    @pl.when(where.is_first)
    def _() -> None:
        out, d_out = (where.clean(0, ref[0, 0], is_partial=True) for ref in (out_ref, refs.d_out))
        own = (out.astype(np.float32) * d_out.astype(np.float32)).sum(1, keepdims=True)
        for ref in ends:
            own = own - where.clean(0, ref[0, 0], is_partial=True)
        delta[...] = delta_ref[0, 0] = own
        total[...] = jnp.zeros_like(total)

    def step(*, is_partial: bool) -> None:
        own = refs.clean(where, is_partial=is_partial)
        scores = given.scores(where, scalars, blocks, own.q, own.k, masked=is_partial)
        d_weights = _softmax.times_transposed(own.d_out, own.v)
        d_scores = scores.weights(own.shift, own.factor) * (d_weights - delta[...])
        d_plain = scores.before_bias(d_scores).astype(own.k.dtype)
        total[...] += _softmax.times(d_plain, own.k)

    where.each_kind(given.setting.kinds, step)

    @pl.when(where.is_last)
    def _() -> None:
        scale = np.float32(given.setting.signature.scale)
        d_q_ref[0, 0] = (total[...] * scale).astype(d_q_ref.dtype)


# By key


def _of_keys(
    setting: Setting, work: Work, *, arrays: Arrays, bias: Any, delta: Array
) -> tuple[Array, Array]:
    """The gradients of k and v."""
    tile = setting.signature.tile
    given, scalars, blocks = prepared(setting, work.by_key, work=work, bias=bias)
    grid, order = by_key(setting, work.by_key)
    seen = arrays.blocks(tile)
    return launch(
        functools.partial(_key_kernel, given),
        "gradient_by_key",
        grid=grid,
        order=order,
        scalars=scalars,
        inputs=(blocks, seen, of_queries(delta, tile[0])),
        outputs=(_like(seen.k), _like(seen.v)),
        scratch=[(tile[1], x.shape[3]) for x in (arrays.k, arrays.v)],
        interpret=setting.interpret,
    )


def _key_kernel(
    given: Given,
    where: Where,
    scalars: Scalars,
    inputs: tuple[Blocks, Arrays, Ref],
    outputs: tuple[Ref, Ref],
    scratch: tuple[Ref, Ref],
) -> None:
    blocks, refs, delta_ref = inputs
    d_k, d_v = scratch

    @pl.when(where.is_first)
    def _() -> None:
        for total in scratch:
            total[...] = jnp.zeros_like(total)

    def step(*, is_partial: bool) -> None:
        own = refs.clean(where, is_partial=is_partial)
        scores = given.scores(where, scalars, blocks, own.q, own.k, masked=is_partial)
        weights = scores.weights(own.shift, own.factor)
        d_v[...] += _softmax.times(weights.T.astype(own.d_out.dtype), own.d_out)
        d_weights = _softmax.times_transposed(own.d_out, own.v)
        d_scores = weights * (d_weights - where.clean(0, delta_ref[0, 0], is_partial=is_partial))
        d_plain = scores.before_bias(d_scores)
        d_k[...] += _softmax.times(d_plain.T.astype(own.q.dtype), own.q)

    where.each_kind(given.setting.kinds, step)

    @pl.when(where.is_last)
    def _() -> None:
        scales = (given.setting.signature.scale, 1)
        for ref, total, scale in zip(outputs, scratch, scales, strict=True):
            ref[0, 0] = (total[...] * np.float32(scale)).astype(ref.dtype)


def _like(block: Block) -> Block:
    """A result in the shape of an operand."""
    shape = made(block.array.shape, block.array.dtype)
    return dataclasses.replace(block, array=shape)
