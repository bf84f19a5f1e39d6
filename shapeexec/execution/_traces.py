"""The traces of one function: one per structure, exact sizes, and outcome of guards.

`shape` traces, and `_planner` decides at which exact sizes.
"""

import dataclasses
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence

from shapeexec import _compat
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._fork import tell_of_forks
from shapeexec.execution._key import Base
from shapeexec.execution._outcomes import are_many
from shapeexec.shape._guards import Guard
from shapeexec.shape._trace import Trace, trace

_MOST_STRUCTURES = 1024  # each exact size is one; a trace that is dropped is made again


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A trace that is kept.

    Attributes:
        trace: The function at symbolic sizes.
        number: A number that no other trace of the function ever has.
        seconds: The time that tracing took.
    """

    trace: Trace
    number: int
    seconds: float


class _Structure:
    """All calls that differ in ragged sizes only: one trace per outcome of their guards."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.traces: list[Traced] = []
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: another thread may have been tracing."""
        self.lock = threading.RLock()


class Traces:
    """The traces of one function, for the structures of arguments that were used last.

    Args:
        constraints: Facts about the sizes of all calls.
        count: Adds to the counter `traces`.
    """

    def __init__(self, constraints: Sequence[Guard], count: Callable[..., None]) -> None:
        self._constraints, self._count = constraints, count
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._structures: dict[tuple[Base, Hashable], _Structure] = {}

    def clear(self) -> None:
        """Forget all traces."""
        with self._lock:
            self._structures.clear()

    def of(self, call: BoundCall, exact: Mapping[str, int]) -> Traced:
        """The trace whose guards hold at the sizes of a call, made if there is none."""
        structure = self._structure((call.base, tuple(exact.items())))
        with structure.lock:
            for known in structure.traces:
                if known.trace.admits(call.sizes):
                    return known
            made = self._made(call, exact)
            structure.traces.append(made)
            traces = tuple(known.trace for known in structure.traces)
            if are_many(traces):
                _warn_of_guards(traces)
            return made

    def knows(self, base: Base) -> bool:
        """Whether any call of this base was traced."""
        with self._lock:
            return any(known == base for known, _ in self._structures)

    def _structure(self, key: tuple[Base, Hashable]) -> _Structure:
        with self._lock:
            structure = self._structures.pop(key, None) or _Structure()
            self._structures[key] = structure  # in order of use
            if len(self._structures) > _MOST_STRUCTURES:
                del self._structures[next(iter(self._structures))]
        return structure

    def _made(self, call: BoundCall, exact: Mapping[str, int]) -> Traced:
        symbolic = [g for g in self._constraints if not g.symbols & exact.keys()]
        start = time.perf_counter()
        made = trace(call.fn, call.to_trace(exact), sizes=call.sizes, constraints=symbolic)
        seconds = time.perf_counter() - start
        self._count(traces=1, trace_seconds=seconds)
        return Traced(made, next(self._numbers), seconds)


def _warn_of_guards(traces: Sequence[Trace]) -> None:
    guards = dict.fromkeys(guard for known in traces for guard in known.guards)
    places = dict.fromkeys(_compat.describe_line(guard.place) for guard in guards)
    lines = "; ".join(place for place in places if place)
    warnings.warn(
        f"shapeexec: the function was traced {len(traces)} times, because it branches on its "
        f"sizes: {', '.join(map(str, list(guards)[:6]))}, ... Each outcome has its own graph.\n"
        f"  Where: {lines or 'in JAX'}\n"
        "  Fix:   decide with jnp.where or lax.cond on the size, or give the symbol sx.Exact() "
        "in buckets=",
        RuntimeWarning,
        stacklevel=2,
    )
