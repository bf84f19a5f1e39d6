"""A stand-in for Mosaic's compiler, for tests of when kernels begin to compile.

Kernels are compiled in threads, which `wait` waits for.
"""

import threading

import jax
import jax.monitoring

from shapeexec import _compat
from shapeexec.attention import _early

WAIT = 60.0  # seconds


class Compiler:
    """Stands for Mosaic's: what it was asked for, and in which threads."""

    def __init__(self, monkeypatch, *, error=None):
        self.asked, self.threads, self.error = [], set(), error
        self.known, self.is_asked = {b"old": b"code"}, threading.Event()
        monkeypatch.setattr(_early, "_claimed", set())
        monkeypatch.setattr(_early, "_lowered", threading.local())
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(_compat, "lowered_mosaic_kernels", lambda: dict(self.known))
        monkeypatch.setattr(_compat, "compile_mosaic_kernel", self.compile)

    def compile(self, digest, code):
        self.asked.append((digest, code))
        self.threads.add(threading.current_thread())
        self.is_asked.set()
        if self.error is not None:
            raise self.error

    def lower(self, platform="cuda", **kernels):
        with _early.compiled_early(platform):
            for name, code in kernels.items():
                self.known[name.encode()] = bytes(code, "ascii")
        is_lowered()


def is_lowered():
    """What JAX tells when a program is lowered; then wait until its kernels are compiled."""
    jax.monitoring.record_event_duration_secs(_compat.LOWERED_EVENT, 0.1, fun_name="f")
    wait()


def wait():
    """Wait until no kernel is compiled any more; a thread may start others."""
    while threads := [one for one in threading.enumerate() if one.name == _early.THREAD]:
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
