"""How many graphs XLA compiles at once in this process: two for each core.

With more at once some compilations wait for long in XLA, and each takes memory. A thread holds a
turn only while XLA works, and takes no lock meanwhile, so there is no deadlock.
"""

import collections
import contextlib
import os
import threading
from collections.abc import Generator

from shapeexec.execution._fork import tell_of_forks


class Turns:
    """Turns that threads take in the order in which they ask.

    Args:
        most: How many threads have one at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.forked()
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: no thread has a turn."""
        self._lock = threading.Lock()
        self._free = self._most
        self._waiting: collections.deque[threading.Event] = collections.deque()

    @contextlib.contextmanager
    def turn(self) -> Generator[None]:
        """Wait for a turn, and hold it within the block."""
        mine = threading.Event()
        try:
            with self._lock:
                if self._free:
                    self._free -= 1
                    mine.set()
                else:
                    self._waiting.append(mine)
            mine.wait()
            yield
        finally:
            self._end(mine)

    def _end(self, mine: threading.Event) -> None:
        with self._lock:
            if mine in self._waiting:  # it was interrupted
                self._waiting.remove(mine)
            elif mine.is_set() and self._waiting:
                self._waiting.popleft().set()
            elif mine.is_set():
                self._free += 1


def _cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


COMPILING = Turns(2 * _cores())
"""The turns of this process."""
