"""The thread in which traces are proven while their graphs run."""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from shapeexec import _compat

Result = TypeVar("Result")


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "shapeexec-proofs")


def begin(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin `work` in a worker; the returned function waits for its result, or raises its error.

    A worker does not see JAX's configuration of the caller's thread alone: where there is one, the
    caller does the work, when it asks for the result.
    """
    wanted = _compat.config_fingerprint()

    def in_worker() -> tuple[Result] | None:
        return (work(),) if _compat.config_fingerprint() == wanted else None

    done: Future[tuple[Result] | None] = _pool().submit(in_worker)

    def result() -> Result:
        found = done.result()
        return work() if found is None else found[0]

    return result
