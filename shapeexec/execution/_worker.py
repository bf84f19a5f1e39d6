"""Work in another thread: proofs while their graphs run, XLA and loading while one is made.

What the work is, and what a failure of it means, is the caller's.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from shapeexec import _compat

Result = TypeVar("Result")
Meanwhile = Callable[[], object] | None
"""What a thread does while another one works; None: it works itself."""


def begin(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin `work` in a thread of its own; the returned function waits for its result.

    That raises what `work` raised. A worker does not see JAX's configuration of the caller's thread
    alone: where there is one, the caller does the work, when it asks for the result. So it does
    where no thread can begin, as at the end of the interpreter. There is no pool of threads, for
    that of a process that forks would be dead in its child.
    """
    wanted = _compat.config_fingerprint()
    done: Future[tuple[Result] | None] = Future()

    def in_worker() -> None:
        try:
            done.set_result((work(),) if _compat.config_fingerprint() == wanted else None)
        except BaseException as error:  # whatever it is, the caller waits for it
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
    """Do `work` in another thread while this one does something else, if there is anything.

    Args:
        meanwhile: See `Meanwhile`.
        work: The work.

    Returns:
        What `work` returns, and the time that `meanwhile` took, in seconds.

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
