"""cuDNN's fused attention, for full masks, causal masks and causal windows.

It reads its operands up to their ends, so it does not take ragged sizes; its results depend on the
version of cuDNN. Its gradient takes the results of any forward pass, so the two passes may run on
different back ends.

Its gradient is not deterministic: the gradient of the queries is summed in no fixed order. XLA can
request a deterministic one for a whole program (`xla_gpu_deterministic_ops`), but not for a call,
so a backward pass with `deterministic=True` is refused.

Sources: XLA, `cudnn_custom_call_compiler.cc`, `RequireDeterminism`; PyTorch's notes on
randomness, `SDPBackend.CUDNN_ATTENTION`: forward deterministic, backward not.
"""

from typing import Any

from jax import Array

from shapeexec import _compat
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import Residuals, Signature, Work
from shapeexec.attention.backends._diagonal import Diagonal, diagonal_of
from shapeexec.attention.masks import Mask

_DTYPES = ("float16", "bfloat16")
_OLDEST = (8, 0)
_LARGEST_HEAD, _LARGEST_HEAD_OF_HOPPER = 128, 256
_WHOLE = 128
"""The gradient may be NaN at lengths that are not multiples of this, if scores are far below 0.

Sources: github.com/pytorch/pytorch/issues/196678, github.com/NVIDIA/cudnn-frontend/issues/160
and /1072. cuDNN refuses odd lengths itself.
"""


class _Cudnn:
    """See the module."""

    def tile(self, signature: Signature, mask: Mask) -> tuple[int, int]:
        """Any tile: the lists are not used."""
        return signature.tile

    def refuses(self, signature: Signature, mask: Mask, *, platform: str) -> str | None:
        """See `Backend`. It takes half precision and few masks, on CUDA."""
        if platform != "cuda":
            return f"it needs an NVIDIA GPU, and this is {platform}"
        if not _compat.cudnn_attention_is_known():
            return "this version of jax keeps it elsewhere"
        return (
            _refusal_of_operands(signature, _device.compute_capability())
            or _refusal_of_mask(signature, mask)
            or (_refusal_of_gradient(signature) if signature.is_backward else None)
        )

    def forward(
        self, signature: Signature, work: Work, *, q: Array, k: Array, v: Array, bias: Any
    ) -> tuple[Array, Array]:
        """See `Backend`."""
        return _compat.cudnn_attention(q, k, v, **_parameters(signature, work))

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
        """See `Backend`. `refuses` has excluded calls whose gradient is not supported."""
        gradients = _compat.cudnn_attention_gradient(
            (residuals.q, residuals.k, residuals.v),
            (residuals.out, residuals.logsumexp),
            d_out,
            **_parameters(signature, work),
        )
        return *gradients, None


backend = _Cudnn()


def _refusal_of_operands(signature: Signature, capability: tuple[int, int] | None) -> str | None:
    if capability is not None and capability < _OLDEST:
        return f"it needs compute capability 8.0, and this is {'.'.join(map(str, capability))}"
    if signature.dtype not in _DTYPES:
        return f"it takes {' and '.join(_DTYPES)}, not {signature.dtype}"
    largest = _LARGEST_HEAD_OF_HOPPER if capability == _device.HOPPER else _LARGEST_HEAD
    if signature.head_size % 8 or signature.head_size > largest:
        return f"its heads are multiples of 8 up to {largest}, not {signature.head_size}"
    if signature.value_size != signature.head_size:
        return "its heads of query and value have one size"
    if signature.bias is not None:
        return "a bias is left to the other back ends, who know rows of -inf"
    return "it reads behind valid lengths" if signature.is_ragged else None


def _refusal_of_mask(signature: Signature, mask: Mask) -> str | None:
    band = diagonal_of(mask, queries=signature.query_size, keys=signature.key_size)
    if band is None or not (band == Diagonal() or band.right == 0):
        return f"it knows causal masks and causal windows, not {mask!r}"
    if band.left is not None and band.left < 0:
        return "a window without a query's own position is not known to it"
    if band.left is not None and signature.query_size > signature.key_size:
        return "some queries have no key in their window"
    return None


def _refusal_of_gradient(signature: Signature) -> str | None:
    if signature.deterministic:
        return "its gradient differs from call to call in the last bits: say deterministic=False"
    if signature.logsumexp_gradient:
        return "it has no gradient of the log-sum-exp"
    sizes = signature.query_size, signature.key_size
    if any(size % _WHOLE for size in sizes):
        return f"its gradient is right at lengths of whole {_WHOLE}s, and these are {sizes}"
    return None


def _parameters(signature: Signature, work: Work) -> dict[str, Any]:
    band = diagonal_of(work.mask, queries=signature.query_size, keys=signature.key_size)
    assert band is not None
    return {
        "scale": signature.scale,
        "is_causal": band.right == 0,
        "window": None if band.left is None else band.left + 1,
    }
