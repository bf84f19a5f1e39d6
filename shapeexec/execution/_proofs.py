"""Which traces are proven at which sizes.

A trace is proven at the sizes at which plain JAX traces the same program. At other sizes symbols
run exactly. The `checking` package makes the proofs, and `_exact_choice` acts on them.
"""

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from shapeexec._errors import beside, sizes_text
from shapeexec.checking import Difference, Outcome, examine, handled_exceptions
from shapeexec.shape._attempt import TraceRequest
from shapeexec.shape._trace import Leaf, Trace

Check = Literal["graphs", "sizes", "worker", "off"]
CHECKS: tuple[Check, ...] = ("graphs", "sizes", "worker", "off")
_MOST_PROVEN = 65536


class Proofs:
    """The sizes at which the traces of one function are proven, and those at which they are not.

    Args:
        mode: Which calls are checked. `"graphs"`: the first call in each graph, the first call at
            which a comparison made by JAX has a different answer, and the first at which other
            sizes are equal to each other. `"sizes"`, `"worker"`: each call at new sizes, `"worker"`
            in another thread. `"off"`: none. Where the function handles exceptions, `"graphs"`
            checks each call at new sizes, too.
        count: Adds to the counters `checks`, `check_evaluations` and `differences`.
    """

    def __init__(self, mode: Check, count: Callable[..., None]) -> None:
        self._mode, self._count = mode, count
        self._lock = threading.Lock()
        self._proven: dict[Hashable, None] = {}
        self._exact: dict[tuple[Any, ...], dict[str, str]] = {}
        self._handles: dict[Hashable, bool] = {}  # does the function handle exceptions, by kind
        self._has_warned = False

    def clear(self) -> None:
        """Forget all proofs and differences."""
        with self._lock:
            self._proven.clear()
            self._exact.clear()
            self._handles.clear()

    def exact(self, base: Hashable, sizes: Mapping[str, int]) -> Mapping[str, str]:
        """The symbols that are exact at these sizes only, each with the reason."""
        return self._exact.get((base, *sizes.items()), {})

    def apart(self, base: Hashable) -> dict[tuple[tuple[str, int], ...], frozenset[str]]:
        """The symbols that are exact at some sizes only, by these sizes, in calls of one kind."""
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
        """The difference between a trace and the plain function's at some sizes.

        Args:
            graph: The key of the graph, and the kind, which graphs of one trace share.
            trace: The trace.
            fn: The plain function, of flat arrays.
            leaves: The arguments of `fn`.
            sizes: The size of each symbol.

        Returns:
            The first difference as a string; None: there is none, or the call is not checked.

        Raises:
            Exception: Whatever the plain function raises at these sizes.
        """
        if self._mode == "off" or not trace.symbols:
            return None
        key, kind = graph
        handles = self._handles.get(kind)
        if self._proof(key, kind, trace=trace, sizes=sizes, handles=handles) in self._proven:
            return None
        places: dict[str, None] = {}
        watch = handled_exceptions(places) if handles is None else None
        outcome = _examined(trace, fn, leaves=leaves, sizes=sizes, watch=watch)
        self._count(checks=1, check_evaluations=outcome.evaluated)
        handles = bool(places) if handles is None else handles
        proof = self._proof(key, kind, trace=trace, sizes=sizes, handles=handles)
        with self._lock:
            self._handles[kind] = handles
            if len(self._proven) >= _MOST_PROVEN:
                self._proven.clear()  # sizes that return are proven again
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
        """A key that is equal for two calls that one proof covers."""
        if self._mode in ("sizes", "worker") or handles:
            return (kind, *sizes.items())
        return (key, *(guard.holds(sizes) for guard in trace.open), *_alike(sizes))

    def set_apart(
        self, base: Hashable, sizes: Mapping[str, int], *, symbols: Sequence[str], reason: str
    ) -> None:
        """Make symbols exact at these sizes; the first time, warn."""
        self._count(differences=1)
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
            self._exact[(base, *sizes.items())] = dict.fromkeys(symbols, reason)
        if not has_warned:
            warnings.warn(
                "shapeexec: at symbolic sizes the function is not the same as at "
                f"{sizes_text(sizes)}: {reason}\n"
                "  These sizes run exactly, in separate graphs: see stats.differences.\n"
                "  Fix:   test sizes in ways that shapeexec can observe: `n == 4`, `n > 4`, "
                "isinstance(n, int); not by type(n), `n is m`, or an exception; and return a "
                "size as a separate result, not within an object",
                RuntimeWarning,
                stacklevel=2,
            )


def _alike(sizes: Mapping[str, int]) -> list[int]:
    """The index of the first equal size, for each size.

    The function may compare sizes by `n is m`, which nobody hears, so a proof covers only sizes
    with the same indices.
    """
    listed = [*sizes.values()]
    return [listed.index(size) for size in listed]


def _examined(
    trace: Trace,
    fn: Callable[..., Any],
    *,
    leaves: Sequence[Leaf],
    sizes: Mapping[str, int],
    watch: AbstractContextManager[Any] | None,
) -> Outcome:
    try:
        return examine(trace, fn, leaves=leaves, sizes=sizes, watch=watch)
    except Exception:  # if the user's function fails at these sizes by itself, show its own error
        TraceRequest(fn, leaves, sizes, ()).run_plain()
        raise


def _text_of(difference: Difference) -> str:
    return beside(difference.text, difference.line)
