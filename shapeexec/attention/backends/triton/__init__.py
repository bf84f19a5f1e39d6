"""The back end of Pallas Triton kernels, for GPUs without a more specific back end here.

This module decides which calls it can run and how large a tile is; the kernels are beside it.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownVariableType=false

import dataclasses
import itertools
from typing import Any

from jax import Array

from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import (
    Residuals,
    Signature,
    Tiling,
    Work,
    refusal_of_sizes,
)
from shapeexec.attention.backends._elementwise import refusal_of_rule
from shapeexec.attention.backends.triton import _backward, _forward
from shapeexec.attention.backends.triton._tiles import Setting, padded
from shapeexec.attention.masks import Mask

_DTYPES = ("float16", "bfloat16", "float32")
_LARGEST_HEAD = 256
_LEAST_SIDE, _LARGEST_SIDE = 16, 64
_SIDE_BYTES = 16_384
"""The most bytes of a tile of q, k or v: the gradient holds four tiles and prefetches two more."""


@dataclasses.dataclass(frozen=True)
class _Triton:
    """See the module.

    Attributes:
        interpret: Whether kernels run in Pallas' interpreter, on any device.
        name: See `TunableBackend`.
    """

    interpret: bool = False
    name: str = "triton"

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """The largest tile that fits shared memory, and is not larger than the arrays."""
        row = _bytes_of_row(signature)
        side = max(_LEAST_SIDE, min(_LARGEST_SIDE, _SIDE_BYTES // row))
        return min(side, padded(signature.query_size)), min(side, padded(signature.key_size))

    def tilings(self, signature: Signature, mask: Mask) -> tuple[Tiling, ...]:
        """The default, and tiles of half its sides: larger tiles may not fit into shared memory."""
        own = self.tile(signature, mask)
        queries, keys = ((side, max(_LEAST_SIDE, side // 2)) for side in own)
        return tuple(dict.fromkeys(map(Tiling, itertools.product(queries, keys))))

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """See `Backend`. It takes all masks that lower in a kernel, and head sizes up to 256."""
        if platform not in ("cuda", "rocm") and not self.interpret:
            return f"it is made for GPUs, not for {platform}"
        capability = _device.compute_capability() if platform == "cuda" else None
        if capability is not None and capability < _device.OLDEST_FOR_TRITON:
            return f"it needs compute capability 8.0, and this is {'.'.join(map(str, capability))}"
        if reason := refusal_of_sizes(
            signature, _DTYPES, largest_head=_LARGEST_HEAD, memory="shared memory"
        ):
            return reason
        if signature.bias_gradient and isinstance(signature.bias, type):
            return f"its kernels make no gradient of the arrays in {signature.bias.__name__}"
        return refusal_of_rule(mask)

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        return _forward.forward(
            work, q=q, k=k, v=v, bias=bias, setting=self._setting(signature, work)
        )

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
        return _backward.backward(
            work,
            residuals,
            d_out=d_out,
            d_logsumexp=d_logsumexp,
            setting=self._setting(signature, work),
            bias_gradient=bias_gradient,
        )

    def _setting(self, signature: Signature, work: Work) -> Setting:
        # As Pallas' own attention does: eight warps share the accumulators of a large head.
        warps = 4 if max(signature.head_size, signature.value_size) <= 64 else 8
        stages = 2 if _bytes_of_row(signature) <= 512 else 1
        return Setting(signature, work.by_query.kinds, warps, stages, self.interpret)


def _bytes_of_row(signature: Signature) -> int:
    width = padded(max(signature.head_size, signature.value_size))
    return width * (4 if signature.dtype == "float32" else 2)


backend = _Triton()
