"""Functions that are constants of graphs: those that are new at each call, and deleted ones.

A lambda that is written in a call is a new object each time, and so needs a new graph.
"""

import collections
import functools
import threading
import types
import weakref
from collections.abc import Hashable, Iterable

MANY = 8
"""This many functions of one definition are worth a warning."""


class Functions:
    """The functions that an Exec has made graphs for, held weakly; many threads may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[types.CodeType, list[weakref.ref[types.FunctionType]]] = {}
        self._counts: collections.Counter[types.CodeType] = collections.Counter()
        # Filled whenever Python frees a function, also while a lock is held.
        self._gone: collections.deque[Hashable] = collections.deque()

    def meet(
        self, functions: Iterable[tuple[str, types.FunctionType]], key: Hashable
    ) -> tuple[str, types.CodeType] | None:
        """Remember the functions of a graph that is made.

        Args:
            functions: The functions, by path.
            key: The key of the graph.

        Returns:
            The path and the code of a definition with `MANY` functions; None: there is none.
        """
        found = None
        with self._lock:
            for path, function in functions:
                code = function.__code__
                if self._count(function, key) >= MANY:
                    found = (path, code)
        return found

    def _count(self, function: types.FunctionType, key: Hashable) -> int:
        """Remember a function; if it is new, return how many functions of its code there were."""
        code = function.__code__
        alive = [ref for ref in self._known.get(code, ()) if ref() is not None]
        is_new = all(ref() is not function for ref in alive)
        alive.append(weakref.ref(function, functools.partial(self._forget, key)))
        self._known[code] = alive
        self._counts[code] += is_new
        return self._counts[code] if is_new else 0

    def _forget(self, key: Hashable, _: object) -> None:
        self._gone.append(key)

    def gone(self) -> list[Hashable]:
        """The graphs of functions that were deleted since the last call."""
        return [self._gone.popleft() for _ in range(len(self._gone))]
