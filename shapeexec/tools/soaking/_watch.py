"""Measures while threads call: counts, the duration of calls, and the process' memory.

Each thread writes to its own places, so that no thread waits for a count.
"""

import collections
import dataclasses
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True)
class Sample:
    """The state at a moment.

    Attributes:
        seconds: Since the beginning.
        phase: Its name.
        calls: The number of calls that ended.
        compiles: The number of XLA compilations of graphs.
        graphs: The number of graphs that are kept.
        mib: Resident memory of the process, in MiB.
    """

    seconds: float
    phase: str
    calls: int
    compiles: int
    graphs: int
    mib: float


@dataclasses.dataclass(frozen=True)
class Stall:
    """A call that took long.

    Attributes:
        seconds: Its duration so far; it may still run.
        call: The call.
    """

    seconds: float
    call: str


class Watch:
    """The calls of some threads.

    Args:
        threads: The number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._began = time.monotonic()
        self._running: list[tuple[float, object] | None] = [None] * threads
        self._longest: list[tuple[float, object]] = [(0.0, "")] * threads
        self._counts = [collections.Counter[str]() for _ in range(threads)]
        self.samples: list[Sample] = []

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self._began

    def begin(self, thread: int, call: object) -> None:
        """Record that a thread begins a call; `str(call)` names it."""
        self._running[thread] = time.monotonic(), call

    def end(self, thread: int, outcome: str) -> None:
        """Record that the thread's call has ended."""
        running = self._running[thread]
        assert running is not None
        self._running[thread] = None
        self._counts[thread][outcome] += 1
        seconds = time.monotonic() - running[0]
        if seconds > self._longest[thread][0]:
            self._longest[thread] = seconds, running[1]

    @property
    def counts(self) -> dict[str, int]:
        """The number of calls that have ended, by outcome."""
        total: collections.Counter[str] = collections.Counter()
        for counted in self._counts:
            total.update(dict(counted))
        return dict(total)

    def running(self) -> list[Stall]:
        """The calls that have not ended."""
        now = time.monotonic()
        return [Stall(now - began, str(call)) for began, call in filter(None, list(self._running))]

    def longest(self) -> Stall:
        """The call with the longest duration, ended or not."""
        ended = [Stall(seconds, str(call)) for seconds, call in self._longest]
        return max([*ended, *self.running()], key=lambda stall: stall.seconds)

    def sample(self, phase: str, *, compiles: int, graphs: int) -> Sample:
        """Take a sample, and keep it."""
        calls = sum(self.counts.values())
        taken = Sample(self.seconds, phase, calls, compiles, graphs, resident_mib())
        self.samples.append(taken)
        return taken


def resident_mib() -> float:
    """The resident memory of this process in MiB; where unknown, its maximum so far."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * _PAGE / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def growth(samples: Sequence[Sample], per: str) -> float | None:
    """The slope of the line through resident memory, by least squares, in MiB for each `per`.

    Args:
        samples: The samples of one phase.
        per: `"calls"`, `"compiles"` or `"seconds"`.

    Returns:
        The slope; None if the count did not change, or there are fewer than three samples.
    """
    x: list[float] = [getattr(sample, per) for sample in samples]
    if len(x) < 3 or x[0] == x[-1]:
        return None
    line = np.polynomial.Polynomial.fit(x, [sample.mib for sample in samples], 1)
    return float(line.convert().coef[1])
