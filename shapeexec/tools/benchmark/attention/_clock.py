"""Times compiled programs: by the device's profiler, and by the host's clock.

`_run` checks their results.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_WARM = 1.0
"""Seconds of work before anything is measured."""

_QUEUE = 0.03
"""Seconds that a queue of calls should take: many times the cost of starting it."""

_QUEUES = 5
"""The number of queues whose median is taken."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds of one call.

    Attributes:
        wall: The time of a queue of calls, divided by their number; the median of some queues.
        device: The time of its kernels, without the gaps between them; None: unknown.
        kernels: Each kernel's name and milliseconds, in the order in which they ran.
    """

    wall: float
    device: float | None = None
    kernels: tuple[tuple[str, float], ...] = ()

    @property
    def best_known(self) -> float:
        """The device's time if known, else the host's."""
        return self.wall if self.device is None else self.device


def clock(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Timing:
    """Time a compiled program.

    Args:
        call: The result of `jax.jit(...).lower(...).compile()`.
        arguments: Its arguments.
    """
    jax.block_until_ready(call(*arguments))
    once = _queue(call, arguments, length=1)
    length = int(min(200, max(1, _QUEUE / once)))
    wall = statistics.median(_queue(call, arguments, length=length) for _ in range(_QUEUES))
    kernels = _kernels(call, arguments, iterations=min(12, max(4, length)))
    device = sum(milliseconds for _, milliseconds in kernels) or None
    return Timing(1e3 * wall, device, kernels)


def warm_up() -> None:
    """Keep a GPU busy for a second: an idle GPU is faster at first."""
    if jax.default_backend() != "gpu":
        return
    matrix = jax.random.normal(jax.random.key(0), (8192, 8192), jnp.bfloat16)
    call = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    start = time.perf_counter()
    while time.perf_counter() - start < _WARM:
        _queue(call, (matrix, matrix), length=10)


def _queue(call: Callable[..., Any], arguments: tuple[Any, ...], *, length: int) -> float:
    start, result = time.perf_counter(), None
    for _ in range(length):
        result = call(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / length


def _kernels(
    call: Callable[..., Any], arguments: tuple[Any, ...], *, iterations: int
) -> tuple[tuple[str, float], ...]:
    if jax.default_backend() != "gpu":
        return ()
    from jax.experimental.mosaic.gpu import profiler  # noqa: PLC0415 - only GPUs have it

    try:
        _, calls = profiler.measure(call, iterations=iterations, aggregate=False)(*arguments)
    except RuntimeError:  # no CUPTI, or calls that started different kernels
        return ()
    return tuple(
        (kernels[0][0], statistics.median(milliseconds for _, milliseconds in kernels))
        for kernels in zip(*calls or (), strict=True)
    )
