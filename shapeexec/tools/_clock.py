"""Timing of calls that take turns, so that a slow moment of the machine slows all of them alike.

The command decides what is called.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

Work = Callable[[], Any]


def timed(work: Work) -> tuple[float, Any]:
    """Seconds from the call to its result, and the result."""
    start = time.perf_counter()
    result = work()
    jax.block_until_ready(result)
    return time.perf_counter() - start, result


def in_turns(works: Mapping[str, Work], *, rounds: int) -> dict[str, float]:
    """Median seconds of calls that take turns, in the opposite order every other round.

    Args:
        works: The calls, by name; each has already been compiled.
        rounds: How often each call has its turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for _ in range(rounds):
        for name in order:
            seconds[name].append(timed(works[name])[0])
        order.reverse()
    return {name: statistics.median(found) for name, found in seconds.items()}


def seconds_text(seconds: float) -> str:
    """Seconds as a string: `1.25 ms`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
