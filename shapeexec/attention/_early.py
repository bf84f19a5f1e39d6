"""Compiles Hopper kernels while the rest of their program is lowered and compiled.

XLA compiles the kernels of a program one after the other, when it has done all else. A kernel that
the process has compiled already it takes as it is. See docs/adr/0032.
"""

import contextlib
import threading
from collections.abc import Generator

import jax

from shapeexec import _compat

THREAD = "attention kernels"
"""The name of the threads that compile."""

_PAUSE = 0.02  # seconds


@contextlib.contextmanager
def compiled_early(platform: str) -> Generator[None]:
    """Compile each kernel that is lowered inside at once, in another thread, which may end later.

    Args:
        platform: The platform that they are lowered for; nothing happens if its GPU is not here.
    """
    if platform != "cuda" or not _has_gpu():
        yield
        return
    known, done = set(_compat.lowered_mosaic_kernels()), threading.Event()
    with contextlib.suppress(RuntimeError):  # there are no new threads as the interpreter exits
        threading.Thread(target=_compile, args=(known, done), name=THREAD).start()
    try:
        yield
    finally:
        done.set()


def _has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _compile(known: set[bytes], done: threading.Event) -> None:
    """Compile kernels that are not known as they are lowered, until `done` is set."""
    is_last = False
    while not is_last:
        is_last = done.is_set()
        for digest, code in _compat.lowered_mosaic_kernels().items():
            if digest not in known:
                known.add(digest)
                # If it cannot be compiled, XLA raises the same error where the program is compiled.
                with contextlib.suppress(Exception):
                    _compat.compile_mosaic_kernel(digest, code)
        done.wait(_PAUSE)
