"""cuDNN's fused attention through `jax.nn`, for masks that it knows: none, causal, and a window.

It reads all of its operands, so it is not for ragged sizes; and its results depend on its version.
It needs an NVIDIA GPU.
"""

from typing import Any

import jax
import numpy as np

from shapeexec._errors import BackendError
from shapeexec.attention.backends._base import Signature, Work
from shapeexec.attention.masks import And, Causal, Full, Lengths, Mask, SlidingWindow

Array = Any

_DTYPES = ("float16", "bfloat16")
_LARGEST_HEAD = 128  # 256 from Hopper on, which is known no sooner than on the device


class _Cudnn:
    """See the module."""

    name = "cudnn"

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """Its tiles are its own; those of the lists are not used."""
        return signature.tile

    def refuses(self, signature: Signature, mask: Mask, platform: str) -> str | None:
        """It takes half precision and few masks, on CUDA."""
        if platform != "cuda":
            return f"it needs an NVIDIA GPU, and this is {platform}"
        if signature.dtype not in _DTYPES:
            return f"it takes {' and '.join(_DTYPES)}, not {signature.dtype}"
        if signature.head_size % 8 or signature.head_size > _LARGEST_HEAD:
            return f"its heads are multiples of 8 up to {_LARGEST_HEAD}, not {signature.head_size}"
        if signature.value_size != signature.head_size:
            return "its heads of query and value have one size"
        if signature.bias is not None:
            return "a bias is left to the other back ends, who know rows of -inf"
        if signature.is_ragged:
            return "it reads behind valid lengths"
        options = _options(mask)
        if options is None:
            return f"it knows causal masks and windows, not {mask!r}"
        if options["local_window_size"] and signature.query_size > signature.key_size:
            return "some queries have no key in their window"
        return None

    def forward(
        self, signature: Signature, work: Work, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`. The log-sum-exp has been rounded to the dtype of the operands."""
        out, residual = _attend(signature, work, q, k, v, return_residual=True)
        return out, residual.transpose(0, 2, 1).astype(np.float32)

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
        bias_gradient: bool,
    ) -> tuple[Array, Array, Array, Any]:
        """See `Backend`. The forward pass is run once more: jax.nn does not take its results."""
        if d_logsumexp is not None:
            raise BackendError(
                "cuDNN has no gradient of the log-sum-exp.",
                why="jax.nn.dot_product_attention stops it",
                fix='implementation="xla"',
            )
        _, transpose = jax.vjp(lambda *x: _attend(signature, work, *x), q, k, v)
        return (*transpose(d_out), None)


backend = _Cudnn()


def _attend(signature: Signature, work: Work, q: Array, k: Array, v: Array, **more: Any) -> Any:
    options = _options(work.mask)
    assert options is not None
    return jax.nn.dot_product_attention(
        q, k, v, scale=signature.scale, implementation="cudnn", **options, **more
    )


def _options(mask: Mask) -> dict[str, Any] | None:
    """How `jax.nn` is told of a mask; None if it cannot be."""
    is_causal, left = False, None
    for part in mask.masks if isinstance(mask, And) else (mask,):
        match part:
            case Full() | Lengths(queries=None, keys=None):
                pass
            case Causal(offset=0, align="start"):
                is_causal = True
            case SlidingWindow(left=int(size), right=0):
                is_causal, left = True, size if left is None else min(left, size)
            case SlidingWindow(left=None, right=0):
                is_causal = True
            case _:
                return None
    window = None if left is None else (left, 0)
    return {"is_causal": is_causal, "local_window_size": window}
