"""Calls that run in another graph while their own is made: `missing="larger"`, and `Adaptive`.

`_behind` makes graphs, and `_planner` plans calls. Which sizes a graph may serve: docs/adr/0021.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from shapeexec import _compat
from shapeexec.execution._behind import Missing, is_seen_by_workers
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph
from shapeexec.execution._missing_graph import masks_and_rest, masks_by_itself, what_is_left
from shapeexec.execution._monitor import Span
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner, within
from shapeexec.execution._ready import make_ready
from shapeexec.execution._settings import Returns
from shapeexec.execution._store import Store

_FIX = 'the next call of this bucket makes it, and says what stops it; or missing="wait"'
_FIX_OF_LADDER = "the ladder before it stays; a bucket that is too large: start=Pow2(maximum=...)"


@dataclasses.dataclass(frozen=True, eq=False)
class Borrowed:
    """A call that runs in another graph than its own.

    Attributes:
        plan: The plan of the call in the other graph.
        call: The call.
        graph: The other graph.
        store: Counts the run.
        begin: Begins to make the call's own graph, unless another thread does already.
    """

    plan: Plan
    call: BoundCall
    graph: Graph
    store: Store
    begin: Callable[[], object]

    def run(self, *, returns: Returns, began: float) -> Any:
        """The result as the graph gives it, in the form that a call returns.

        Args:
            returns: See `Settings`.
            began: When the call began, by `time.perf_counter`, in seconds.
        """
        store, span = self.store, Span()
        ready = make_ready(self.plan, self.call, returns=returns)
        result = ready.run(self.graph, self.call.call, span=span, retrace=True)
        self.begin()  # after the run: both would compete for the CPU
        store.remember(None, ready, call=self.call.call)
        store.count(larger=1)
        store.record_run(ready, self.graph, span=span, is_hit=False, began=began)
        return result


def borrow(planner: Planner, store: Store, *, call: BoundCall, missing: Missing) -> Borrowed | None:
    """Borrow another graph for a call whose own is missing: a larger one, or one of an old ladder.

    Returns:
        None if the call's own graph is compiled, no other graph serves the call, or the caller has
        to make the graph itself.

    Raises:
        ShapeExecError: Whatever planning the call raises.
    """
    learner = store.learner
    if missing != "larger" and not (learner and learner.has_changed):
        return None
    while True:
        plan = planner.draft(call, is_proven_later=True)
        if learner and store.behind.has_failed(plan.key) and learner.refuse(plan):
            continue
        graph = None if plan.is_compiled else _stand_in(store, plan, missing=missing)
        if graph is None:
            return None
        if planner.draft(call).key == plan.key:  # the trace is proven at these sizes
            break
    begin = _work(planner, store, call=call, plan=plan)
    if begin is None:
        return None
    return Borrowed(within(plan, call, key=graph.row.key), call, graph, store, begin)


def with_runs_in(plan: Plan, store: Store, *, missing: Missing) -> Plan:
    """A plan with `runs_in`: the graph in which its call would run now."""
    own = [graph for graph in store.graphs() if graph.row.key == plan.key]
    graph = own[0] if own else _stand_in(store, plan, missing=missing)
    return plan if graph is None else dataclasses.replace(plan, runs_in=graph.row)


def _stand_in(store: Store, plan: Plan, *, missing: Missing) -> Graph | None:
    """The graph that a call borrows while its own is missing; None: there is none."""
    graph = None if store.learner is None else store.learner.graph_of_old_ladder(plan)
    return _least(store, plan) if graph is None and missing == "larger" else graph


def _least(store: Store, plan: Plan) -> Graph | None:
    """The cheapest larger graph that serves a call."""
    for graph in store.larger(plan.key):
        least = graph.row.least
        if all(least[symbol] <= size for symbol, size in plan.sizes.items()):
            return graph
    return None


def _work(
    planner: Planner, store: Store, *, call: BoundCall, plan: Plan
) -> Callable[[], object] | None:
    """A function that begins to make the graph of a plan; None if the caller has to make it."""
    behind, key = store.behind, plan.key
    if store.is_frozen or behind.makes(key):
        return lambda: None
    if behind.has_failed(key) or not is_seen_by_workers(_compat.config_fingerprint()):
        return None
    if masks_by_itself(plan.recipe.trace):
        make = masks_and_rest(store, plan, call=call, origin="worker")
    else:
        masked = planner.plan(call)
        if masked.key != key or masked.is_compiled:
            return None
        make = what_is_left(store, plan, call=call, origin="worker")
    return lambda: behind.begin(
        key,
        make,
        drop=lambda: store.drop(key),
        what=f"the graph for {plan}",
        fix=_FIX if store.learner is None else _FIX_OF_LADDER,
    )
