"""From a bound call to its plan: bucket, trace, key, masks.

Planning traces, since guards decide between graphs, and puts the masks in, since a symbol that
cannot be padded runs at its exact size. It compiles nothing and runs nothing.
"""

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from shapeexec._errors import (
    InconclusiveShapeError,
    OutOfMemoryError,
    ShapeExecError,
    UnsupportedPrimitiveError,
)
from shapeexec.bucketing import Strategy
from shapeexec.bucketing._fixed import runs_exact
from shapeexec.execution._at_capacity import AtCapacity
from shapeexec.execution._bind import Binder, BoundCall
from shapeexec.execution._compile import Outline, Recipe
from shapeexec.execution._exactness import Exactness, ExactSymbols
from shapeexec.execution._inference import Inference
from shapeexec.execution._key import (
    Base,
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
from shapeexec.masking._values import MaskNote
from shapeexec.shape import _dim
from shapeexec.shape._attempt import TraceRequest
from shapeexec.shape._search import needed


class Planner:
    """Plans calls, and keeps the traces that this takes.

    Args:
        settings: How calls map to graphs.
        store: Holds compiled graphs and prepared traces.

    Attributes:
        measured: The padding modes that were measured.
        bind_newest: Binds a call to the specs that are in force.
        inference: The specs that calls show; None: they are given.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._binder = Binder(settings)
        self.bind_newest: Callable[[Call], BoundCall] = self._binder.bind
        self.inference: Inference | None = self._binder.inference
        self._proofs = Proofs(settings.check, store.count)
        self._exact = ExactSymbols(settings, self._proofs, strategy=self.strategy)
        self._traces = Traces(settings.constraints, store.count)
        self.measured = MeasuredModes()
        self._at_capacity = AtCapacity(
            settings,
            store,
            traces=self._traces,
            proofs=self._proofs,
            chosen=self.measured.chosen,
        )
        self._zero_results = False

    def for_handles(self) -> "Planner":
        """The same with the same traces, for calls whose results stay at capacity."""
        other = copy.copy(self)
        other._zero_results = True
        return other

    def clear(self) -> None:
        """Forget all traces."""
        self._binder.clear()
        self._traces.clear()
        self._exact.clear()
        self._proofs.clear()

    def bind(self, call: Call, *, is_seen: bool = False) -> BoundCall:
        """Bind a call to the specs, older ones if a graph of theirs is there; see `Binder`."""
        bound = self._binder.bind(call, is_seen=is_seen)
        return next(filter(self._is_served, self._binder.earlier(call)), bound)

    def _is_served(self, call: BoundCall) -> bool:
        if not self._traces.knows(call.base):
            return False
        try:
            return self.draft(call).is_compiled
        except ShapeExecError:  # newer specs may have another error, or none
            return False

    def plan(self, call: BoundCall, *, is_proven_later: bool = False) -> Plan:
        """Plan a call, and put in the masks of a graph that is missing.

        Args:
            call: The call.
            is_proven_later: Whether the caller proves what `may_wait`, by planning once more.
                What a rule refuses is proven first, for it may be in the trace alone.

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
                self._store.prepared(plan.key, lambda plan=plan: outlined(plan, call))
            except UnsupportedPrimitiveError as error:
                if is_proven_later:
                    is_proven_later = False
                elif not self.make_fewest_exact(plan, error, call=call):
                    raise
            else:
                return plan

    def draft(
        self, call: BoundCall, trial: Iterable[str] = (), *, is_proven_later: bool = False
    ) -> Plan:
        """Plan a call without its masks: whether a primitive is unsupported is left open.

        Args:
            call: The call.
            trial: Symbols that are exact in this plan, and not for that in the next.
            is_proven_later: See `plan`.

        Raises:
            ShapeExecError: What `plan` raises, but for unsupported primitives.
        """
        while True:
            reasons = self._exact.reasons(call.base, call.sizes)
            forced = dict.fromkeys(trial, "on trial") | reasons
            try:
                plan = self._plan(call, forced)
            except InconclusiveShapeError as error:
                if not self._make_exact(call.base, error.symbols or call.sizes.keys(), error=error):
                    raise
                continue
            if is_proven_later and self.may_wait(plan):
                return plan
            difference = self._difference(call, plan)
            if difference is None:
                return plan
            fewest = self._fewest_apart(call, forced)
            self._proofs.set_apart(call.base, call.sizes, symbols=fewest, reason=difference)
            sizes = {symbol: call.sizes[symbol] for symbol in fewest}
            self._store.events.tell("exact", sizes=sizes, reason=difference)

    def may_wait(self, plan: Plan) -> bool:
        """Whether the proof of a trace may wait, while its graph is compiled or runs."""
        check, jaxpr = self._settings.check, plan.recipe.trace.jaxpr
        if check == "off" or not plan.is_compiled:
            return check != "off"
        runs_in_vain = not self._settings.donate_argnums and not jaxpr.effects
        return check == "worker" and runs_in_vain

    def make_fewest_exact(
        self, plan: Plan, error: UnsupportedPrimitiveError, *, call: BoundCall
    ) -> bool:
        """Make exact what has to be for a call to be masked, and no symbol more.

        Args:
            plan: The plan whose masking met `error`.
            error: The refusal of a rule.
            call: The call.

        Returns:
            False if that is not allowed, or does not help.
        """
        if self._settings.on_unsupported == "raise":
            return False
        suspects: dict[str, None] = {}
        met: UnsupportedPrimitiveError | None = error
        while met is not None:
            known = len(suspects)
            suspects |= dict.fromkeys(sorted(met.symbols or plan.sizes))
            if len(suspects) == known:
                return False
            met = self._met_on_trial(call, suspects)
        fewest = needed(list(suspects), lambda symbols: self._met_on_trial(call, symbols) is None)
        # None if another thread, or a trace on trial, has made them exact meanwhile.
        return not fewest or self._make_exact(plan.base, fewest, error=error)

    def make_all_exact(self, plan: Plan, error: UnsupportedPrimitiveError) -> bool:
        """Make exact all symbols that an error names, or all that there are.

        Returns:
            False if that is not allowed, or is nothing new.
        """
        return self._make_exact(plan.base, error.symbols or plan.sizes, error=error)

    def give_up(self, call: BoundCall, error: OutOfMemoryError) -> bool:
        """Run calls exactly from now on that have the buckets of an error.

        Returns:
            False if that is not allowed, or does not help.
        """
        if all(call.sizes[symbol] == bucket for symbol, bucket in error.buckets.items()):
            return False
        is_new = self._exact.give_up(call.base, error.buckets, reason=error.what)
        if is_new:
            self._store.events.tell("exact", sizes=call.sizes, reason=error.what)
        # Else another call that failed at the same time may have done it.
        exact = self._exact.reasons(call.base, call.sizes)
        return is_new or error.buckets.keys() <= exact.keys()

    def _make_exact(self, base: Base, symbols: Iterable[str], *, error: ShapeExecError) -> bool:
        is_new = self._exact.add(base, symbols, error=error)
        if is_new:
            self._store.events.tell("exact", reason=f"{', '.join(symbols)}: {error.what}")
        return is_new

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol now."""
        learner = self._store.learner
        return self._settings.strategy(symbol) if learner is None else learner.strategy(symbol)

    def exactness(self, base: Hashable) -> Exactness:
        """Which symbols are exact in calls of one kind."""
        return self._exact.exactness(base)

    def _met_on_trial(
        self, call: BoundCall, symbols: Iterable[str]
    ) -> UnsupportedPrimitiveError | None:
        """The error of masking a call while some symbols are exact."""
        plan = self.draft(call, symbols)
        try:
            notes_of(plan, call)
        except UnsupportedPrimitiveError as error:
            return error
        return None

    def _difference(self, call: BoundCall, plan: Plan) -> str | None:
        """How the trace of a plan differs from the plain function at the sizes of the call."""
        # Where arguments stand is no matter of a trace.
        graph = (plan.key.without_placement(), plan.kind.without_placement())
        leaves = call.to_trace({})
        found = self._proofs.difference(
            graph, plan.recipe.trace, fn=call.fn, leaves=leaves, sizes=call.sizes
        )
        if found is not None:
            return found
        try:
            _ = plan.size_vector
        except Exception as error:  # of any kind: it is the arithmetic of the function itself
            TraceRequest(call.fn, leaves, call.sizes, ()).run_plain()
            return f"{type(error).__name__}: {error}"
        return None

    def _fewest_apart(self, call: BoundCall, forced: Mapping[str, str]) -> list[str]:
        """The fewest symbols to be exact so that the trace is the plain function's."""
        open_symbols = [symbol for symbol in call.sizes if symbol not in forced]

        def is_proven(symbols: Sequence[str]) -> bool:
            try:
                plan = self._plan(call, {**forced, **dict.fromkeys(symbols, "on trial")})
            except InconclusiveShapeError:
                return False
            return self._difference(call, plan) is None

        return needed(open_symbols, is_proven)

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
        zeros = self._zero_results and any(holds_dim(tuple(aval.shape)) for aval in out_avals)
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
        # Masks that only a smaller size needs are spared, so a graph lends itself to none that
        # lies below its range; and on another ladder the same bucket has another range.
        learner = self._store.learner
        is_lent = self._settings.missing == "larger" or (learner and learner.learns(symbol))
        return (1 if is_lent else least), bucket


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
    """What the graph of a plan is made from."""
    args, kwargs = call.structs(plan.in_capacities)
    sizes = shown_sizes(plan.buckets, dict(kind_of(plan.key).exact), examples=None)
    name = graph_name(name_of(call.call.fn), sizes)
    config = plan.base.config
    return Outline(plan.recipe, plan.recipe.numbers.struct, args, kwargs, name=name, config=config)


def notes_of(plan: Plan, call: BoundCall) -> list[MaskNote]:
    """Each mask that the graph of a plan has or is spared; nothing is compiled.

    Raises:
        UnsupportedPrimitiveError: A primitive cannot be made exact.
    """
    return plan.recipe.notes(*call.structs(plan.in_capacities))


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
