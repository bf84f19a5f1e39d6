"""How long this device takes for each kind of work, measured once per process.

It times the programs in `_programs`, and `_count` counts their work.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import as_float
from shapeexec.bucketing._fit import Floats
from shapeexec.costing._count import count
from shapeexec.costing._programs import TimedProgram, timed_programs
from shapeexec.costing._work import Work

_ROUNDS, _REPEATS = 11, 3
_LARGE, _FRESH = 1 << 20, 1 << 23  # elements of arrays
_ACCELERATED = 8  # how many times as large programs are on an accelerator
FRESH_ABOVE = 32 * 2**20
"""Allocations above this many bytes are returned to the system after each call on a CPU, so the
next call has to clear new pages. Measured with glibc: a copy of 16 MiB has no page fault, a copy of
32 MiB one per page."""
_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How long a device takes for each kind of work.

    Attributes:
        seconds_per_flop: For matrix products and pointwise operations.
        seconds_per_byte: For bytes read and written outside of fused loops.
        seconds_per_transcendental: For an exponential, a hyperbolic tangent and the like.
        seconds_per_launch: The overhead of a kernel.
        seconds_per_call: The overhead of a call of a compiled program.
        seconds_per_fresh_byte: For memory that is newly allocated in each call; on a CPU, by
            programs that need more than 32 MiB at once.
        seconds_per_convolved_flop: For convolutions. None: as for matrix products.

    Raises:
        ConfigError: A value is negative, not finite, or not a number.

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
    seconds_per_convolved_flop: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_left = value is None and name == "seconds_per_convolved_flop"
            if not (is_left or 0 <= as_float(value) < math.inf):
                raise ConfigError(
                    f"{name}={value!r:.40} is not a finite number of at least 0.",
                    option=name,
                    fix=f"{name}=1e-11, say, in seconds",
                )

    @property
    def rates(self) -> tuple[float, ...]:
        """The factors of `Work.amounts`, whose FLOPs include the FLOPs of convolutions."""
        convolved = self.seconds_per_convolved_flop
        return (
            self.seconds_per_flop,
            0.0 if convolved is None else convolved - self.seconds_per_flop,
            self.seconds_per_transcendental,
            self.seconds_per_byte,
            self.seconds_per_launch,
        )


def speed_of(device: Any = None) -> Speed:
    """Measure the speed of a device: a few seconds; later calls return what was measured.

    Args:
        device: A `jax.Device`; None: the default one.
    """
    with _LOCK:  # measurements in two threads would disturb each other
        return _measured(jax.devices()[0] if device is None else device)


@functools.cache
def _measured(device: Any) -> Speed:
    """The speed that fits the measured times of small programs."""
    is_cpu = device.platform == "cpu"
    known = [*timed_programs(1 if is_cpu else _ACCELERATED)]
    copies = [TimedProgram(_copied, ((elements,),)) for elements in (_LARGE, _FRESH)]
    seconds = _seconds([*known, *copies], device)
    flop, convolved, transcendental, byte, launch, call = fitted(
        [_work(program) for program in known], seconds[: len(known)]
    )
    usual, fresh = seconds[len(known) :]
    to_clear = max(fresh - usual * _FRESH / _LARGE, 0.0) if is_cpu else 0.0
    return Speed(
        seconds_per_flop=flop,
        seconds_per_convolved_flop=convolved,
        seconds_per_byte=byte,
        seconds_per_transcendental=transcendental,
        seconds_per_launch=launch,
        seconds_per_call=call,
        seconds_per_fresh_byte=to_clear / (4 * _FRESH),
    )


def _copied(x: Any) -> Any:
    return x + 1


def _work(program: TimedProgram) -> Work:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in program.shapes]
    found = count(jax.make_jaxpr(program.fn)(*shapes), str)
    return sum((one.work for one in found), start=Work())


def fitted(works: Sequence[Work], seconds: Sequence[float]) -> list[float]:
    """Non-negative least squares on relative error: the seconds of each kind of work.

    It tries each set of kinds with the other kinds at 0, and takes the best non-negative one.

    Args:
        works: The work of programs without symbols.
        seconds: The measured time of each program.

    Returns:
        Seconds per FLOP of matrix products and of convolutions, per transcendental, per byte, per
        launch and per call.
    """
    rows: list[list[float]] = []
    for work in works:
        flops, convolved, *others = (float(amount({})) for amount in work.amounts)
        rows.append([flops - convolved, convolved, *others, 1.0])
    shares: Floats = np.array(rows) / np.array(seconds)[:, None]
    greatest = shares.max(axis=0)
    shares = shares / np.where(greatest > 0, greatest, 1.0)
    best, least = np.zeros(len(greatest)), float(len(rows))
    for size in range(1, len(greatest) + 1):
        for kinds in itertools.combinations(range(len(greatest)), size):
            own = shares[:, kinds]
            found = np.linalg.lstsq(own, np.ones(len(own)))[0].astype(float)
            error = float(((own @ found - 1) ** 2).sum())
            if error < least and bool((found >= 0).all()):
                best, least = np.zeros(len(greatest)), error
                best[[*kinds]] = found
    return (best / np.where(greatest > 0, greatest, 1.0)).tolist()


def _seconds(known: Sequence[TimedProgram], device: Any) -> list[float]:
    """Per program the median over rounds of its least time in a round.

    So other programs on the machine, which interrupt a call now and then, count little.
    """
    calls = [_compiled(program, device) for program in known]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, own in zip(calls, found, strict=True):
            call()  # warms the caches
            own.append(min(_once(call) for _ in range(_REPEATS)))
    return [statistics.median(own) for own in found]


def _once(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _compiled(program: TimedProgram, device: Any) -> Callable[[], Any]:
    arrays = [jax.device_put(jnp.full(shape, 0.01), device) for shape in program.shapes]
    run = jax.jit(program.fn).lower(*arrays).compile()
    return lambda: jax.block_until_ready(run(*arrays))
