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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.backends._base import Residuals, Signature, Tiling, Work, is_valid
from shapeexec.attention.backends.mosaic_gpu import _few, _support
from shapeexec.attention.backends.mosaic_gpu._backward import Passes, gradients, passes_of
from shapeexec.attention.backends.mosaic_gpu._forward import forward
from shapeexec.attention.backends.mosaic_gpu._join import joined, joined_output
from shapeexec.attention.backends.mosaic_gpu._packing import packed_queries, unpacked
from shapeexec.attention.backends.mosaic_gpu._pieces import default_piece, takes_whole_tiles
from shapeexec.attention.backends.mosaic_gpu._prepared import (
    Prepared,
    as_copied,
    missing_columns,
    prepare,
)
from shapeexec.attention.backends.mosaic_gpu._shares import share
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE
from shapeexec.attention.masks import Mask


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
        return not any(map(missing_columns, (signature.head_size, signature.value_size)))

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        prepared = prepare(signature, work, bias=bias, interpret=self.interpret)
        if _few.are_few(signature):
            return _forward_of_few(prepared, q=q, k=k, v=v)
        arrays = as_copied(q=q, k=k, v=v)
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
        prepared = prepare(signature, work, bias=residuals.bias, interpret=self.interpret)
        passes = self.passes(prepared, deterministic=deterministic)
        d_q, d_k, d_v = gradients(prepared, passes, residuals, d_out, d_logsumexp)
        return d_q, d_k, d_v, None

    def passes(self, prepared: Prepared, *, deterministic: bool) -> Passes:
        """The kernels that make the gradients of a call."""
        return passes_of(prepared, deterministic=deterministic)


backend = MosaicGpu()


def _forward_of_few(prepared: Prepared, *, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
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
    arrays = as_copied(q=packed_queries(packing, q), k=k, v=v)
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
