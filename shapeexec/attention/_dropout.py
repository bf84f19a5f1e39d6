"""Dropout of attention's weights, made of attention itself: no kernel knows of it.

With K the keys that are kept, and the weights w = exp(score - lse) of all of them,

    sum over K of w / (1 - rate) * value  =  attention over K * exp(lse of K - lse) / (1 - rate),

so two calls do, and their gradients too: over the pairs kept, and for the log-sum-exp alone.
"""

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec._errors import ConfigError
from shapeexec.attention.masks import Mask
from shapeexec.attention.masks.kept import Kept

Array = Any
Attend = Callable[[Mask, Array], tuple[Array, Array]]

_COLUMNS = 8  # of values that nobody asks for: the fewest that every kernel takes


def with_dropout(
    attend: Attend, mask: Mask, value: Array, rate: float, key: Array
) -> tuple[Array, Array]:
    """What `attend` gives, with weights dropped; the log-sum-exp is that of all scores.

    Args:
        attend: attend(mask, value) gives the output [B, T, N, V] and the log-sum-exp f32[B, N, T].
        mask: Who may attend to whom.
        value: [B, S, K, V].
        rate: The probability that a weight becomes 0; the others are divided by 1 - rate.
        key: Of `jax.random`.
    """
    bits = jax.random.bits(key, value.shape[:1], np.uint32)
    kept = Kept(rate, lax.bitcast_convert_type(bits, np.int32))
    out, of_kept = attend(mask & kept, value)
    _, logsumexp = attend(mask, jnp.zeros((*value.shape[:3], _COLUMNS), value.dtype))
    # Where no key is allowed, there is none kept: 0, and no difference of infinities.
    least = jnp.where(logsumexp == -np.inf, 0.0, logsumexp)
    share = jnp.exp(of_kept - least) / (1 - rate)
    return (out * share.transpose(0, 2, 1)[..., None]).astype(out.dtype), logsumexp


def check_dropout(rate: Any, key: Any) -> None:
    """Check the arguments of the public function.

    Raises:
        ConfigError: The rate is not a known number from 0 to below 1, or there is no key.
    """
    if not isinstance(rate, numbers.Real) or not 0 <= float(rate) < 1:
        raise ConfigError(
            f"dropout_rate={rate!r} is no number from 0 to below 1.",
            why="it is static: which weights are dropped is up to the key",
            fix="dropout_rate=0.1",
        )
    if rate and key is None:
        raise ConfigError(
            f"dropout_rate={rate} needs a key.",
            fix="dropout_key=jax.random.key(0), another one for each call",
        )
