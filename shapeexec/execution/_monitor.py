"""XLA compilations, counted from JAX's own monitoring events.

JAX records an event for each compilation, whoever asked for it, in the thread that asked.
"""

import threading
from typing import Any

import jax

from shapeexec import _compat


class _Totals(threading.local):
    count = 0
    seconds = 0.0


totals = _Totals()
"""The compilations that this thread has asked for since `listen`: their count and seconds."""

_listen_lock = threading.Lock()
_is_listening = False


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    if event == _compat.COMPILE_EVENT:
        totals.count += 1
        totals.seconds += duration_secs


def listen() -> None:
    """Begin to listen to JAX's events; only the first call does anything."""
    global _is_listening  # noqa: PLW0603 - JAX's listeners are a global of the process too
    with _listen_lock:
        if not _is_listening:
            jax.monitoring.register_event_duration_secs_listener(_on_event)
            _is_listening = True
