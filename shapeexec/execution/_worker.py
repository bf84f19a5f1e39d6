"""Work in another thread: proofs while their graphs run, XLA and loading while one is made.

The caller provides the work and handles its errors.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from shapeexec import _compat

Result = TypeVar("Result")
Meanwhile = Callable[[], object] | None
"""Work for this thread while another one works; None: this thread does all the work."""


def begin(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin `work` in a thread of its own; the returned function waits for its result.

    The function raises what `work` raised. A worker does not see thread-local configuration of JAX:
    if the caller's thread has some, the caller does the work itself when it asks for the result. It
    does so too if no thread can start, as at the end of the interpreter. There is no thread pool,
    because its threads would be missing in a forked child.
    """
    wanted = _compat.config_fingerprint()
    done: Future[tuple[Result] | None] = Future()

    def in_worker() -> None:
        try:
            done.set_result((work(),) if _compat.config_fingerprint() == wanted else None)
        except BaseException as error:  # of any kind: the caller waits for it
            done.set_exception(error)

    try:
        threading.Thread(target=in_worker, name="shapeexec").start()
    except RuntimeError:
        done.set_result(None)

    def result() -> Result:
        found = done.result()
        return work() if found is None else found[0]

    return result


def beside(meanwhile: Meanwhile, work: Callable[[], Result]) -> tuple[Result, float]:
    """Do `work` in another thread while this one runs `meanwhile`, unless that is None.

    Args:
        meanwhile: See `Meanwhile`.
        work: The work.

    Returns:
        The result of `work`, and the time that `meanwhile` took, in seconds.

    Raises:
        Exception: Whatever either raises.
    """
    if meanwhile is None:
        return work(), 0.0
    working = begin(work)
    start = time.perf_counter()
    meanwhile()
    seconds = time.perf_counter() - start
    return working(), seconds
