"""The state that an Exec keeps from call to call: graphs and their origins, plans, counters.

All views of an Exec share one store: methods of instances, and maps. `_planner` plans calls, and
`_ready` runs graphs.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from shapeexec.execution._behind import Behind, Missing
from shapeexec.execution._bounded_table import BoundedTable
from shapeexec.execution._cache import CacheLimits, GraphCache
from shapeexec.execution._compile import Graph
from shapeexec.execution._compiling import TUNED, Compiling
from shapeexec.execution._events import Events
from shapeexec.execution._frozen import forgotten_graph, missing_graph
from shapeexec.execution._key import Bucketed, Key
from shapeexec.execution._learning import Learner
from shapeexec.execution._making import Making
from shapeexec.execution._monitor import Span
from shapeexec.execution._plan import Plan, Planned
from shapeexec.execution._ready import Ready
from shapeexec.execution._row import volume
from shapeexec.execution._split import Call, Place
from shapeexec.execution._stats import Counters, Stats


class Store:
    """The graphs of an Exec, and all else that outlasts its calls; safe to use from many threads.

    Args:
        limits: How many graphs are kept.
        missing: `"error"`: only a warm-up may make graphs.
        compiling: How XLA compiles.
        name: The name of the function.
        make_learner: Makes the learner of the ladders, see `learner_of`.

    Attributes that change are written under a lock and replaced as a whole, so reads need no lock.

    Attributes:
        events: Reports what happens to callbacks and to the logger.
        find: The graph of a key, marked as used now; None if it is not compiled.
        count: Adds to counters by name.
        ready: The calls that were planned before, by signature.
        plans: The plans of single examples of maps, by signature.
        layouts: The leaves that differ between the examples of maps, by specs and kind.
        places: Places of arguments that have held more than arrays; see `note_places`.
        behind: Makes graphs while calls run in larger ones.
        making: Makes missing graphs.
        learner: Chooses the ladders of `Adaptive` strategies; None: there is no such strategy.
    """

    def __init__(
        self,
        limits: CacheLimits,
        missing: Missing = "wait",
        *,
        compiling: Compiling = TUNED,
        name: str = "fn",
        make_learner: "Callable[[Store], Learner | None]" = lambda store: None,
    ) -> None:
        self.events = Events(name)
        self.limits, self._missing = limits, missing
        self.behind = Behind()
        self.counters = Counters()
        self._cache: GraphCache[Graph] = GraphCache(
            limits,
            evicted=lambda graph: self.events.emit("evicted", graph.row),
            is_pinned=lambda graph: (
                graph.row.examples is None and limits.are_pinned(graph.row.buckets)
            ),
        )
        self.find = self._cache.find
        self.count = self.counters.add
        self.ready: BoundedTable[Ready] = BoundedTable()
        self.plans: BoundedTable[Plan] = BoundedTable()
        self.layouts: BoundedTable[Any] = BoundedTable()  # of `Layout`; its module is above
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self.is_frozen = False
        self._example: Call | None = None
        self.places: frozenset[Place] = frozenset()
        self.making = Making(
            self._cache,
            limits,
            compiling=compiling,
            events=self.events,
            count=self.count,
            check_allowed=self._check_allowed,
            claim_warning=self.claim_warning,
        )
        self.learner = make_learner(self)

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cache

    def note_places(self, places: Iterable[Place]) -> None:
        """Remember the places of arguments that hold more than arrays."""
        with self._lock:
            self.places |= frozenset(places)

    @property
    def example(self) -> Call | None:
        """The last call that was planned and run, without its data."""
        return self._example

    def remember(self, signature: Hashable, ready: Ready, *, call: Call) -> None:
        """Remember how a call was run, for later calls of its signature; None: for no call."""
        if signature is not None:
            self.ready[signature] = ready
        remembered = call.remembered()
        with self._lock:
            self._example = remembered

    def claim_warning(self, what: str) -> bool:
        """Whether to warn of `what`: True for the first caller only."""
        with self._lock:
            is_first = what not in self._warned
            self._warned.add(what)
            return is_first

    @property
    def stats(self) -> Stats:
        """The counters so far."""
        return self.counters.snapshot(**self._cache.counts())

    def graphs(self) -> list[Graph]:
        """All graphs. This does not count as a use."""
        return self._cache.entries()

    def larger(self, key: Key) -> list[Graph]:
        """The graphs that differ from the graph at `key` in larger buckets only, cheapest first.

        Such a graph serves a call whose sizes are not below its `row.least`.
        """
        wanted = key.parts
        assert isinstance(wanted, Bucketed)
        found: list[Graph] = []
        for graph in self.graphs():
            parts = graph.row.key.parts
            if not isinstance(parts, Bucketed) or parts.kind != wanted.kind or parts == wanted:
                continue
            pairs = zip(parts.ranges, wanted.ranges, strict=True)
            if all(own[1] >= least[1] for (_, own), (_, least) in pairs):
                found.append(graph)
        return sorted(found, key=lambda graph: volume(graph.row))

    def drop(self, key: Key) -> None:
        """Forget a graph, if it is there."""
        self._cache.drop(key)

    def discard(self, graph: Graph) -> None:
        """Forget a graph whose trace differs from the function at the sizes it was made for.

        It stays if another call has run in it: the trace was proven at the sizes of that call.
        """
        ((hits, *_),) = self.counters.read([graph.tally])
        if not hits:
            self._cache.drop(graph.row.key)

    def record_run(
        self, planned: Ready | Planned, graph: Graph, *, span: Span, is_hit: bool, began: float
    ) -> None:
        """Count a run of a graph, and report it.

        Args:
            planned: The call, or the examples.
            graph: The graph.
            span: The compilations during the run. A graph is among them only if JAX had dropped it
                from its caches.
            is_hit: Whether the graph was compiled before the call.
            began: When the call began, by `time.perf_counter`, in seconds.

        Raises:
            FrozenError: A graph was compiled, and the Exec is frozen.
        """
        seconds = time.perf_counter() - began
        if self.events.are_heard("call"):
            padding = planned.padding if graph.row.examples is None else ()
            sizes = {symbol: size for symbol, size, _ in padding}
            self.events.emit("call", graph.row, sizes=sizes, seconds=seconds, is_hit=is_hit)
        if self.learner is not None:
            self.learner.saw(planned)
        outcome = "hits" if is_hit else "misses"
        self.counters.call(outcome, planned, tally=graph.tally, seconds=seconds)
        if span.compiles or span.copies:
            self.count(
                compiles=span.compiles,
                compile_seconds=span.compile_seconds,
                copy_compiles=span.copies,
                copy_seconds=span.copy_seconds,
            )
            if span.compiles and (self.is_frozen or self._missing == "error"):
                raise forgotten_graph(graph.row)

    def freeze(self) -> None:
        """Make it an error from now on if a graph is missing."""
        with self._lock:
            self.is_frozen = True
        self.behind.cancel()

    def clear(self) -> None:
        """Forget all graphs and plans, but keep the counters."""
        self.behind.clear()
        for held in (self.making, self.ready, self.plans, self.layouts, self._cache):
            held.clear()

    def _check_allowed(self, planned: Planned, *, origin: str) -> None:
        if self.is_frozen or (self._missing == "error" and origin != "warmup"):
            raise missing_graph(planned, is_frozen=self.is_frozen)
