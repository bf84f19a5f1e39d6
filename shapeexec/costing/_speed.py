"""How long this device takes for each kind of work, measured once per process.

What a program does is in `_model`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_ROUNDS = 15
_WIDTH = 512  # of the matrices
_SMALL, _LARGE, _FRESH = 1 << 18, 1 << 20, 1 << 23  # elements of arrays
_CHAIN = 8  # transcendentals of one element
_STEPS, _TINY, _KERNELS = 256, 8, 4  # of a loop of tiny kernels
_ACCELERATED = 8  # how many times as large arrays are on an accelerator
FRESH_ABOVE = 32 * 2**20
"""Bytes from which on a CPU's allocator gives memory back after each call, so that the system has
to clear new pages. Measured with glibc: a copy of 16 MiB meets no page fault, one of 32 MiB one for
each page."""
_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How long a device takes for each kind of work.

    Attributes:
        seconds_per_flop: Of a matrix product, in f32.
        seconds_per_byte: Of a copy.
        seconds_per_transcendental: Of a hyperbolic tangent.
        seconds_per_launch: From the end of one kernel to the end of the next, of tiny ones.
        seconds_per_call: Of a compiled program that does nothing.
        seconds_per_fresh_byte: Of memory that is taken anew in each call, on a CPU by programs that
            need more than 32 MiB at once.

    Example:
        >>> Speed(seconds_per_flop=1e-11, seconds_per_byte=1e-10).seconds_per_call
        0.0
    """

    seconds_per_flop: float
    seconds_per_byte: float
    seconds_per_transcendental: float = 0.0
    seconds_per_launch: float = 0.0
    seconds_per_call: float = 0.0
    seconds_per_fresh_byte: float = 0.0


def speed_of(device: Any = None) -> Speed:
    """Measure the speed of a device: about a second; later calls return what was measured.

    Args:
        device: A `jax.Device`; None: the default one.
    """
    with _LOCK:  # another thread's work would be measured, too
        return _measured(jax.devices()[0] if device is None else device)


@functools.cache
def _measured(device: Any) -> Speed:
    scale = 1 if device.platform == "cpu" else _ACCELERATED
    small, large, fresh = _SMALL * scale, _LARGE * scale, _FRESH

    def seconds(fn: Callable[[Any], Any], *shape: int) -> float:
        return _seconds(fn, jax.device_put(jnp.full(shape, 0.5), device))

    width = _WIDTH * scale
    call = seconds(lambda x: x + 1, 1)
    copies = {count: seconds(lambda x: x + 1, count) for count in (small, large, fresh)}
    product = seconds(lambda x: x @ x, width, width)
    tanh = seconds(_chain, small)
    tiny = seconds(_loop, _TINY, _TINY)
    per_byte = max(copies[large] - call, 0.0) / (8 * large)
    to_clear = max(copies[fresh] - 8 * fresh * per_byte, 0.0) if device.platform == "cpu" else 0.0
    return Speed(
        seconds_per_flop=max(product - call, 0.0) / (2 * width**3),
        seconds_per_byte=per_byte,
        seconds_per_transcendental=max(tanh - copies[small], 0.0) / (_CHAIN * small),
        seconds_per_launch=max(tiny - call, 0.0) / (_STEPS * _KERNELS),
        seconds_per_call=call,
        seconds_per_fresh_byte=to_clear / (4 * fresh),
    )


def _chain(x: Any) -> Any:
    for _ in range(_CHAIN):
        x = jnp.tanh(x)
    return x


def _loop(x: Any) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, None]:
        for _ in range(_KERNELS // 2):
            carry = jnp.tanh(carry @ x)
        return carry, None

    return jax.lax.scan(step, x, None, length=_STEPS)[0]


def _seconds(fn: Callable[[Any], Any], x: Any) -> float:
    """The least time of a call: other programs may have slowed down the others."""
    run = jax.jit(fn).lower(x).compile()
    jax.block_until_ready(run(x))
    found: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready(run(x))
        found.append(time.perf_counter() - began)
    return min(found)
