"""XLA compilations, counted from JAX's own monitoring events.

JAX records an event for each compilation, whoever asked for it, in the thread that asked.
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
