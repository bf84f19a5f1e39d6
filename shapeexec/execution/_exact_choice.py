"""Which symbols of a call become exact: where a rule refuses, a proof fails, or memory runs out.

`_exactness` stores the symbols, and `_planner` plans with them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from shapeexec._errors import (
    InconclusiveShapeError,
    OutOfMemoryError,
    ShapeExecError,
    UnsupportedPrimitiveError,
)
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._events import Events
from shapeexec.execution._exactness import ExactSymbols
from shapeexec.execution._key import Base
from shapeexec.execution._plan import Plan, notes_of
from shapeexec.execution._proofs import Proofs
from shapeexec.execution._settings import Settings
from shapeexec.shape._attempt import TraceRequest
from shapeexec.shape._search import needed

ON_TRIAL = "on trial"
"""The reason why a symbol is exact in a plan that is made only to see whether that helps."""


class Draft(Protocol):
    """`Planner.draft`."""

    def __call__(self, call: BoundCall, trial: Iterable[str] = ()) -> Plan:
        """Plan a call while the symbols in `trial` are exact."""
        ...


class ExactChoice:
    """Chooses the symbols that become exact, as few as possible.

    Args:
        settings: Whether symbols may be made exact at all.
        events: Reports each choice.
        symbols: Stores the symbols that are exact at all sizes of a call's kind.
        proofs: Compares traces with the plain function, and stores the sizes at which they differ.
        draft: See `Draft`.
        plan: Plans a call with the given exact symbols, by symbol the reason; proves nothing.
    """

    def __init__(
        self,
        settings: Settings,
        events: Events,
        *,
        symbols: ExactSymbols,
        proofs: Proofs,
        draft: Draft,
        plan: Callable[[BoundCall, Mapping[str, str]], Plan],
    ) -> None:
        self._settings, self._events = settings, events
        self._symbols, self._proofs = symbols, proofs
        self._draft, self._plan = draft, plan

    def make_fewest(self, plan: Plan, error: UnsupportedPrimitiveError, *, call: BoundCall) -> bool:
        """Make exact what has to be for a call to be masked, and no symbol more.

        Args:
            plan: The plan whose masking raised `error`.
            error: The refusal of a rule.
            call: The call.

        Returns:
            False if `on_unsupported` forbids it, or if it does not help.
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
            met = self._refusal_on_trial(call, suspects)
        fewest = needed(
            list(suspects), lambda symbols: self._refusal_on_trial(call, symbols) is None
        )
        # No symbol is left if another thread, or a trace on trial, has made them exact meanwhile.
        return not fewest or self.make(plan.base, fewest, error=error)

    def make_all(self, plan: Plan, error: UnsupportedPrimitiveError) -> bool:
        """Make exact all symbols that an error names, or all symbols if it names none.

        Returns:
            False if `on_unsupported` forbids it, or if they are exact already.
        """
        return self.make(plan.base, error.symbols or plan.sizes, error=error)

    def make(self, base: Base, symbols: Iterable[str], *, error: ShapeExecError) -> bool:
        """Make symbols exact in all calls of one kind, because of `error`; see `make_all`."""
        is_new = self._symbols.add(base, symbols, error=error)
        if is_new:
            self._events.emit("exact", reason=f"{', '.join(symbols)}: {error.what}")
        return is_new

    def give_up(self, call: BoundCall, error: OutOfMemoryError) -> bool:
        """Run calls exactly from now on that have the buckets of an error.

        Returns:
            False if `on_memory` forbids it, or if it does not help.
        """
        if all(call.sizes[symbol] == bucket for symbol, bucket in error.buckets.items()):
            return False
        is_new = self._symbols.give_up(call.base, error.buckets, reason=error.what)
        if is_new:
            self._events.emit("exact", sizes=call.sizes, reason=error.what)
        # Otherwise another call that failed at the same time may have given the buckets up.
        exact = self._symbols.reasons(call.base, call.sizes)
        return is_new or error.buckets.keys() <= exact.keys()

    def set_apart(self, call: BoundCall, forced: Mapping[str, str], *, difference: str) -> None:
        """Make the fewest symbols exact at the sizes of a call whose trace has a difference.

        Args:
            call: The call.
            forced: The symbols that are exact already, each with its reason.
            difference: What `self.difference` has found.
        """
        open_symbols = [symbol for symbol in call.sizes if symbol not in forced]

        def is_proven(symbols: Sequence[str]) -> bool:
            try:
                plan = self._plan(call, {**forced, **dict.fromkeys(symbols, ON_TRIAL)})
            except InconclusiveShapeError:
                return False
            return self.difference(call, plan) is None

        fewest = needed(open_symbols, is_proven)
        self._proofs.set_apart(call.base, call.sizes, symbols=fewest, reason=difference)
        sizes = {symbol: call.sizes[symbol] for symbol in fewest}
        self._events.emit("exact", sizes=sizes, reason=difference)

    def difference(self, call: BoundCall, plan: Plan) -> str | None:
        """How the trace of a plan differs from the plain function at the sizes of the call."""
        # A trace does not depend on the devices of the arguments.
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

    def _refusal_on_trial(
        self, call: BoundCall, symbols: Iterable[str]
    ) -> UnsupportedPrimitiveError | None:
        """The error of masking a call while some symbols are exact; None: it can be masked."""
        plan = self._draft(call, symbols)
        try:
            notes_of(plan, call)
        except UnsupportedPrimitiveError as error:
            return error
        return None
