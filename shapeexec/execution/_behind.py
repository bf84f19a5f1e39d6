"""Threads that make graphs while calls run, and the queue of graphs to make.

`_larger` chooses the graphs. A user's function never runs in these threads: the caller has traced
it and, if a rule may be the user's, put the masks in. What remains is our own code, lowering and
XLA. Lowering may call user code that must be pure: lowering rules of primitives, and the functions
of attention's masks and score modifiers, which its back ends trace then.
"""

import collections
import contextlib
import threading
import warnings
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

from shapeexec import _compat
from shapeexec._errors import FrozenError
from shapeexec.execution._fork import tell_of_forks

Missing = Literal["wait", "larger", "error"]
"""What to do when the graph of a call is missing; see `Exec`."""
MISSING: tuple[Missing, ...] = ("wait", "larger", "error")

Result = TypeVar("Result")


class Workers:
    """Threads that take one piece of work after another, and end when the queue is empty.

    At its end the interpreter waits for the pieces that are being done; the rest is cancelled.
    Daemon threads would come back from XLA into a finalized interpreter.

    Args:
        most: How many threads there are at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._queue: collections.deque[tuple[Callable[[], Any], Future[Any]]] = collections.deque()
        self._threads = 0
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: all queued work is cancelled."""
        self._lock, self._threads = threading.Lock(), 0
        self.cancel()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue `work`; it is cancelled if no thread can start any more."""
        done: Future[Result] = Future()
        with self._lock:
            self._queue.append((work, done))
            if self._threads == self._most:
                return done
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="shapeexec").start()
        except RuntimeError:  # at the end of the interpreter
            self._end()
        return done

    def cancel(self) -> None:
        """Cancel all queued work."""
        with self._lock:
            self._cancel()

    def _cancel(self) -> None:
        while self._queue:
            _leave(self._queue.popleft()[1])

    def _end(self) -> None:
        with self._lock:
            self._threads -= 1
            self._cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._threads -= 1
                    return
                work, done = self._queue.popleft()
            if not threading.main_thread().is_alive():
                _leave(done)
                return self._end()
            try:
                done.set_result(work())
            except BaseException as error:  # of any kind: another thread may wait for it
                done.set_exception(error)


def _leave(done: Future[Any]) -> None:
    done.cancel()
    done.set_running_or_notify_cancel()  # without it `concurrent.futures.wait` waits forever


def is_seen_by_workers(config: tuple[Any, ...]) -> bool:
    """Whether another thread sees this configuration of JAX, parts of which are thread-local."""
    seen: list[tuple[Any, ...]] = []
    thread = threading.Thread(target=lambda: seen.append(_compat.config_fingerprint()))
    try:
        thread.start()
    except RuntimeError:  # at the end of the interpreter
        return False
    thread.join()
    return seen == [config]


class Behind:
    """Graphs that one thread makes, each once, in the order of the requests."""

    def __init__(self) -> None:
        self._workers = Workers(1)
        self._lock = threading.Lock()
        self._pending: dict[Hashable, Future[None]] = {}
        self._failed: set[Hashable] = set()
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: pending graphs are made by the callers that need them."""
        self._lock, self._pending = threading.Lock(), {}

    def makes(self, key: Hashable) -> bool:
        """Whether the graph of a key is being made, or waits for it."""
        with self._lock:
            return self._makes(key)

    def _makes(self, key: Hashable) -> bool:
        done = self._pending.get(key)
        return done is not None and not done.done()

    def has_failed(self, key: Hashable) -> bool:
        """Whether making the graph of a key failed: then the caller makes it and gets the error."""
        with self._lock:
            return key in self._failed

    def begin(
        self,
        key: Hashable,
        make: Callable[[], object],
        *,
        drop: Callable[[], object],
        what: str,
        fix: str,
    ) -> None:
        """Begin to make a graph, unless that has begun already.

        Args:
            key: The key of the graph.
            make: Makes the graph, and keeps it.
            drop: Called if the graph is no longer wanted when it is made.
            what: The graph, in the words of the warning if making it fails.
            fix: The fix that this warning gives.
        """
        config = _compat.config_fingerprint()

        def work() -> None:
            try:
                if _compat.config_fingerprint() != config:
                    # `_fail` turns it into a warning.
                    raise RuntimeError("JAX's configuration has changed meanwhile")
                make()
            except FrozenError:  # frozen meanwhile
                pass
            except BaseException as error:  # of any kind: the next call makes the graph itself
                self._fail(key, f"{what}: {type(error).__name__}: {error!s:.400}", fix=fix)
            with self._lock:
                is_wanted = self._pending.pop(key, None) is not None
            if not is_wanted:
                drop()

        with self._lock:
            if not self._makes(key):
                self._pending[key] = self._workers.submit(work)

    def cancel(self) -> None:
        """Cancel all queued graphs; one that is being made is kept."""
        self._workers.cancel()

    def clear(self) -> None:
        """Forget all graphs, including the one that is being made."""
        with self._lock:
            self._pending.clear()
            self._failed.clear()
        self._workers.cancel()

    def _fail(self, key: Hashable, text: str, *, fix: str) -> None:
        with self._lock:
            if key not in self._pending:  # `clear` was called meanwhile
                return
            self._failed.add(key)
        with contextlib.suppress(RuntimeWarning):  # if warnings are errors: the next call raises
            warnings.warn(
                f"shapeexec: another thread could not compile {text}\n  Fix:   {fix}",
                RuntimeWarning,
                stacklevel=2,
            )
