"""XLA compilations, counted from JAX's own monitoring events.

JAX records an event for each compilation, whoever asked for it, in the thread that asked. What is
compiled, and for whom, is not known here.
"""

import threading
from typing import Any

import jax

from shapeexec import _compat


class _Totals:
    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.own = _Totals()


totals = _OfThread()
"""Its `own`: the count and seconds of what this thread has compiled since `listen`."""


class Span:
    """What this thread compiles from now on: programs that copy data, and graphs that run.

    Attributes:
        copies: XLA compilations of pads, slices and stacks.
        compiles: XLA compilations of graphs.
        compile_seconds: The time that these took.
    """

    __slots__ = ("_count", "_own", "_seconds", "compile_seconds", "compiles", "copies")

    def __init__(self) -> None:
        own = self._own = totals.own
        self._count, self._seconds = own.count, own.seconds
        self.copies = self.compiles = 0
        self.compile_seconds = 0.0

    def restart(self) -> None:
        """Leave out what was compiled since the last mark."""
        self._count, self._seconds = self._own.count, self._own.seconds

    def copied(self) -> None:
        """Take what was compiled since the last mark for copies."""
        if self._own.count != self._count:  # a hit compiles nothing
            self.copies += self._own.count - self._count
            self.restart()

    def ran(self) -> None:
        """Take what was compiled since the last mark for graphs."""
        if self._own.count != self._count:
            self.compiles += self._own.count - self._count
            self.compile_seconds += self._own.seconds - self._seconds
            self.restart()


_listen_lock = threading.Lock()
_is_listening = False


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    if event == _compat.COMPILE_EVENT:
        own = totals.own
        own.count += 1
        own.seconds += duration_secs


def listen() -> None:
    """Begin to listen to JAX's events; only the first call does anything."""
    global _is_listening  # noqa: PLW0603 - JAX's listeners are a global of the process too
    with _listen_lock:
        if not _is_listening:
            jax.monitoring.register_event_duration_secs_listener(_on_event)
            _is_listening = True
