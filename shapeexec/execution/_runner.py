"""A call from its arguments to its result: taken apart, planned if it is new, padded, run, cut.

`_exec` is the interface to users; `_store` holds all state that outlasts a call.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec._errors import ConfigError, OutOfMemoryError
from shapeexec.execution import _warmup, _worker
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph
from shapeexec.execution._examples import Examples, Reduce, check_reduce, take_examples
from shapeexec.execution._explain import Explanation, program_of
from shapeexec.execution._graphs import Graphs, graphs_of
from shapeexec.execution._inference import Specs
from shapeexec.execution._larger import borrow, with_runs_in
from shapeexec.execution._makers import as_workers, makers
from shapeexec.execution._map import Mappers
from shapeexec.execution._monitor import Span
from shapeexec.execution._permission import SignatureChanged
from shapeexec.execution._plan import Plan, notes_of
from shapeexec.execution._planner import Planner, outlined
from shapeexec.execution._progress import shown
from shapeexec.execution._ready import make_ready
from shapeexec.execution._settings import Settings, check_mapped
from shapeexec.execution._signature import by_position, signature
from shapeexec.execution._split import Call, places, take
from shapeexec.execution._store import Store
from shapeexec.execution._why import WhyNew, why_new
from shapeexec.execution.saving._saved import is_given_up

Arguments = tuple[Sequence[Any], Mapping[str, Any]]
"""The positional and the keyword arguments of a call."""


@dataclasses.dataclass(frozen=True, eq=False)
class Runner:
    """Runs calls of one function, with one store.

    Attributes:
        settings: How calls map to graphs.
        store: The state that outlasts a call.
        planner: Plans calls.
        mappers: Run maps.
    """

    settings: Settings
    store: Store
    planner: Planner
    mappers: Mappers

    @classmethod
    def of(cls, settings: Settings, store: Store) -> "Runner":
        """A runner with separate traces."""
        planner = Planner(settings, store)
        runner = cls(settings, store, planner, Mappers(settings, planner, store=store))
        return runner.for_handles if settings.returns == "padded" else runner

    def with_function(self, fn: Callable[..., Any]) -> "Runner":
        """A runner of another function with the same graphs: the method of another instance."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, fn=fn))

    @functools.cached_property
    def for_handles(self) -> "Runner":
        """A runner with the same graphs and traces, for calls whose results stay at capacity."""
        settings = dataclasses.replace(self.settings, returns="padded")
        return dataclasses.replace(self, settings=settings, planner=self.planner.for_handles())

    # Calls

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Call]:
        """The result as the graph gives it, and the call."""
        began = time.perf_counter()
        args, kwargs = by_position(self.settings, args, kwargs=kwargs)
        store = self.store
        call = take(self.settings, args, kwargs=kwargs, at=store.places)
        known_as = self._signature(call)
        ready = store.ready.get(known_as)
        graph = None if ready is None else store.find(ready.key)
        if ready is not None and graph is not None:
            span = Span()
            # Arguments without a spec are not in the signature: their dtype, structure or device
            # may differ from last time, or they are not arrays, for which JAX raises a TypeError.
            try:
                result = ready.run(graph, call, span=span, retrace=False)
                store.record_run(ready, graph, span=span, is_hit=True, began=began)
                return result, call
            except SignatureChanged:
                pass
            except OutOfMemoryError as error:
                self._give_up(self.bind((args, kwargs)), error, graph=graph)
            except TypeError:
                if call.has_dtypes():  # then the graph itself has failed
                    raise
        call = self._seen(args, kwargs)
        bound = self.planner.bind(call, is_seen=not store.is_frozen).with_static_cut()
        # The signature is computed again: `bind` may have learned that more axes change.
        return self.run_bound(bound, self._signature(call), began=began), call

    def _signature(self, call: Call) -> Hashable:
        inference = self.planner.inference
        return signature(self.settings, call, trees=() if inference is None else inference.trees)

    def run_bound(self, call: BoundCall, known_as: Hashable, *, began: float) -> Any:
        """The result of a call as its graph gives it, planned anew.

        Args:
            call: The call.
            known_as: The signature of the call; None: the call is not remembered.
            began: When the call began, by `time.perf_counter`, in seconds.
        """
        planner = self.planner
        while True:
            borrowed = borrow(planner, self.store, call=call, missing=self.settings.missing)
            if borrowed is not None:
                try:
                    return borrowed.run(returns=self.settings.returns, began=began)
                except OutOfMemoryError as error:  # the call's own graph is smaller: make it
                    self.store.events.emit("failed", borrowed.graph.row, reason=error.what)
            try:
                plan, graph = self._made(call)
                plan = planner.measured.settled(plan, call, graph=graph)
            except OutOfMemoryError as error:
                self._give_up(call, error)
                continue
            ready = make_ready(plan, call, returns=self.settings.returns)
            may_wait = plan.is_compiled and planner.may_wait(plan)
            # A proof that comes after the run may fail: then the call runs again at exact sizes.
            proven = _worker.begin(lambda: planner.plan(call)) if may_wait else None
            span = Span()
            try:
                result = ready.run(graph, call.call, span=span, retrace=True)
            except OutOfMemoryError as error:
                self._give_up(call, error, graph=graph)
                continue
            except _compat.JaxRuntimeError as error:
                if not is_given_up(graph, error, drop=self.store.drop):
                    raise
                continue
            if proven is None or proven().key == plan.key:
                self.store.remember(known_as, ready, call=call.call)
                self.store.record_run(ready, graph, span=span, is_hit=plan.is_compiled, began=began)
                return result

    def _give_up(
        self, call: BoundCall, error: OutOfMemoryError, *, graph: Graph | None = None
    ) -> None:
        """Give up the bucket of a call that did not fit into memory.

        Args:
            call: The call.
            error: The error.
            graph: The graph of the call, if it could be made.

        Raises:
            OutOfMemoryError: `on_memory` forbids it, or it does not help.
        """
        # Donated arguments may be gone.
        if self.settings.donate_argnums or not self.planner.exact.give_up(call, error):
            raise error
        if graph is not None:
            self.store.drop(graph.row.key)

    def _made(self, call: BoundCall, *, origin: str = "made") -> tuple[Plan, Graph]:
        """The plan of a call, and its graph; XLA makes a missing one while the trace is proven."""
        while True:
            plan = self.planner.plan(call, is_proven_later=True)
            if plan.is_compiled or not self.planner.may_wait(plan):
                return plan, self._graph(plan, call, origin=origin)
            proof = _PlanProof(self.planner, call)
            try:
                graph = self._graph(plan, call, origin=origin, meanwhile=proof.make)
            except Exception:  # of any kind: an unproven trace may cause it
                if proof.holds(plan):
                    raise
                return self._made(call, origin=origin)  # Python chains this error to a new one
            else:
                if proof.holds(plan):
                    return plan, graph
                self.store.discard(graph)

    def _graph(
        self,
        plan: Plan,
        call: BoundCall,
        *,
        origin: str,
        meanwhile: Callable[[], object] | None = None,
    ) -> Graph:
        """The graph of a plan, compiled if it is missing."""
        return self.store.making.graph(
            plan,
            lambda: self.store.making.prepared(plan.key, lambda: outlined(plan, call)),
            functions=call.call.functions(),
            origin=origin,
            meanwhile=meanwhile,
        )

    def bind(self, arguments: Arguments) -> BoundCall:
        """The bound call, after a look at each leaf."""
        return self.planner.bind(self.taken(arguments))

    def taken(self, arguments: Arguments) -> Call:
        """The call, taken apart after a look at each leaf."""
        args, kwargs = arguments
        return self._seen(*by_position(self.settings, args, kwargs=kwargs))

    def _seen(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        self.store.note_places(places(self.settings.fn, args, kwargs=kwargs))
        return take(self.settings, args, kwargs=kwargs, at=self.store.places)

    # Previews

    @property
    def current(self) -> Settings:
        """The settings, with inferred specs and learned ladders."""
        settings, inference, learner = self.settings, self.planner.inference, self.store.learner
        if inference is not None:
            settings = dataclasses.replace(settings, found=inference.found)
        return settings if learner is None else learner.settings(settings)

    @property
    def specs(self) -> Specs:
        """See `Exec.specs`."""
        inference, own = self.planner.inference, self.settings
        return Specs(own.in_shapes, own.kwarg_shapes) if inference is None else inference.specs

    @property
    def graphs(self) -> Graphs:
        """The table of all graphs."""
        return graphs_of(self.store.graphs(), self.store.counters, exactness=self.planner.exactness)

    def plan(self, arguments: Arguments) -> Plan:
        """See `Exec.plan`."""
        return self._planned(self.bind(arguments))

    def _planned(self, call: BoundCall) -> Plan:
        return with_runs_in(self.planner.plan(call), self.store, missing=self.settings.missing)

    def explain(self, arguments: Arguments) -> Explanation:
        """See `Exec.explain`."""
        call = self.bind(arguments)
        plan = self._planned(call)
        program = program_of(plan, call.call, notes=notes_of(plan, call))
        learner = self.store.learner
        return Explanation(plan, program, {} if learner is None else learner.why(plan.sizes))

    def why_new(self, arguments: Arguments) -> WhyNew:
        """See `Exec.why_new`."""
        return why_new(self.plan(arguments), self.graphs)

    def last_miss(self) -> WhyNew | None:
        """See `Exec.last_miss`."""
        newest = self.store.making.last_new
        if newest is None:
            return None
        planned, before = newest
        return why_new(planned, Graphs(before))

    def warm_up(
        self,
        args: Sequence[Any],
        sizes: Mapping[str, Any] | None,
        *,
        named: Mapping[str, Any],
        progress: Callable[[int, int], None] | bool | None,
        workers: int | None,
    ) -> int:
        """See `Exec.warmup`."""
        count, given = as_workers(workers), _warmup.merged(sizes, named)
        example = (
            self._seen(*by_position(self.settings, args, kwargs={})) if args else self.store.example
        )
        if example is None:
            raise ConfigError(
                "warmup: the shapes and dtypes of the arguments are not known yet.",
                option="args",
                fix="pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
            )

        def make(call: BoundCall) -> Plan:
            return self._made(call, origin="warmup")[0]

        with (
            makers(count, make, planner=self.planner, store=self.store) as maker,
            shown(progress) as tell,
        ):
            saved = self.store.making.saved
            known = () if saved is None else saved.sizes
            made = _warmup.warm(
                self.planner,
                example,
                sizes=given,
                known=known,
                is_inferred=self.settings.in_shapes is None,
                maker=maker,
                progress=tell,
            )
        _warmup.warn_of_evicted(made, kept=len(self.store), limits=self.store.limits)
        return made

    # Maps

    def examples(self, arguments: Arguments, reduce: Reduce) -> Examples:
        """The examples of a map, and the arguments that they share."""
        check_reduce(reduce)
        check_mapped(self.settings)
        args, kwargs = by_position(self.settings, arguments[0], kwargs=arguments[1])
        return take_examples(
            self.settings, args, kwargs=kwargs, reduce=reduce, at=self.store.places
        )

    def clear(self) -> None:
        """Forget all graphs and traces."""
        self.store.clear()
        self.planner.clear()
        self.mappers.clear()


class _PlanProof:
    """The proof of a call's trace: planned again with its proof, the call has the same plan.

    Args:
        planner: Plans the call.
        call: The call.
    """

    def __init__(self, planner: Planner, call: BoundCall) -> None:
        self._planner, self._call = planner, call
        self._plan: Plan | None = None
        self._error: Exception | None = None

    def make(self) -> None:
        """Plan the call and keep the error, if any, for `holds`."""
        try:
            self._plan = self._planner.plan(self._call)
        except Exception as error:  # of any kind: it is the function's own
            self._error = error

    def holds(self, plan: Plan) -> bool:
        """Whether the plan is proven; calls `make` unless it has run already.

        Raises:
            Exception: Whatever planning the call raises.
        """
        if self._plan is None and self._error is None:
            self.make()
        if self._error is not None:
            raise self._error
        assert self._plan is not None
        return self._plan.key == plan.key
