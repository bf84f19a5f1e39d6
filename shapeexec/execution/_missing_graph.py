"""The work on a missing graph, which another thread may do once the call is planned.

`_behind` has the threads. Which of the work runs code of users is known here.
"""

import functools
from collections.abc import Callable

from shapeexec import _compat
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph, Prepared
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import outlined
from shapeexec.execution._store import Store
from shapeexec.execution._weak_table import WeakTable
from shapeexec.execution.saving._saved import Found
from shapeexec.masking._registry import is_own
from shapeexec.shape._trace import Trace


def what_is_left(store: Store, plan: Plan, *, call: BoundCall, origin: str) -> Callable[[], Graph]:
    """Puts in the masks of a missing graph, and returns what lowers and compiles it.

    The returned function runs no user code, except the code that lowering calls: see `_behind`.

    Args:
        store: Keeps the graph.
        plan: The plan of a call, which was made by `Planner.plan`.
        call: The call.
        origin: See `GraphRow`.

    Raises:
        UnsupportedPrimitiveError: A primitive cannot be made exact.
    """
    made = store.making.prepared(plan.key, lambda: outlined(plan, call))
    return _making(store, plan, call=call, begin=lambda: made, origin=origin)


def masks_and_rest(
    store: Store, plan: Plan, *, call: BoundCall, origin: str
) -> Callable[[], Graph]:
    """A function that masks, lowers and compiles a missing graph; see `masks_by_itself`.

    Args:
        store: Keeps the graph.
        plan: The plan of a call.
        call: The call, whose data are not kept.
        origin: See `GraphRow`.
    """
    outline = outlined(plan, call)
    begin = functools.partial(store.making.prepared, plan.key, lambda: outline)
    return _making(store, plan, call=call, begin=begin, origin=origin)


def _making(
    store: Store,
    plan: Plan,
    *,
    call: BoundCall,
    begin: Callable[[], Prepared | Found],
    origin: str,
) -> Callable[[], Graph]:
    names = list(call.call.functions())
    return lambda: store.making.graph(plan, begin, functions=names, origin=origin)


@WeakTable
def masks_by_itself(trace: Trace) -> bool:
    """Whether masking a trace runs no user code, so that another thread may do it."""
    return all(map(is_own, {eqn.primitive.name for eqn in _compat.equations(trace.jaxpr.jaxpr)}))
