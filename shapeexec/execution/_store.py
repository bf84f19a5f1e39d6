"""The state that an Exec keeps from call to call: graphs and their origins, plans, counters.

All views of an Exec share one store: methods of instances, and maps. `_planner` plans calls, and
`_ready` runs graphs.
"""

import dataclasses
import math
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from shapeexec import _compat
from shapeexec.execution._behind import Behind, Missing, is_seen_by_workers
from shapeexec.execution._bounded_table import BoundedTable
from shapeexec.execution._cache import CacheLimits, GraphCache
from shapeexec.execution._compile import Compiler, Graph, Outline, Prepared, compile_graph, prepare
from shapeexec.execution._compiling import TUNED, Compiling, Option
from shapeexec.execution._events import Events
from shapeexec.execution._frozen import forgotten_graph, missing_graph
from shapeexec.execution._functions import MANY, Functions
from shapeexec.execution._graphs import row_of
from shapeexec.execution._key import Bucketed, Key
from shapeexec.execution._learning import Learner
from shapeexec.execution._memory import raise_if_out_of_memory
from shapeexec.execution._monitor import Span
from shapeexec.execution._plan import Plan, Planned
from shapeexec.execution._ready import Ready
from shapeexec.execution._row import GraphRow
from shapeexec.execution._split import Call, Place
from shapeexec.execution._stats import Counters, Stats
from shapeexec.execution._worker import Meanwhile
from shapeexec.execution.saving._saved import Found, Saved

_MOST_PREPARED = 16
_THRASHING = 2  # graphs made again after they had to leave


class Store:
    """The graphs of an Exec, and all else that outlasts its calls; safe to use from many threads.

    Args:
        limits: How many graphs are kept.
        missing: `"error"`: it is frozen from the start but for warm-up.
        compiling: How XLA compiles.
        name: The name of the function.

    What changes is written behind a lock. Reading one attribute needs none: it is replaced whole.

    Attributes:
        events: Those who are told what happens.
        last_new: What the newest graph was made for, and the rows of those before it; or None.
        find: The graph of a key, which counts as used now; None if it is not compiled.
        count: Adds to counters by name.
        ready: By signature the calls that were planned before.
        plans: By signature the plans of single examples of maps.
        layouts: By kind where the examples of maps have leaves of their own.
        places: Where arguments have held more than arrays; `note_places` adds to it.
        behind: Makes graphs while calls run in larger ones.
        tuning: Makes tuned graphs while calls run in quick ones.
        compiler: What compiles in the place of `compile_graph`, for tools that make it fail.
        saved: The graphs that another process has saved; None: none may be loaded.
        learner: Chooses the ladders of strategies that learn; None: none does.
    """

    def __init__(
        self,
        limits: CacheLimits,
        missing: Missing = "wait",
        *,
        compiling: Compiling = TUNED,
        name: str = "fn",
    ) -> None:
        self.events = Events(name)
        self.last_new: tuple[Planned, tuple[GraphRow, ...]] | None = None
        self.limits, self._missing, self._compiling = limits, missing, compiling
        self.behind, self.tuning = Behind(), Behind()
        self.compiler: Compiler | None = None
        self.counters = Counters()
        self._cache: GraphCache[Graph] = GraphCache(
            limits,
            evicted=lambda graph: self.events.emit("evicted", graph.row),
            is_pinned=lambda graph: (
                graph.row.examples is None and limits.are_pinned(graph.row.buckets)
            ),
        )
        self.saved: Saved | None = None
        self.learner: Learner | None = None
        most = CacheLimits(graphs=_MOST_PREPARED)
        self._prepared: GraphCache[Prepared | Found] = GraphCache(most)
        self.find = self._cache.find
        self.count = self.counters.add
        self.ready: BoundedTable[Ready] = BoundedTable()
        self.plans: BoundedTable[Plan] = BoundedTable()
        self.layouts: BoundedTable[Any] = BoundedTable()  # of `Layout`s, which stand above
        self._lock = threading.Lock()
        self._functions = Functions()
        self._warned: set[str] = set()
        self.is_frozen = False
        self._example: Call | None = None
        self.places: frozenset[Place] = frozenset()

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._cache

    def note_places(self, places: Iterable[Place]) -> None:
        """Remember where arguments hold more than arrays."""
        with self._lock:
            self.places |= frozenset(places)

    @property
    def example(self) -> Call | None:
        """The last call that was planned and run, without its data."""
        return self._example

    def remember(self, signature: Hashable, ready: Ready, *, call: Call) -> None:
        """Remember how a call was run, for others of its signature; None is no signature."""
        if signature is not None:
            self.ready[signature] = ready
        remembered = call.remembered()
        with self._lock:
            self._example = remembered

    def claim_warning(self, what: str) -> bool:
        """Whether nobody has been warned of this before."""
        with self._lock:
            is_first = what not in self._warned
            self._warned.add(what)
            return is_first

    @property
    def stats(self) -> Stats:
        """What has happened so far."""
        return self.counters.snapshot(**self._cache.counts())

    def graphs(self) -> list[Graph]:
        """All graphs; none counts as used for that."""
        return self._cache.entries()

    def larger(self, key: Key) -> list[Graph]:
        """The graphs that differ from the one of a call in larger buckets alone, the least first.

        One serves the call if no size lies below its `row.least`.
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
        return sorted(found, key=lambda graph: math.prod(graph.row.buckets.values()))

    def prepared(self, key: Key, outline: Callable[[], Outline]) -> Prepared | Found:
        """The graph of a key with its masks, or the file that spares them.

        Raises:
            UnsupportedPrimitiveError: A primitive cannot be made exact.
        """

        def begin() -> Prepared | Found:
            own = outline()
            found = None if self.saved is None else self.saved.find(own, self._compiling.options)
            return found or prepare(own)

        return self._prepared.get(key, begin)

    def graph(
        self,
        planned: Planned,
        begin: Callable[[], Prepared | Found],
        *,
        functions: Iterable[tuple[str, FunctionType]] = (),
        origin: str = "made",
        meanwhile: Meanwhile = None,
    ) -> Graph:
        """The graph of a plan, loaded or compiled if it is missing.

        Args:
            planned: A call, or examples that share a graph.
            begin: Gives what `prepared` gave for it.
            functions: Those among the constants, by path.
            origin: See `GraphRow`.
            meanwhile: What this thread does while XLA compiles.

        Raises:
            FrozenError: It is missing, and the Exec is frozen.
            OutOfMemoryError: Memory ran out while it was compiled.
            ConfigError: XLA refuses an option.
        """

        def make() -> Graph:
            for key in self._functions.gone():
                self._cache.drop(key)
            self._warn_of_new_functions(self._functions.meet(functions, planned.key))
            made = begin()
            is_saved = isinstance(made, Found)
            graph = self._loaded(planned, made, meanwhile=meanwhile) if is_saved else None
            if graph is None:
                self._check_not_frozen(planned, origin)  # the next refused call needs its masks
            try:
                return graph or self._made(
                    planned, made, origin=origin, meanwhile=meanwhile, to_tune=to_tune
                )
            finally:  # after a failed lowering JAX would compile again: drop the entry
                self._prepared.drop(planned.key)

        to_tune: list[tuple[Graph, Prepared]] = []
        graph = self._cache.get(planned.key, make)
        for quick_graph, made in to_tune:  # not before the cache has it
            self._tune(planned, quick_graph, made=made)
        return graph

    def _loaded(self, planned: Planned, made: Found, *, meanwhile: Meanwhile) -> Graph | None:
        """The graph from its file; None: there is none, or it is no good."""
        graph = made.graph(row_of(planned, "loaded"), meanwhile=meanwhile)
        if graph is not None:
            seconds = graph.row.seconds
            self.count(loads=1, load_seconds=seconds.load, check_seconds=seconds.check)
            self.events.emit("loaded", graph.row, seconds=seconds.total)
        return graph

    def _made(
        self,
        planned: Planned,
        begun: Prepared | Found,
        *,
        origin: str,
        meanwhile: Meanwhile,
        to_tune: list[tuple[Graph, Prepared]],
    ) -> Graph:
        """The graph of a plan, compiled; if it is a quick one, it is added to `to_tune`."""
        made = begun.prepared() if isinstance(begun, Found) else begun
        quick = self._quick_options()
        source = "exported" if made.is_exported else origin
        row = row_of(planned, source if quick is None else "quick")
        options = self._compiling.options if quick is None else quick
        before = tuple(held.row for held in self.graphs())
        self.events.emit("compiling", row)
        try:
            graph = self._compiled(made.with_options(options), row, meanwhile=meanwhile)
        except _compat.JaxRuntimeError as error:
            raise_if_out_of_memory(error, row, sizes=planned.first.sizes)
            if not (isinstance(begun, Found) and made.is_exported):
                raise
            return self._made(
                planned, begun.anew(error), origin=origin, meanwhile=meanwhile, to_tune=to_tune
            )
        if made.is_exported:
            self.count(exports=1, load_seconds=made.seconds.load)
        with self._lock:
            self.last_new = planned, before
        self._warn_if_thrashing(planned)
        if quick is not None:
            to_tune.append((graph, made))
        return graph

    def _compiled(self, made: Prepared, row: GraphRow, *, meanwhile: Meanwhile = None) -> Graph:
        """Compile a graph, count it, and tell of it."""
        with self.events.emitting_failure(row):
            graph = (self.compiler or compile_graph)(made, row, meanwhile=meanwhile)
        seconds = graph.row.seconds
        self.count(
            compiles=graph.compiles,
            mask_seconds=seconds.mask,
            check_seconds=seconds.check,
            lower_seconds=seconds.lower,
            compile_seconds=seconds.compile,
        )
        self.events.emit("compiled", graph.row, seconds=seconds.total)
        return graph

    def _quick_options(self) -> Mapping[str, Option] | None:
        quick = self._compiling.quick
        return quick if quick and is_seen_by_workers(_compat.config_fingerprint()) else None

    def _tune(self, planned: Planned, quick: Graph, *, made: Prepared) -> None:
        """Begin to make the graph that takes the place of a quick one."""
        made, row = made.with_options(self._compiling.options), row_of(planned, "tuned")

        def tune() -> None:
            if not self._cache.holds(quick, planned.key):
                return
            graph = self._compiled(made, row)
            graph = dataclasses.replace(graph, tally=quick.tally, number=quick.number)
            if self._cache.replace(quick, planned.key, other=graph):
                self.count(swaps=1)
                self.events.emit("swapped", graph.row)

        self.tuning.begin(
            (planned.key, quick.number),  # a quick graph that is made again is tuned again
            tune,
            drop=lambda: None,
            what=f"the tuned graph for {planned}",
            fix='calls keep the quick one; sx.Compiling(first="tuned") raises the error',
        )

    def drop(self, key: Key) -> None:
        """Forget a graph, if it is there."""
        self._cache.drop(key)

    def discard(self, graph: Graph) -> None:
        """Forget a graph of a trace that is not the function's at the sizes it was made for.

        It stays if another call has run in it, at whose sizes the trace was proven.
        """
        ((hits, *_),) = self.counters.read([graph.tally])
        if not hits:
            self._cache.drop(graph.row.key)

    def record_run(
        self, planned: Ready | Planned, graph: Graph, *, span: Span, is_hit: bool, began: float
    ) -> None:
        """Count a run of a graph, and tell of it.

        Args:
            planned: The call, or the examples.
            graph: The graph.
            span: Its compilations: a graph's only if JAX had dropped it from its caches.
            is_hit: Whether the graph was there.
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
        with self._lock:
            self.last_new = None
        self.behind.clear()
        self.tuning.clear()
        for held in (self.ready, self.plans, self.layouts, self._cache, self._prepared):
            held.clear()

    def _check_not_frozen(self, planned: Planned, origin: str) -> None:
        if self.is_frozen or (self._missing == "error" and origin != "warmup"):
            raise missing_graph(planned, is_frozen=self.is_frozen)

    def _warn_of_new_functions(self, met: tuple[str, CodeType] | None) -> None:
        if met is None or not self.claim_warning("functions"):
            return
        path, code = met
        warnings.warn(
            f"shapeexec: {path} was {MANY} different functions of one definition, "
            "and each has its own graphs.\n"
            f"  Where: {_compat.describe_line(f'{code.co_filename}:{code.co_firstlineno}')}\n"
            "  Fix:   define the function once, before the calls, and pass changing values as "
            "arguments",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn_if_thrashing(self, planned: Planned) -> None:
        if self._cache.remade < _THRASHING or not self.claim_warning("thrashing"):
            return
        warnings.warn(
            f"shapeexec: graphs are compiled again after their eviction, now for {planned}; "
            f"{len(self._cache)} are kept, {self._cache.evictions} were evicted.\n"
            f"  Fix:   limits=sx.{self.limits.doubled()}, or use a coarser strategy",
            RuntimeWarning,
            stacklevel=2,
        )
