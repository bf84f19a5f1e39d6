"""Attention as Flax's modules call it: `attention_fn=` of linen and of nnx.

It knows what their arguments mean, and imports no Flax.
"""

import math
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
    """What Flax's `MultiHeadDotProductAttention` takes as `attention_fn=`, in linen and in nnx.

    It has the arguments of their `dot_product_attention` and means the same, computed by
    `shapeexec.dot_product_attention`. It differs where a query has no key to attend to: that gives
    0. The softmax is made in f32, or in f64 for operands of that.

    Args:
        query: [batch..., T, N, H].
        key: [batch..., S, K, H]; K divides N.
        value: [batch..., S, K, V].
        bias: Broadcasts to [batch..., N, T, S]; or a score modifier.
        mask: Likewise, as `make_causal_mask` and its like make it: of any dtype, and a query may
            not attend where it is 0 or False. Or a mask such as `Causal()`.
        broadcast_dropout: Each example and head drops weights of its own, whatever it says.
        dropout_rng: The key of `jax.random` that says which weights are dropped.
        dropout_rate: The probability that a weight becomes 0.
        deterministic: Whether nothing is dropped, as in evaluation: Flax's meaning, and not that
            of `shapeexec.dot_product_attention`.
        dtype: What operands become; None: what they promote to.
        precision: It is up to the back end, whatever it says.
        module: Whom to tell the weights. Nobody can be told: they are never held.
        force_fp32_for_softmax: It is so always.
        einsum_dot_general: None only.
        qk_attn_weights_einsum: None only.
        attn_weights_value_einsum: None only.
        is_causal: Whether queries attend to keys up to their own position only.
        within: Only pairs that this mask allows too. Modules hand over a `mask=` of their own in
            each call; this one is for `functools.partial`.
        implementation: The name of a back end; None: the best one for device and shapes.

    Raises:
        ConfigError: Something is asked for that is not there, or an argument contradicts another.

    Example:
        >>> attend = functools.partial(flax_attention_fn, within=SlidingWindow(256))
        >>> layer = flax.linen.MultiHeadDotProductAttention(8, attention_fn=attend)
    """
    del broadcast_dropout, precision, force_fp32_for_softmax
    if module is not None:
        raise ConfigError(
            "sow_weights=True asks for the weights of attention.",
            why="they are made tile by tile, and never held",
            fix="sow_weights=False, or Flax's own attention_fn where weights are looked at",
        )
    einsums = (einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum)
    if any(einsum is not None for einsum in einsums):
        raise ConfigError(
            "attention has no room for an einsum or dot_general of your own.",
            why="its products are made inside of kernels",
            fix="leave it out, or use Flax's own attention_fn",
        )
    dtype = jnp.result_type(query, key, value) if dtype is None else dtype
    query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
    batch = query.shape[:-3]
    is_dropping = dropout_rate > 0 and not deterministic
    out = dot_product_attention(
        *(_with_one_batch(x) for x in (query, key, value)),
        bias=bias if isinstance(bias, ScoreModifier) else _of_pairs(bias, batch),
        mask=_joined(mask, batch, within),
        is_causal=is_causal,
        implementation=implementation,
        dropout_rate=dropout_rate if is_dropping else 0.0,
        dropout_key=dropout_rng if is_dropping else None,
    )
    return out.reshape(*batch, *out.shape[-3:])


def _with_one_batch(x: Array) -> Array:
    return x if x.ndim <= 4 else x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _joined(mask: Any, batch: tuple[int, ...], within: Mask | None) -> Any:
    if mask is not None and not isinstance(mask, Mask):
        array = jnp.asarray(mask)
        mask = _of_pairs(array if array.dtype == np.bool_ else array != 0, batch)
    if mask is None or within is None:
        return within if mask is None else mask
    return within & mask


def _of_pairs(x: Any, batch: tuple[int, ...]) -> Any:
    """What broadcasts to [batch..., N, T, S], with one axis for the batch."""
    if x is None or len(batch) < 2:
        return x
    x = jnp.asarray(x)
    if x.ndim <= 3 or math.prod(x.shape[:-3]) == 1:
        return x.reshape(x.shape[-3:])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape(math.prod(batch), *x.shape[-3:])
