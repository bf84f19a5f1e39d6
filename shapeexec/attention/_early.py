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


@contextlib.contextmanager
def compiled_early(platform: str) -> Generator[None]:
    """Begin to compile the kernels that are lowered inside, in a thread of their own.

    Args:
        platform: The platform that they are lowered for; nothing happens if its GPU is not here.
    """
    if platform != "cuda" or not _has_gpu():
        yield
        return
    known = _compat.lowered_mosaic_kernels().keys()
    yield
    kernels = _compat.lowered_mosaic_kernels()
    new = {digest: code for digest, code in kernels.items() if digest not in known}
    if new:
        with contextlib.suppress(RuntimeError):  # no threads, as the interpreter exits
            threading.Thread(target=_compile, args=(new,), name=THREAD).start()


def _has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _compile(kernels: dict[bytes, bytes]) -> None:
    for digest, code in kernels.items():
        # If it cannot be compiled, XLA raises the same error where the program is compiled.
        with contextlib.suppress(Exception):
            _compat.compile_mosaic_kernel(digest, code)
