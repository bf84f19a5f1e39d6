"""The primitives of cuDNN's attention. Which calls they serve is for the back end to say."""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportUnknownMemberType=false

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp


def cudnn_attention_is_known() -> bool:
    """Whether JAX has the primitives of cuDNN's attention by the names that are used here."""
    return _cudnn() is not None


def cudnn_attention(
    q: Any, k: Any, v: Any, *, scale: float, is_causal: bool, window: int | None
) -> tuple[Any, Any]:
    """The output [B, T, N, H] of cuDNN, and the log-sum-exp f32[B, N, T] of scaled scores.

    `jax.nn` rounds the latter to the dtype of the operands. `window`: how many keys up to its own
    position a query sees.
    """
    bind, params = _cudnn_call("fwd", scale=scale, is_causal=is_causal, window=window)
    out, logsumexp = bind(q, k, v, *_unused_of_cudnn(q.dtype), **params, is_training=True)
    return out, logsumexp


def cudnn_attention_gradient(
    operands: tuple[Any, Any, Any],
    results: tuple[Any, Any],
    d_out: Any,
    *,
    scale: float,
    is_causal: bool,
    window: int | None,
) -> tuple[Any, Any, Any]:
    """The gradients of the operands, from the results of any forward pass."""
    bind, params = _cudnn_call("bwd", scale=scale, is_causal=is_causal, window=window)
    out, logsumexp = results
    unused = _unused_of_cudnn(d_out.dtype)
    d_q, d_k, d_v = bind(*operands, *unused, logsumexp, out, d_out, **params)
    return d_q, d_k, d_v


def _unused_of_cudnn(dtype: Any) -> list[Any]:
    """The placeholder for a missing bias, and for lengths, offsets and pages that are not used."""
    return [jnp.zeros(0, dtype)] * 7


@functools.cache
def _cudnn() -> Any:
    try:
        module = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    except ModuleNotFoundError:  # the module is private: another version of JAX may not have it
        return None
    used = ("AttentionLayout", "MaskType", *_CUDNN_NAMES.values())
    return module if all(hasattr(module, name) for name in used) else None


_CUDNN_NAMES = {
    "fwd": "_dot_product_attention_fwd_p",
    "bwd": "_dot_product_attention_bwd_p",
}


def _cudnn_call(
    way: str, *, scale: float, is_causal: bool, window: int | None
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The primitive itself: the one that JAX wraps around it asks for devices to lower."""
    module = _cudnn()
    params = {
        "scale": scale,
        "seed": 42,
        "dropout_rate": 0.0,
        "variadic_args": (False, False),
        "mask_type": module.MaskType.CAUSAL if is_causal else module.MaskType.NO_MASK,
        "layout": module.AttentionLayout.BTNH.value,
        "sliding_window_length": window,
    }
    if jax.__version_info__ >= (0, 12):
        params |= {"score_mod_name": None, "score_mod_jaxpr": None}
    return getattr(module, _CUDNN_NAMES[way]).bind, params
