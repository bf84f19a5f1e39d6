"""The makers of the graphs of a warm-up: the calling thread, or several workers.

`_warmup` chooses the graphs and their order.
"""

import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution._behind import Workers, is_seen_by_workers
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._missing_graph import what_is_left
from shapeexec.execution._options import as_size
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner
from shapeexec.execution._store import Store
from shapeexec.execution._warmup import Maker


class _Alone:
    """The calling thread makes one graph after another."""

    most = 0

    def __init__(self, make: Callable[[BoundCall], Plan]) -> None:
        self._make = make

    def make(self, call: BoundCall) -> Plan:
        """Make the graph of a call."""
        return self._make(call)

    def left(self, most: int) -> int:
        """No graph is ever unfinished."""
        del most
        return 0


class _Several:
    """Workers lower and compile; the calling thread plans, proves and puts masks in.

    Args:
        workers: The number of workers.
        planner: Plans calls.
        store: Keeps graphs.
    """

    def __init__(self, workers: int, planner: Planner, *, store: Store) -> None:
        self.most = 2 * workers  # so that no worker waits for masks
        self._workers, self._planner, self._store = Workers(workers), planner, store
        self._begun: dict[Future[Any], Callable[[], object]] = {}

    def make(self, call: BoundCall) -> Plan:
        """Begin to make the graph of a call."""
        plan = self._planner.plan(call)
        work = what_is_left(self._store, plan, call=call, origin="warmup")
        self._begun[self._workers.submit(work)] = work
        return plan

    def left(self, most: int) -> int:
        """Wait until at most `most` graphs are unfinished, and return how many are.

        Raises:
            Exception: Whatever making one of them raised.
        """
        while len(self._begun) > most:
            for one in wait(self._begun, return_when=FIRST_COMPLETED).done:
                work = self._begun.pop(one)
                # Workers stop when the main thread has ended; this thread makes the rest.
                work() if one.cancelled() else one.result()
        return len(self._begun)

    def cancel(self) -> None:
        """Begin no other graph."""
        self._workers.cancel()


@contextlib.contextmanager
def makers(
    workers: int, make: Callable[[BoundCall], Plan], *, planner: Planner, store: Store
) -> Generator[Maker]:
    """The maker for the block; after an error or an interrupt no other graph is begun.

    Args:
        workers: The number of threads that make graphs; 1: the calling thread.
        make: Plans a call and makes its graph.
        planner: Plans calls.
        store: Keeps graphs.
    """
    if workers == 1 or not is_seen_by_workers(_compat.config_fingerprint()):
        yield _Alone(make)
        return
    several = _Several(workers, planner, store=store)
    try:
        yield several
    finally:
        several.cancel()


def as_workers(given: Any) -> int:
    """A number of workers; None: one.

    Raises:
        ConfigError: It is not an integer of at least 1.
    """
    try:
        workers = 1 if given is None else as_size(given)
    except TypeError:
        workers = 0
    if workers < 1:
        raise ConfigError(
            f"warmup: workers={given!r} is not a number of threads.",
            option="workers",
            fix="workers=2, or leave it out",
        )
    return workers
