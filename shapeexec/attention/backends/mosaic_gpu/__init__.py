"""Kernels for Hopper GPUs in Pallas Mosaic GPU: block-sparse forward and backward passes.

They take bf16 and fp16, and masks whose element rules the compiler knows. Only tiles with work are
visited, whatever made the lists; what lies behind valid lengths is never read into a result.
"""

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._errors import BackendError
from shapeexec.attention.backends._base import Signature, Work, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _support
from shapeexec.attention.backends.mosaic_gpu._elements import as_operand
from shapeexec.attention.backends.mosaic_gpu._forward import forward
from shapeexec.attention.backends.mosaic_gpu._gradients import Rows
from shapeexec.attention.backends.mosaic_gpu._launch import Config, Told
from shapeexec.attention.backends.mosaic_gpu._of_keys import backward_of_keys
from shapeexec.attention.backends.mosaic_gpu._of_queries import backward_of_queries
from shapeexec.attention.backends.mosaic_gpu._rules import Rule, rule_of
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE, ListRefs
from shapeexec.attention.masks import And, Full, Lengths, Mask

Array = Any


class MosaicGpu:
    """See the module.

    Attributes:
        name: Its name.
        interpret: Parameters of Pallas' GPU interpreter, to run on the CPU; None: on the device.
    """

    name = "mosaic_gpu"

    def __init__(self, interpret: Any = None) -> None:
        self.interpret = interpret

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """What two warpgroups compute at a time."""
        del signature, mask
        return TILE, TILE

    def refuses(self, signature: Signature, mask: Mask, platform: str) -> str | None:
        """It takes half precision, heads up to 256 and no bias, on Hopper."""
        if self.interpret is None and (reason := _support.of_device(platform)):
            return reason
        return _support.of_call(signature, mask)

    def forward(
        self, signature: Signature, work: Work, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        _no_bias(bias)
        config, (q, k, v) = self._prepare(signature, work, q, k, v)
        told = _told(work, config.rule, by_key=False)
        out, logsumexp = forward(config, told, q, k, v)
        length = signature.query_size
        behind = _behind(work.query_sizes, length)
        logsumexp = jnp.where(behind, -jnp.inf, logsumexp[:, :, :length])
        return out[:, :length, :, : signature.value_size], logsumexp

    def backward(
        self,
        signature: Signature,
        work: Work,
        q: Array,
        k: Array,
        v: Array,
        bias: Any,
        out: Array,
        logsumexp: Array,
        d_out: Array,
        d_logsumexp: Array | None,
        *,
        deterministic: bool,
        bias_gradient: bool = False,
    ) -> tuple[Array, Array, Array, Any]:
        """See `Backend`. It is deterministic in any case."""
        del deterministic, bias_gradient
        _no_bias(bias)
        rows = _rows(work.query_sizes, out, logsumexp, d_out, d_logsumexp)
        config, arrays = self._prepare(signature, work, q, k, v, d_out)
        d_q = backward_of_queries(config, _told(work, config.rule, by_key=False), rows, *arrays)
        d_k, d_v = backward_of_keys(config, _told(work, config.rule, by_key=True), rows, *arrays)
        gradients = (
            gradient[:, : x.shape[1], :, : x.shape[3]]
            for gradient, x in ((d_q, q), (d_k, k), (d_v, v))
        )
        return (*gradients, None)

    def _prepare(self, signature: Signature, work: Work, *arrays: Array) -> tuple:
        config = Config(
            signature=signature,
            rule=rule_of(_without_lengths(work.mask)),
            programs=_support.multiprocessors() if self.interpret is None else 2,
            interpret=self.interpret,
        )
        return config, [_as_copied(array) for array in arrays]


backend = MosaicGpu()


def _told(work: Work, rule: Rule, *, by_key: bool) -> Told:
    lists = work.by_key if by_key else work.by_query
    as_i32 = functools.partial(jnp.asarray, dtype=jnp.int32)
    refs = ListRefs(*map(as_i32, (lists.tiles, lists.full, lists.counts, lists.order)))
    known = zip(jax.tree.leaves(_without_lengths(work.mask)), rule.asked, strict=True)
    leaves = [as_operand(leaf, asked, by_key=by_key) for leaf, asked in known]
    return Told(refs, as_i32(work.query_sizes), as_i32(work.key_sizes), leaves)


def _without_lengths(mask: Mask) -> Mask:
    """The mask but for the call's own valid lengths, which the kernels know."""
    if not isinstance(mask, And):
        return Full() if mask == Lengths() else mask
    return functools.reduce(operator.and_, map(_without_lengths, mask.masks))


def _as_copied(array: Array) -> Array:
    """The array [B, T, N, H] as the tensor unit can copy it.

    It clips tiles at an array's end, but counts rows by 8 and columns by 64. Other lengths are
    made up to that, which costs a pass over the array.
    """
    _, length, _, size = array.shape
    rows = 0 if length < 8 else -length % 8
    columns = 0 if size % 64 == 0 or (size < 64 and size % 8 == 0) else -size % 64
    return jnp.pad(array, ((0, 0), (0, rows), (0, 0), (0, columns))) if rows or columns else array


def _rows(
    query_sizes: Array, out: Array, logsumexp: Array, d_out: Array, d_logsumexp: Array | None
) -> Rows:
    length = out.shape[1]
    product = out.astype(np.float32) * d_out.astype(np.float32)
    delta = product.sum(-1).transpose(0, 2, 1)
    if d_logsumexp is not None:
        delta -= d_logsumexp
    behind = _behind(query_sizes, length)
    dead = behind | (logsumexp == -jnp.inf)
    to_whole = ((0, 0), (0, 0), (0, whole_tiles(length, TILE) - length))
    base_2 = jnp.where(dead, jnp.inf, logsumexp * math.log2(math.e))
    return Rows(
        logsumexp=jnp.pad(base_2, to_whole, constant_values=jnp.inf),
        delta=jnp.pad(jnp.where(dead, 0.0, delta), to_whole),
    )


def _behind(sizes: Array, length: int) -> Array:
    return np.arange(length, dtype=np.int32) >= jnp.asarray(sizes)[:, None, None]


def _no_bias(bias: Any) -> None:
    if bias is not None:
        raise BackendError(
            "mosaic_gpu takes no bias.", fix='leave implementation= out, or name "xla"'
        )
