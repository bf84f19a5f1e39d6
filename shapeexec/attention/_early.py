"""Compiles the Hopper kernels of a program at once, when it is lowered.

XLA compiles the kernels of a program one after the other, when it has done all else. A kernel that
the process has compiled already it takes as it is. See docs/adr/0032.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax

from shapeexec import _compat

THREAD = "attention kernels"
"""The name of the threads that compile."""

_claims = threading.Lock()
_claimed: set[bytes] = set()
# `kernels`: those of the program that this thread lowers; `depth`: calls of `compiled_early`.
_lowered = threading.local()


@contextlib.contextmanager
def compiled_early(platform: str) -> Generator[None]:
    """Compile kernels that are lowered inside, in threads that start when their program is lowered.

    Args:
        platform: The platform that they are lowered for; nothing happens if its GPU is not here.
    """
    if platform != "cuda" or not _has_gpu():
        yield
        return
    _listen()
    known = set(_compat.lowered_mosaic_kernels())
    with held_back():
        yield
    kernels = vars(_lowered).setdefault("kernels", {})
    for digest, code in _compat.lowered_mosaic_kernels().items():
        if digest not in known:
            kernels[digest] = code


@contextlib.contextmanager
def held_back() -> Generator[None]:
    """Kernels lowered inside are compiled with the next program that this thread lowers outside.

    If it lowers none, XLA compiles them where a program needs them.
    """
    _lowered.depth = _depth() + 1
    try:
        yield
    finally:
        _lowered.depth = _depth() - 1


def _depth() -> int:
    return getattr(_lowered, "depth", 0)


def _has_gpu() -> bool:
    return jax.default_backend() == "gpu"


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    del duration_secs
    if event != _compat.LOWERED_EVENT or _depth():  # inside, a kernel is lowered by itself
        return
    for digest, code in vars(_lowered).pop("kernels", {}).items():
        if _claim(digest):
            _start(_compile, digest, code)


def _start(target: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # there are no new threads as the interpreter exits
        threading.Thread(target=target, args=arguments, name=THREAD).start()


def _claim(digest: bytes) -> bool:
    """Whether nobody compiles a kernel yet; calls that are lowered at the same time see it, too."""
    with _claims:
        is_new = digest not in _claimed
        _claimed.add(digest)
        return is_new


def _compile(digest: bytes, code: bytes) -> None:
    with contextlib.suppress(Exception):  # XLA raises the same where the program is compiled
        _compat.compile_mosaic_kernel(digest, code)
