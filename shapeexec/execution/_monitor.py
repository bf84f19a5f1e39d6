"""XLA compilations, counted from JAX's own monitoring events.

JAX records an event for each compilation, whoever asked for it, in the thread that asked. A
graph is known by the name of its body; callers say which other compilations are copies.
"""

import threading
from typing import Any

import jax

from shapeexec import _compat

GRAPH_PREFIX = "shapeexec_"
"""Begins the name of each graph's body, by which profiles and these events know it."""


class _Totals:
    __slots__ = ("all_seconds", "cached", "count", "graphs", "seconds")

    def __init__(self) -> None:
        self.cached = self.count = self.graphs = 0
        self.seconds = self.all_seconds = 0.0


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.own = _Totals()


totals = _OfThread()
"""Its `own`: what this thread has compiled since `listen`: graphs and others, and their seconds."""


class Span:
    """Counts the compilations of this thread from now on: copies of data, and graphs.

    Attributes:
        copies: XLA compilations of pads, slices and stacks, and of programs by which JAX moves an
            argument to the devices of a graph.
        compiles: XLA compilations of graphs.
        compile_seconds: The time that these took.
        copy_seconds: The time that the compilations of copies took.
    """

    __slots__ = (
        "_all_seconds",
        "_cached",
        "_count",
        "_graphs",
        "_own",
        "_seconds",
        "compile_seconds",
        "compiles",
        "copies",
        "copy_seconds",
    )

    def __init__(self) -> None:
        self._own = totals.own
        self._cached = self._own.cached
        self.restart()
        self.copies = self.compiles = 0
        self.compile_seconds = self.copy_seconds = 0.0

    @property
    def is_cached(self) -> bool:
        """Whether any of them came from JAX's own compilation cache."""
        return self._own.cached != self._cached

    def restart(self) -> None:
        """Set the mark anew; compilations since the last one are not counted."""
        own = self._own
        self._count, self._graphs = own.count, own.graphs
        self._seconds, self._all_seconds = own.seconds, own.all_seconds

    def copied(self) -> None:
        """Count the compilations since the last mark as copies."""
        if self._own.count != self._count:  # a hit compiles nothing
            self.copies += self._own.count - self._count
            self.copy_seconds += self._own.all_seconds - self._all_seconds
            self.restart()

    def ran(self) -> None:
        """Count the compilations since the last mark, of graphs and of copies apart."""
        if self._own.count != self._count:
            graphs = self._own.graphs - self._graphs
            self.compiles += graphs
            self.copies += self._own.count - self._count - graphs
            seconds = self._own.seconds - self._seconds
            self.compile_seconds += seconds
            self.copy_seconds += self._own.all_seconds - self._all_seconds - seconds
            self.restart()


_listen_lock = threading.Lock()
_is_listening = False


def _on_event(event: str, duration_secs: float, *, fun_name: str | int = "", **_: Any) -> None:
    if event == _compat.COMPILE_EVENT:
        own = totals.own
        own.count += 1
        own.all_seconds += duration_secs
        if str(fun_name).startswith(f"jit({GRAPH_PREFIX}"):
            own.graphs += 1
            own.seconds += duration_secs


def _on_plain_event(event: str, **_: Any) -> None:
    if event == _compat.CACHED_EVENT:
        totals.own.cached += 1


def listen() -> None:
    """Begin to listen to JAX's events; only the first call does anything."""
    global _is_listening  # noqa: PLW0603 - JAX's listeners are a global of the process too
    with _listen_lock:
        if not _is_listening:
            jax.monitoring.register_event_duration_secs_listener(_on_event)
            jax.monitoring.register_event_listener(_on_plain_event)
            _is_listening = True
