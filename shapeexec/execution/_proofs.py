"""Which traces have been proven at which sizes, and the sizes at which one was not.

A trace is proven at sizes where plain JAX traces the same program. Where it does not, symbols are
exact. The `checking` package makes the proof, and `_planner` acts on it.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

from shapeexec.checking import Difference, Outcome, examine, handled_exceptions
from shapeexec.shape._attempt import Program
from shapeexec.shape._trace import Leaf, Trace

Check = Literal["graphs", "sizes", "worker", "off"]
CHECKS: tuple[Check, ...] = ("graphs", "sizes", "worker", "off")
_MOST_PROVEN = 65536


class Proofs:
    """What has been proven of the traces of one function.

    Args:
        mode: Which calls are checked: the first in each graph, and the first at which something
            that JAX's core compared is otherwise, or other sizes are equal to each other; each at
            new sizes, perhaps in a worker; or none. Each is, too, where the function handles
            exceptions.
        count: Adds to the counters `checks`, `check_evaluations` and `differences`.
    """

    def __init__(self, mode: Check, count: Callable[..., None]) -> None:
        self._mode, self._count = mode, count
        self._lock = threading.Lock()
        self._proven: dict[Hashable, None] = {}
        self._exact: dict[tuple[Any, ...], dict[str, str]] = {}
        self._handles: dict[Hashable, bool] = {}  # by what graphs of one trace have in common
        self._has_warned = False

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._proven.clear()
            self._exact.clear()
            self._handles.clear()

    def exact(self, base: Hashable, sizes: Mapping[str, int]) -> Mapping[str, str]:
        """The symbols that are exact at these sizes alone, and why."""
        return self._exact.get((base, *sizes.items()), {})

    def apart(self, base: Hashable) -> dict[tuple[tuple[str, int], ...], frozenset[str]]:
        """By sizes the symbols that are exact there alone, in calls of one kind."""
        with self._lock:
            return {key[1:]: frozenset(why) for key, why in self._exact.items() if key[0] == base}

    def difference(
        self,
        graph: tuple[Hashable, Hashable],
        trace: Trace,
        *,
        fn: Callable[..., Any],
        leaves: Sequence[Leaf],
        sizes: Mapping[str, int],
    ) -> str | None:
        """How a trace differs from the plain one at some sizes; None: it is proven, or not checked.

        Args:
            graph: The key of the graph, and what graphs of the same trace have in common.
            trace: The trace.
            fn: The plain function, of flat arrays.
            leaves: Its arguments.
            sizes: The size of each symbol.

        Raises:
            Exception: Whatever the plain function raises at these sizes.
        """
        if self._mode == "off" or not trace.symbols:
            return None
        key, kind = graph
        handles = self._handles.get(kind)
        if self._proof(key, kind, trace=trace, sizes=sizes, handles=handles) in self._proven:
            return None
        watched = (
            handled_exceptions() if handles is None else contextlib.nullcontext(dict[str, None]())
        )
        with watched as places:
            outcome = _examined(trace, fn, leaves=leaves, sizes=sizes)
        self._count(checks=1, check_evaluations=outcome.evaluated)
        handles = bool(places) if handles is None else handles
        proof = self._proof(key, kind, trace=trace, sizes=sizes, handles=handles)
        with self._lock:
            self._handles[kind] = handles
            if len(self._proven) >= _MOST_PROVEN:
                self._proven.clear()  # what occurs again is proven again
            if outcome.difference is None:
                self._proven[proof] = None
        return None if outcome.difference is None else _text_of(outcome.difference)

    def _proof(
        self,
        key: Hashable,
        kind: Hashable,
        *,
        trace: Trace,
        sizes: Mapping[str, int],
        handles: bool | None,
    ) -> Hashable:
        """What calls have in common that one proof serves."""
        if self._mode in ("sizes", "worker") or handles:
            return (kind, *sizes.items())
        return (key, *(guard.holds(sizes) for guard in trace.open), *_alike(sizes))

    def set_apart(
        self, base: Hashable, sizes: Mapping[str, int], *, symbols: Sequence[str], reason: str
    ) -> None:
        """Make symbols exact at these sizes, and tell of the first such case."""
        self._count(differences=1)
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
            self._exact[(base, *sizes.items())] = dict.fromkeys(symbols, reason)
        if not has_warned:
            at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            warnings.warn(
                "shapeexec: at symbolic sizes the function is another one than at "
                f"{at}: {reason}\n"
                "  These sizes run exactly, in graphs of their own: see stats.differences.\n"
                "  Fix:   let the code ask of sizes what shapeexec hears: `n == 4`, `n > 4`, "
                "isinstance(n, int); not type(n), `n is m`, or an exception; and return a "
                "size as a result of its own, not within an object",
                RuntimeWarning,
                stacklevel=2,
            )


def _alike(sizes: Mapping[str, int]) -> list[int]:
    """Which sizes equal each other: per size the first that it equals (`n is m` is not heard)."""
    listed = [*sizes.values()]
    return [listed.index(size) for size in listed]


def _examined(
    trace: Trace, fn: Callable[..., Any], *, leaves: Sequence[Leaf], sizes: Mapping[str, int]
) -> Outcome:
    try:
        return examine(trace, fn, leaves, sizes)
    except Exception:  # the function is the user's; if it fails by itself, its error is shown
        Program(fn, leaves, sizes, ()).run_plain()
        raise


def _text_of(difference: Difference) -> str:
    return f"{difference.text}   <- {difference.line}" if difference.line else difference.text
