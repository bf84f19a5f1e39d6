"""Attention by loops of XLA over the lists of active tiles, on any device.

The algorithm is FlashAttention's (Dao, https://arxiv.org/abs/2307.08691, algorithms 1 and 2): for
each query tile a running softmax over its key tiles, and for the gradient a second pass that
recomputes the weights. Memory is linear in T and S. Examples and heads that share their lists go
through the loops together. It is made for CPUs, and for calls that no kernel supports; it computes
in f32, or in f64 for f64 operands. Equal calls give equal bits.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from jax import Array

from shapeexec.attention.backends._base import Residuals, Signature, Tiling, Work
from shapeexec.attention.backends.xla._bias import as_modifier
from shapeexec.attention.backends.xla._groups import Setting
from shapeexec.attention.backends.xla._passes import backward_group, forward_group, tangent_group
from shapeexec.attention.masks import Full, Mask

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_TILE = 128
_ONE_TILE = 256
"""Up to this size a loop over tiles takes longer than the pairs that it would skip."""
_FEW = 16
"""With so few queries, a step of the loop costs as much as its arithmetic on `_TILE` keys."""
_LONG_TILE = 256
"""The number of keys in a tile for `_FEW` queries."""
_LARGE = (512, 256)
"""The tile where no tile can be skipped: the fewer and larger a loop's products, the faster."""
_MOST_HEADS = 16
"""From more heads of all examples on, the scores of `_LARGE` tiles leave a CPU's caches."""
_SIDES = (64, 128, 256, 512)
"""Sides that `tune` tries."""
_MOST_PAIRS = 2 * _LONG_TILE**2
"""The most pairs of a tile: the scores of some heads' tiles are what takes memory."""


class _Xla:
    """See the module."""

    name = "xla"

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """Tiles of up to `_TILE`; larger ones for short sequences, few queries and full masks."""
        queries, keys = signature.query_size, signature.key_size
        is_whole = mask == Full() and not signature.is_ragged and signature.page_size is None
        few_heads = signature.batch * signature.query_heads <= _MOST_HEADS
        if is_whole and few_heads and queries > _FEW:
            return min(queries, _LARGE[0]), min(keys, _LARGE[1])
        longest = _LONG_TILE if queries <= _FEW else _TILE
        of_keys = _side(keys, longest)
        if signature.page_size is not None:
            of_keys = _whole_pages(of_keys, signature.page_size)
        return _side(queries, _TILE), of_keys

    def tilings(self, signature: Signature, mask: Mask) -> tuple[Tiling, ...]:
        """Tiles of several sides; for pages only the default."""
        own = Tiling(self.tile(signature, mask))
        if signature.page_size is not None:
            return (own,)
        queries, keys = map(_sides, (signature.query_size, signature.key_size))
        others = (Tiling(tile) for tile in itertools.product(queries, keys) if _is_handy(tile))
        return tuple(dict.fromkeys((own, *others)))

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """See `Backend`. It takes any mask on any platform."""
        if signature.dtype in _DTYPES:
            return None
        return f"it computes in {', '.join(_DTYPES)}, and not in {signature.dtype}"

    def reads_pages(self, signature: Signature) -> bool:
        """See `PagedBackend`. It always does."""
        return True

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        setting = Setting(signature, work, as_modifier(bias, signature))
        arrays = setting.clean(q=q, k=k, v=v)
        results, _ = setting.each_group(forward_group, arrays, carry=())
        out = setting.from_rows(results["out"], q.dtype)
        return out, setting.logsumexp(results["logsumexp"])

    def backward(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        d_out: Array,
        d_logsumexp: Array | None,
        deterministic: bool,
        bias_gradient: bool,
    ) -> tuple[Array, Array, Array, Any]:
        """See `Backend`. It is always deterministic."""
        q, k, v, bias = residuals.q, residuals.k, residuals.v, residuals.bias
        setting = Setting(signature, work, as_modifier(bias, signature))
        arrays = setting.clean(q=q, k=k, v=v, out=residuals.out, d_out=d_out)
        out = arrays.pop("out")
        # Subtracted from each score's gradient, as weights sum to 1. The derivative of the
        # log-sum-exp by a score is the weight.
        delta = (out * arrays["d_out"]).sum(-1)
        if d_logsumexp is not None:
            delta = delta - setting.by_row(d_logsumexp)
        arrays |= {"delta": delta, "logsumexp": setting.finite(residuals.logsumexp)}
        gradient = setting.bias.zero() if bias is not None and bias_gradient else None
        results, gradient = setting.each_group(backward_group, arrays, carry=gradient)
        return (
            setting.from_rows(results["d_q"], q.dtype),
            setting.from_columns(results["d_k"], k.dtype),
            setting.from_columns(results["d_v"], v.dtype),
            None if gradient is None else setting.bias.result(gradient),
        )

    def tangent(
        self,
        signature: Signature,
        work: Work,
        *,
        residuals: Residuals,
        tangents: tuple[Array | None, Array | None, Array | None],
        d_bias: Mapping[int, Array],
    ) -> tuple[Array, Array]:
        """See `TangentBackend`."""
        setting = Setting(signature, work, as_modifier(residuals.bias, signature))
        named = {"q": residuals.q, "k": residuals.k, "v": residuals.v, "out": residuals.out}
        given = zip(("d_q", "d_k", "d_v"), tangents, strict=True)
        named |= {name: tangent for name, tangent in given if tangent is not None}
        cleaned = setting.clean(**named)
        cleaned["logsumexp"] = setting.finite(residuals.logsumexp)
        group = functools.partial(tangent_group, d_bias=setting.bias.directions(d_bias))
        results, _ = setting.each_group(group, cleaned, carry=())
        d_out = setting.from_rows(results["d_out"], residuals.out.dtype)
        return d_out, setting.logsumexp(results["d_logsumexp"])


def _side(size: int, longest: int) -> int:
    return size if size <= _ONE_TILE else longest


def _sides(size: int) -> list[int]:
    """The sides to try along an axis of this size: the whole axis, if it is short."""
    return [side for side in _SIDES if side < size] + [size] * (size <= _SIDES[-1])


def _is_handy(tile: tuple[int, int]) -> bool:
    """Whether the tile's scores fit into a cache, and its sides are not too unequal."""
    shorter, longer = sorted(tile)
    return shorter * longer <= _MOST_PAIRS and (longer <= 4 * shorter or shorter <= _FEW)


def _whole_pages(tile: int, page: int) -> int:
    """The tile if it divides the page; else as many whole pages as fit into it, at least one."""
    return tile if page % tile == 0 else max(tile // page, 1) * page


backend = _Xla()
