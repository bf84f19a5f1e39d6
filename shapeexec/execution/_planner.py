"""From a bound call to its plan: bucket, trace, key, masks.

Planning traces the function, because guards decide between graphs, and puts the masks in, because a
symbol that cannot be padded runs at its exact size. Nothing is compiled or run here.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Literal

from shapeexec._errors import (
    InconclusiveShapeError,
    ShapeExecError,
    UnsupportedPrimitiveError,
)
from shapeexec.bucketing import Strategy
from shapeexec.bucketing._fixed import runs_exact
from shapeexec.execution._at_capacity import AtCapacity
from shapeexec.execution._bind import Binder, BoundCall
from shapeexec.execution._compile import Outline, Recipe
from shapeexec.execution._exact_choice import ON_TRIAL, ExactChoice
from shapeexec.execution._exactness import Exactness, ExactSymbols
from shapeexec.execution._inference import Inference
from shapeexec.execution._key import (
    Bucketed,
    Key,
    Kind,
    graph_name,
    kind_of,
    shown_sizes,
)
from shapeexec.execution._measured import MeasuredModes
from shapeexec.execution._options import name_of, range_of
from shapeexec.execution._plan import Plan
from shapeexec.execution._proofs import Proofs
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import Call
from shapeexec.execution._store import Store
from shapeexec.execution._traces import Traces
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.shape import _dim


@dataclasses.dataclass(frozen=True, eq=False)
class _Known:
    """All that planners of one function have found out; `Planner.for_handles` shares it."""

    binder: Binder
    proofs: Proofs
    symbols: ExactSymbols
    traces: Traces
    measured: MeasuredModes


class Planner:
    """Plans calls, and keeps the traces that this takes.

    Args:
        settings: How calls map to graphs.
        store: Holds compiled graphs and prepared traces.
        results: `"padded"`: results stay at capacity, with zeros for padding.
        known: What another planner of the same settings and store has found out; None: nothing.

    Attributes:
        measured: The padding modes that were measured.
        inference: The inferred specs; None: the specs are given.
        exact: Makes symbols exact where a call cannot be padded.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        results: Literal["cut", "padded"] = "cut",
        known: _Known | None = None,
    ) -> None:
        self._settings, self._store, self._results = settings, store, results
        self._known = self._new_known() if known is None else known
        own = self._known
        self._binder, self._proofs, self._symbols = own.binder, own.proofs, own.symbols
        self._traces, self.measured = own.traces, own.measured
        self.inference: Inference | None = own.binder.inference
        self.exact = ExactChoice(
            settings,
            store.events,
            symbols=own.symbols,
            proofs=own.proofs,
            draft=self.draft,
            plan=self._plan,
        )
        self._at_capacity = AtCapacity(
            settings, store, traces=own.traces, proofs=own.proofs, chosen=own.measured.chosen
        )

    def _new_known(self) -> _Known:
        settings, count = self._settings, self._store.count
        proofs = Proofs(settings.check, count)
        return _Known(
            binder=Binder(settings),
            proofs=proofs,
            symbols=ExactSymbols(settings, proofs, strategy=self.strategy),
            traces=Traces(settings.constraints, count),
            measured=MeasuredModes(),
        )

    def for_handles(self) -> "Planner":
        """A planner with the same traces, for calls whose results stay at capacity."""
        return Planner(self._settings, self._store, results="padded", known=self._known)

    def clear(self) -> None:
        """Forget all traces."""
        self._binder.clear()
        self._traces.clear()
        self._symbols.clear()
        self._proofs.clear()

    def bind_to_newest_specs(self, call: Call) -> BoundCall:
        """Bind a call to the specs as they are inferred now; see `Binder`."""
        return self._binder.bind(call)

    def bind(self, call: Call, *, is_seen: bool = False) -> BoundCall:
        """Bind a call; use an earlier inferred spec if it already has a compiled graph.

        Args:
            call: The call.
            is_seen: Whether later calls infer their specs from this one too.
        """
        bound = self._binder.bind(call, is_seen=is_seen)
        return next(filter(self._is_served, self._binder.earlier(call)), bound)

    def _is_served(self, call: BoundCall) -> bool:
        if not self._traces.knows(call.base):
            return False
        try:
            return self.draft(call).is_compiled
        except ShapeExecError:  # bind to the newest specs instead, which may not raise it
            return False

    def plan(self, call: BoundCall, *, is_proven_later: bool = False) -> Plan:
        """Plan a call, and put in the masks of a graph that is missing.

        Args:
            call: The call.
            is_proven_later: Whether the caller proves the trace itself, by planning once more, if
                `may_wait` allows it. Before a rule's refusal is raised the trace is proven in any
                case: the refused equation may be in the symbolic trace only.

        Raises:
            BucketOverflowError: A size has no bucket.
            StrategyError: A strategy breaks one of its laws.
            InconclusiveShapeError: The function cannot be traced at symbolic sizes.
            UnsupportedPrimitiveError: A primitive cannot be made exact under padding.
        """
        while True:
            plan = self.draft(call, is_proven_later=is_proven_later)
            if plan.is_compiled:
                return plan
            try:
                self._store.making.prepared(plan.key, lambda plan=plan: outlined(plan, call))
            except UnsupportedPrimitiveError as error:
                if is_proven_later:
                    is_proven_later = False
                elif not self.exact.make_fewest(plan, error, call=call):
                    raise
            else:
                return plan

    def draft(
        self, call: BoundCall, trial: Iterable[str] = (), *, is_proven_later: bool = False
    ) -> Plan:
        """Plan a call without its masks, so that an unsupported primitive is not found yet.

        Args:
            call: The call.
            trial: Symbols that are made exact for this plan only.
            is_proven_later: See `plan`.

        Raises:
            ShapeExecError: Whatever `plan` raises, except `UnsupportedPrimitiveError`.
        """
        while True:
            reasons = self._symbols.reasons(call.base, call.sizes)
            forced = dict.fromkeys(trial, ON_TRIAL) | reasons
            try:
                plan = self._plan(call, forced)
            except InconclusiveShapeError as error:
                if not self.exact.make(call.base, error.symbols or call.sizes, error=error):
                    raise
                continue
            if is_proven_later and self.may_wait(plan):
                return plan
            difference = self.exact.difference(call, plan)
            if difference is None:
                return plan
            self.exact.set_apart(call, forced, difference=difference)

    def may_wait(self, plan: Plan) -> bool:
        """Whether the proof of a trace may wait, while its graph is compiled or runs."""
        check, jaxpr = self._settings.check, plan.recipe.trace.jaxpr
        if check == "off" or not plan.is_compiled:
            return check != "off"
        runs_in_vain = not self._settings.donate_argnums and not jaxpr.effects
        return check == "worker" and runs_in_vain

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol now."""
        learner = self._store.learner
        return self._settings.strategy(symbol) if learner is None else learner.strategy(symbol)

    def exactness(self, base: Hashable) -> Exactness:
        """Which symbols are exact in calls of one kind."""
        return self._symbols.exactness(base)

    def _plan(self, call: BoundCall, forced: Mapping[str, str]) -> Plan:
        exact = {
            symbol: size
            for symbol, size in call.sizes.items()
            if symbol in forced or runs_exact(self.strategy(symbol), size)
        }
        reasons = {symbol: forced[symbol] for symbol in sorted(forced.keys() & exact.keys())}
        if not self._settings.masking:
            ranges = {s: self._range(s, call.sizes[s]) for s in call.sizes if s not in exact}
            return self._at_capacity.plan(call, ranges=ranges, exact=exact, reasons=reasons)
        traced = self._traces.of(call, exact)
        ranges = {
            symbol: self._range(symbol, call.sizes[symbol])
            for symbol in sorted(traced.trace.symbols)
        }
        out_avals = traced.trace.jaxpr.out_avals
        is_ragged = any(holds_dim(tuple(aval.shape)) for aval in out_avals)
        zeros = is_ragged and self._results == "padded"
        kind = Key(Kind(call.base, tuple(exact.items()), traced.number, call.placement, zeros))
        key = Key(Bucketed(kind, tuple(ranges.items())))
        return _planned(
            call,
            kind=kind,
            key=key,
            recipe=Recipe(
                trace=traced.trace,
                symbols=tuple(call.sizes),
                ranges=ranges,
                poison=self._settings.poison,
                donate=self._settings.donate_argnums,
                trace_seconds=traced.seconds,
                zero_results=zeros,
            ),
            reasons=reasons,
            is_compiled=key in self._store,
        )

    def _range(self, symbol: str, size: int) -> tuple[int, int]:
        least, bucket = range_of(symbol, self.strategy(symbol), size=size)
        # A graph has no masks that only a size below its range needs, so it cannot serve such a
        # size; and on another ladder the same bucket has another range.
        learner = self._store.learner
        may_serve_others = self._settings.missing == "larger" or (
            learner and learner.learns(symbol)
        )
        return (1 if may_serve_others else least), bucket


def within(plan: Plan, call: BoundCall, *, key: Key) -> Plan:
    """The plan of a call that runs in a larger graph than its own.

    Args:
        plan: The plan of the call.
        call: The call.
        key: The larger graph, whose ranges hold the sizes of the call.
    """
    parts = key.parts
    assert isinstance(parts, Bucketed)
    return _planned(
        call,
        kind=plan.kind,
        key=key,
        recipe=dataclasses.replace(plan.recipe, ranges=dict(parts.ranges)),
        reasons=plan.reasons,
        is_compiled=True,
    )


def outlined(plan: Plan, call: BoundCall) -> Outline:
    """The outline from which the graph of a plan is made."""
    args, kwargs = call.structs(plan.in_capacities)
    sizes = shown_sizes(plan.buckets, dict(kind_of(plan.key).exact), examples=None)
    name = graph_name(name_of(call.call.fn), sizes)
    config = plan.base.config
    return Outline(plan.recipe, plan.recipe.numbers.struct, args, kwargs, name=name, config=config)


def _planned(
    call: BoundCall,
    *,
    kind: Key,
    key: Key,
    recipe: Recipe,
    reasons: Mapping[str, str],
    is_compiled: bool,
) -> Plan:
    """The plan of a call, whose shapes follow from its trace and the ranges of its sizes."""
    trace = recipe.trace
    jaxpr, symbols = trace.jaxpr, trace.substitution
    exact = dict(kind_of(kind).exact)
    extents = Extents(recipe.ranges, {}, substitution=symbols)
    out_dims = [tuple(aval.shape) for aval in jaxpr.out_avals]
    own_sizes = symbols.sizes(call.sizes)
    return Plan(
        sizes=call.sizes,
        buckets={
            symbol: size if symbol in exact else extents.capacity(symbols.inward(symbol))
            for symbol, size in call.sizes.items()
        },
        guards=trace.guards,
        in_capacities=tuple(extents.capacities(aval.shape) for aval in jaxpr.in_avals),
        out_shapes=tuple(
            tuple(_dim.evaluate(dim, own_sizes) for dim in shape) for shape in out_dims
        ),
        out_capacities=tuple(map(extents.capacities, out_dims)),
        exact=tuple(reasons),
        reasons=reasons,
        is_compiled=is_compiled,
        base=call.base,
        kind=kind,
        key=key,
        recipe=recipe,
    )
