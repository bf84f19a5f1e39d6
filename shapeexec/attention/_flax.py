"""Attention as Flax's modules call it: `attention_fn=` of linen and of nnx.

It knows the meaning of Flax's arguments, and does not import Flax.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec._errors import ConfigError
from shapeexec.attention._api import Implementation, dot_product_attention
from shapeexec.attention.masks import Mask, ScoreModifier


def flax_attention_fn(  # noqa: PLR0917 - the order is Flax's
    query: Array,
    key: Array,
    value: Array,
    bias: Any = None,
    mask: Any = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
    is_causal: bool = False,
    *,
    within: Mask | None = None,
    implementation: Implementation = None,
) -> Array:
    """Attend as an `attention_fn=` of Flax's `MultiHeadDotProductAttention`, linen and nnx.

    It takes the arguments of their `dot_product_attention`, with the same meaning, and calls
    `shapeexec.dot_product_attention`. It differs where a query has no key to attend to: there it
    returns 0. The softmax is computed in f32, or in f64 for f64 operands.

    Args:
        query: [batch..., T, N, H].
        key: [batch..., S, K, H]; K divides N.
        value: [batch..., S, K, V].
        bias: Broadcasts to [batch..., N, T, S]; or a score modifier.
        mask: Broadcasts to [batch..., N, T, S], as `flax.linen.make_causal_mask` makes it: of any
            dtype, and a query may not attend where it is 0 or False. Or a mask such as `Causal()`.
        broadcast_dropout: Ignored: each example and head drops weights of its own.
        dropout_rng: The key of `jax.random` for the dropped weights.
        dropout_rate: The probability that a weight becomes 0.
        deterministic: Whether nothing is dropped, as in evaluation. This is Flax's meaning;
            `shapeexec.dot_product_attention` has an argument of this name with another one.
        dtype: The dtype that operands are cast to; None: the one they promote to.
        precision: Ignored: the back end chooses the precision.
        module: None only: attention weights are never stored, so none can be sown.
        force_fp32_for_softmax: Ignored: the softmax is computed in f32 at least.
        einsum_dot_general: None only.
        qk_attn_weights_einsum: None only.
        attn_weights_value_einsum: None only.
        is_causal: Whether queries attend to keys up to their own position only.
        within: Only pairs that this mask also allows. Set it by `functools.partial`, as Flax's
            modules pass their own `mask=` in each call.
        implementation: The name of a back end; None: the best one for device and shapes.

    Returns:
        [batch..., T, N, V], of `dtype`.

    Raises:
        ConfigError: An argument is not supported, or contradicts another one.

    Example:
        >>> import functools, flax.linen
        >>> attend = functools.partial(flax_attention_fn, within=SlidingWindow(256))
        >>> flax.linen.MultiHeadDotProductAttention(8, attention_fn=attend).num_heads
        8
    """
    del broadcast_dropout, precision, force_fp32_for_softmax
    einsums = (einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum)
    _check_supported(module, einsums)
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
    batch, is_dropping = query.shape[:-3], dropout_rate > 0 and not deterministic
    out = dot_product_attention(
        *(_with_one_batch(x) for x in (query, key, value)),
        bias=bias if isinstance(bias, ScoreModifier) else _of_pairs(bias, batch),
        mask=_joined(mask, batch, within=within),
        is_causal=is_causal,
        implementation=implementation,
        dropout_rate=dropout_rate if is_dropping else 0.0,
        dropout_key=dropout_rng if is_dropping else None,
    )
    return out.reshape(*batch, *out.shape[-3:])


def _check_supported(module: Any, einsums: Sequence[Any]) -> None:
    """Check the arguments of Flax's modules that attention does not support.

    Raises:
        ConfigError: Weights are to be stored, or the caller passes products of its own.
    """
    if module is not None:
        raise ConfigError(
            "sow_weights=True asks for attention weights.",
            option="sow_weights",
            why="weights are computed tile by tile and never stored",
            fix="sow_weights=False, or Flax's own attention_fn where weights are needed",
        )
    if any(einsum is not None for einsum in einsums):
        raise ConfigError(
            "attention cannot use an einsum or dot_general of your own.",
            why="its products are computed inside kernels",
            fix="leave it out, or use Flax's own attention_fn",
        )


def _with_one_batch(x: Array) -> Array:
    return x if x.ndim <= 4 else x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _joined(mask: Any, batch: tuple[int, ...], *, within: Mask | None) -> Any:
    if mask is not None and not isinstance(mask, Mask):
        array = jnp.asarray(mask)
        mask = _of_pairs(array if array.dtype == np.bool_ else array != 0, batch)
    if mask is None or within is None:
        return within if mask is None else mask
    return within & mask


def _of_pairs(x: Any, batch: tuple[int, ...]) -> Any:
    """An array that broadcasts to [batch..., N, T, S], with the batch axes merged into one."""
    if x is None or len(batch) < 2:
        return x
    x = jnp.asarray(x)
    if x.ndim <= 3 or math.prod(x.shape[:-3]) == 1:
        return x.reshape(x.shape[-3:])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape(math.prod(batch), *x.shape[-3:])
