"""Compiles Hopper kernels while the rest of their program is lowered and compiled.

XLA compiles the kernels of a program one after the other, when it has done all else. A kernel that
the process has compiled already it takes as it is. See docs/adr/0032.
"""

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax

from shapeexec import _compat

THREAD = "attention kernels"
"""The name of the threads that compile."""

_PAUSE = 0.02  # seconds
_claims = threading.Lock()
_claimed: set[bytes] = set()


@contextlib.contextmanager
def compiled_early(platform: str) -> Generator[None]:
    """Compile each kernel that is lowered inside at once, in a thread that may end later.

    Args:
        platform: The platform that they are lowered for; nothing happens if its GPU is not here.
    """
    if platform != "cuda" or not _has_gpu():
        yield
        return
    known, done = set(_compat.lowered_mosaic_kernels()), threading.Event()
    try:
        _start(_watch, known, done)
        yield
    finally:
        done.set()


def _has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _start(target: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # there are no new threads as the interpreter exits
        threading.Thread(target=target, args=arguments, name=THREAD).start()


def _watch(known: set[bytes], done: threading.Event) -> None:
    """Compile kernels that are not known as they are lowered, several at a time, until `done`."""
    is_last = False
    while not is_last:
        is_last = done.is_set()
        for digest, code in _compat.lowered_mosaic_kernels().items():
            if digest not in known and _claim(digest):
                _start(_compile, digest, code)
        done.wait(_PAUSE)


def _claim(digest: bytes) -> bool:
    """Whether nobody compiles a kernel yet; calls that are lowered at the same time see it, too."""
    with _claims:
        is_new = digest not in _claimed
        _claimed.add(digest)
        return is_new


def _compile(digest: bytes, code: bytes) -> None:
    with contextlib.suppress(Exception):  # XLA raises the same where the program is compiled
        _compat.compile_mosaic_kernel(digest, code)
