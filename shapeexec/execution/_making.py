"""How a missing graph is made: read from a file, or masked and compiled, quickly and then tuned.

`_store` keeps the graphs and decides whether one may be made; `_compile` compiles.
"""

import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Protocol

from shapeexec import _compat
from shapeexec.execution._behind import Behind, is_seen_by_workers
from shapeexec.execution._cache import CacheLimits, GraphCache
from shapeexec.execution._compile import Compiler, Graph, Outline, Prepared, compile_graph, prepare
from shapeexec.execution._compiling import Compiling, Option
from shapeexec.execution._events import Events
from shapeexec.execution._functions import MANY, Functions
from shapeexec.execution._graphs import row_of
from shapeexec.execution._key import Key
from shapeexec.execution._memory import raise_if_out_of_memory
from shapeexec.execution._plan import Planned
from shapeexec.execution._row import GraphRow
from shapeexec.execution._worker import Meanwhile
from shapeexec.execution.saving._saved import Found, Saved

_MOST_PREPARED = 16
_THRASHING = 2  # graphs made again after their eviction


class Permission(Protocol):
    """Checks that a missing graph may be made; raises a `FrozenError` otherwise."""

    def __call__(self, planned: Planned, *, origin: str) -> None:
        """Check it for a call, or for examples; see `GraphRow` for `origin`."""
        ...


class Making:
    """Makes the graphs of one Exec; safe to use from many threads.

    Args:
        cache: Keeps the graphs.
        limits: The limits of the cache, for warnings.
        compiling: How XLA compiles.
        events: Reports each step.
        count: Adds to counters by name.
        check_allowed: See `Permission`.
        claim_warning: See `Store.claim_warning`.

    Attributes:
        last_new: (plan of the newest graph, rows of all older graphs), for `Exec.last_miss`; None:
            no graph was compiled.
        saved: The graphs that another process has saved; None: none may be loaded.
        tuning: Makes tuned graphs while calls run in quick ones.
    """

    def __init__(
        self,
        cache: GraphCache[Graph],
        limits: CacheLimits,
        *,
        compiling: Compiling,
        events: Events,
        count: Callable[..., None],
        check_allowed: Permission,
        claim_warning: Callable[[str], bool],
    ) -> None:
        self._cache, self._limits, self._compiling = cache, limits, compiling
        self._events, self._count = events, count
        self._check_allowed, self._claim_warning = check_allowed, claim_warning
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        most = CacheLimits(graphs=_MOST_PREPARED)
        self._prepared: GraphCache[Prepared | Found] = GraphCache(most)
        self._functions = Functions()
        self.tuning = Behind()
        self.last_new: tuple[Planned, tuple[GraphRow, ...]] | None = None
        self.saved: Saved | None = None

    def use_saved(self, saved: Saved | None) -> None:
        """Load graphs that another process has saved, from now on."""
        with self._lock:
            self.saved = saved

    def compile_with(self, compiler: Compiler) -> None:
        """Compile by another function than `compile_graph`, for tools that make it fail."""
        with self._lock:
            self._compiler = compiler

    def clear(self) -> None:
        """Forget all prepared graphs, and those being tuned."""
        with self._lock:
            self.last_new = None
        self.tuning.clear()
        self._prepared.clear()

    def prepared(self, key: Key, outline: Callable[[], Outline]) -> Prepared | Found:
        """The graph of a key with its masks, or the saved file that makes them unnecessary.

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
            begin: Returns the result of `prepared` for `planned`.
            functions: The functions among the constants, by path.
            origin: See `GraphRow`.
            meanwhile: Work for this thread while XLA compiles in another.

        Raises:
            FrozenError: The graph is missing, and the Exec is frozen.
            OutOfMemoryError: Memory ran out while the graph was compiled.
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
                self._check_allowed(planned, origin=origin)  # the next refused call needs its masks
            try:
                return graph or self._made(
                    planned, made, origin=origin, meanwhile=meanwhile, to_tune=to_tune
                )
            finally:  # after a failed lowering the next call must prepare it again
                self._prepared.drop(planned.key)

        to_tune: list[tuple[Graph, Prepared]] = []
        graph = self._cache.get(planned.key, make)
        for quick_graph, made in to_tune:  # after the cache has the quick graph
            self._tune(planned, quick_graph, made=made)
        return graph

    def _loaded(self, planned: Planned, made: Found, *, meanwhile: Meanwhile) -> Graph | None:
        """The graph from its file; None: there is no file for this machine, or it is damaged."""
        graph = made.graph(row_of(planned, "loaded"), meanwhile=meanwhile)
        if graph is not None:
            seconds = graph.row.seconds
            self._count(loads=1, load_seconds=seconds.load, check_seconds=seconds.check)
            self._events.emit("loaded", graph.row, seconds=seconds.total)
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
        """The graph of a plan, compiled; a quick graph is added to `to_tune`."""
        made = begun.prepared() if isinstance(begun, Found) else begun
        quick = self._quick_options()
        source = "exported" if made.is_exported else origin
        row = row_of(planned, source if quick is None else "quick")
        options = self._compiling.options if quick is None else quick
        before = tuple(held.row for held in self._cache.entries())
        self._events.emit("compiling", row)
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
            self._count(exports=1, load_seconds=made.seconds.load)
        with self._lock:
            self.last_new = planned, before
        self._warn_if_thrashing(planned)
        if quick is not None:
            to_tune.append((graph, made))
        return graph

    def _compiled(self, made: Prepared, row: GraphRow, *, meanwhile: Meanwhile = None) -> Graph:
        """Compile a graph, count it, and report it."""
        with self._events.emitting_failure(row):
            graph = (self._compiler or compile_graph)(made, row, meanwhile=meanwhile)
        seconds = graph.row.seconds
        self._count(
            compiles=graph.compiles,
            mask_seconds=seconds.mask,
            check_seconds=seconds.check,
            lower_seconds=seconds.lower,
            compile_seconds=seconds.compile,
        )
        self._events.emit("compiled", graph.row, seconds=seconds.total)
        return graph

    def _quick_options(self) -> Mapping[str, Option] | None:
        quick = self._compiling.quick
        return quick if quick and is_seen_by_workers(_compat.config_fingerprint()) else None

    def _tune(self, planned: Planned, quick: Graph, *, made: Prepared) -> None:
        """Begin to make the tuned graph that replaces a quick one."""
        made, row = made.with_options(self._compiling.options), row_of(planned, "tuned")

        def tune() -> None:
            if not self._cache.holds(quick, planned.key):
                return
            graph = self._compiled(made, row)
            graph = dataclasses.replace(graph, tally=quick.tally, number=quick.number)
            if self._cache.replace(quick, planned.key, other=graph):
                self._count(swaps=1)
                self._events.emit("swapped", graph.row)

        self.tuning.begin(
            (planned.key, quick.number),  # a quick graph that is made again is tuned again
            tune,
            drop=lambda: None,
            what=f"the tuned graph for {planned}",
            fix='calls keep the quick one; sx.Compiling(first="tuned") raises the error',
        )

    def _warn_of_new_functions(self, met: tuple[str, CodeType] | None) -> None:
        if met is None or not self._claim_warning("functions"):
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
        if self._cache.remade < _THRASHING or not self._claim_warning("thrashing"):
            return
        warnings.warn(
            f"shapeexec: graphs are compiled again after their eviction, now for {planned}; "
            f"{len(self._cache)} are kept, {self._cache.evictions} were evicted.\n"
            f"  Fix:   limits=sx.{self._limits.doubled()}, or use a coarser strategy",
            RuntimeWarning,
            stacklevel=2,
        )
