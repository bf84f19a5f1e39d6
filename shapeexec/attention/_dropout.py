"""Dropout of attention weights, composed of calls of attention: kernels need no support for it.

With K the keys that are kept, and the weights w = exp(score - logsumexp) over all keys,

    sum over K of w / (1 - rate) * value
        =  attention over K * exp(logsumexp over K - logsumexp) / (1 - rate).

So two calls suffice, for gradients too: one over the kept pairs, one for the log-sum-exp of all.
Where scores are large, as under a bias of -1e9, the difference of the two log-sum-exps has lost its
digits. Then it is computed from two more calls, whose scores are shifted by the log-sum-exp of
their row. The derivative of the difference needs the digits of each log-sum-exp only.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec._errors import ConfigError
from shapeexec.attention.backends._softmax import finite
from shapeexec.attention.masks import Mask
from shapeexec.attention.masks.kept import Kept
from shapeexec.attention.masks.scores import Added

Attend = Callable[[Mask, Array, Any], tuple[Array, Array]]

_COLUMNS = 8  # columns of an unused value: the fewest that every kernel takes
_LARGE = 128.0  # from here on a log-sum-exp of f32 has an error of 2**-17 and more


def with_dropout(
    attend: Attend,
    mask: Mask,
    *,
    bias: Any,
    value: Array,
    batch: Any,
    rate: float,
    key: Array,
) -> tuple[Array, Array]:
    """The results of `attend` with weights dropped; the log-sum-exp is taken over all scores.

    Args:
        attend: attend(mask, value, bias) returns the output [B, T, N, V] and the log-sum-exp
            [B, N, T].
        mask: The pairs that are allowed.
        bias: An array of four axes, a score modifier, or None.
        value: [B, S, K, V], or pages of it.
        batch: B.
        rate: The probability that a weight becomes 0; the others are divided by 1 - rate.
        key: A key of `jax.random`.
    """
    bits = jax.random.bits(key, (batch,), np.uint32)
    kept = mask & Kept(rate, lax.bitcast_convert_type(bits, np.int32))
    no_value = jnp.zeros((*value.shape[:3], _COLUMNS), value.dtype)
    out, of_kept = attend(kept, value, bias)
    _, logsumexp = attend(mask, no_value, bias)

    def share() -> Array:
        # If no key is allowed, none is kept: the result is 0, not a difference of infinities.
        return jnp.exp(of_kept - finite(logsumexp))

    def share_near_0() -> Array:
        rows = -finite(logsumexp)[..., None]
        moved = rows if bias is None else Added(bias, rows)
        kept_near_0, near_0 = (attend(who, no_value, moved)[1] for who in (kept, mask))
        return jnp.exp(kept_near_0 - finite(near_0))

    is_large = jnp.any((abs(logsumexp) > _LARGE) & jnp.isfinite(logsumexp))
    with_digits = lax.stop_gradient(lax.cond(is_large, share_near_0, share))
    # 1, whose derivative is that of the logarithm of the share.
    one = finite(of_kept) - finite(logsumexp)
    one = jnp.exp(one - lax.stop_gradient(one))
    factor = with_digits * one / (1 - rate)
    dropped = out.astype(factor.dtype) * factor.transpose(0, 2, 1)[..., None]
    return dropped.astype(out.dtype), logsumexp


def check_dropout(rate: Any, key: Any, *, deterministic: Any) -> None:
    """Check the dropout arguments of the public function.

    Raises:
        ConfigError: The rate is not a concrete number in [0, 1), `key` is not a single key, or
            `deterministic` is True, by which Flax means no dropout.
    """
    if not isinstance(rate, numbers.Real) or not 0 <= float(rate) < 1:
        raise ConfigError(
            f"dropout_rate={rate!r} is not a number in [0, 1).",
            option="dropout_rate",
            why="the rate is static; only the key may be traced",
            fix="dropout_rate=0.1",
        )
    if rate and key is None:
        raise ConfigError(
            f"dropout_key is None, but dropout_rate={rate} needs a key.",
            option="dropout_key",
            fix="dropout_key=jax.random.key(0), another one for each call",
        )
    if rate and not _is_key(key):
        raise ConfigError(
            f"dropout_key={key!r} is not a single key.",
            option="dropout_key",
            fix="dropout_key=jax.random.key(0), another one for each call",
        )
    if rate and deterministic:
        raise ConfigError(
            f"deterministic=True with dropout_rate={rate}.",
            option="deterministic",
            why="in Flax it means no dropout, as in evaluation; here it means that equal calls give"
            " equal bits, which is the default",
            fix="leave deterministic= out, or dropout_rate=0 for no dropout; to Flax give"
            " shapeexec.attention.flax_attention_fn",
        )


def _is_key(key: Any) -> bool:
    dtype: Any = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return key.ndim == 0
    return dtype == np.uint32 and np.ndim(key) == 1  # as of jax.random.PRNGKey
