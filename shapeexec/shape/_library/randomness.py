"""Stand-ins for random permutations and choices of a symbolic number of elements.

The bits themselves are JAX's; at padded shapes the rules draw them.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapeexec import _compat


@_compat.stands_in("permutation")
def permutation(original: Any, key: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Permute `arange(n)` in place of `n`."""
    x = jnp.arange(x) if _compat.is_symbolic(x) else x
    return original(key, x, *args, **kwargs)


@_compat.stands_in("choice")
def choice(original: Any, key: Any, a: Any, *args: Any, **kwargs: Any) -> Any:
    """Choose from `arange(n)` in place of `n`."""
    a = jnp.arange(a) if _compat.is_symbolic(a) else a
    return original(key, a, *args, **kwargs)


_GREATEST = np.iinfo(np.uint32).max


def _greatest_size(rounds: int) -> int:
    """The largest size that JAX shuffles in this many rounds of sorting by 32 random bits."""
    size = math.floor(_GREATEST ** (rounds / 3))
    while _rounds(size + 1) <= rounds:
        size += 1
    while _rounds(size) > rounds:
        size -= 1
    return size


def _rounds(size: int) -> int:
    return int(np.ceil(3 * np.log(max(1, size)) / np.log(_GREATEST)))


_MOST_OF_ROUNDS = (1, 2)


@_compat.stands_in("shuffle")
def shuffle(original: Any, key: Any, x: Any, axis: int) -> Any:
    """Sort by random keys, as many times as JAX does; the number of rounds is a guard.

    For one element JAX does no round. One round changes nothing there.
    """
    del original
    size = math.prod(x.shape)
    rounds = next((n for n in _MOST_OF_ROUNDS if size <= _greatest_size(n)), 3)
    for _ in range(rounds):
        key, own = jax.random.split(key)
        bits = jax.random.bits(own, x.shape)
        _, x = lax.sort_key_val(bits, x, axis)
    return x
