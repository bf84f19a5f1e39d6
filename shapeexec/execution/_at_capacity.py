"""Plans of calls whose function masks for itself: `Exec(masking=False)`.

The graph is the function as JAX traces it at the buckets: every size that it reads is a bucket, and
every branch on a size is decided there. No rule is applied. A second trace, at symbolic sizes,
gives the shapes of the unpadded results, to which results are cut.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shapeexec._errors import ConfigError, InconclusiveShapeError, exact_strategies
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Recipe
from shapeexec.execution._fillings import Chosen, fillings
from shapeexec.execution._key import Bucketed, Key, Kind
from shapeexec.execution._placement import Shape
from shapeexec.execution._plan import Plan
from shapeexec.execution._proofs import Proofs
from shapeexec.execution._settings import Settings
from shapeexec.execution._store import Store
from shapeexec.execution._traces import Traces
from shapeexec.shape import _dim
from shapeexec.shape._trace import Trace

_THE_ONLY = 0  # a trace at the buckets has no guards, so there is no other one


class AtCapacity:
    """Plans calls that run the function itself at the buckets.

    Args:
        settings: How calls map to graphs.
        store: Holds compiled graphs.
        traces: The traces of the function.
        proofs: Proofs of the traces that give the shapes of results.
        chosen: Looks up measured padding modes.
    """

    def __init__(
        self, settings: Settings, store: Store, *, traces: Traces, proofs: Proofs, chosen: Chosen
    ) -> None:
        self._settings, self._store, self._chosen = settings, store, chosen
        self._traces, self._proofs = traces, proofs

    def plan(
        self,
        call: BoundCall,
        *,
        ranges: Mapping[str, tuple[int, int]],
        exact: Mapping[str, int],
        reasons: Mapping[str, str],
    ) -> Plan:
        """The plan of a call.

        Args:
            call: The call.
            ranges: Per padded symbol the least size and the bucket.
            exact: Per exact symbol its size.
            reasons: Per symbol that is exact despite its strategy, the reason.

        Raises:
            ConfigError: An argument or a result is larger than at the buckets, or a number does not
                fit a dtype.
            Exception: Whatever the function raises at the sizes of the call or at the buckets.
        """
        buckets = {s: exact[s] if s in exact else ranges[s][1] for s in call.sizes}
        recipe = self._recipe(call, buckets, ranges=ranges)
        kind = Key(Kind(call.base, tuple(exact.items()), _THE_ONLY, call.placement))
        key = Key(Bucketed(kind, tuple(ranges.items())))
        shown = self._showing(call, exact, graph=(key.without_placement(), kind))
        plan = Plan(
            sizes=call.sizes,
            buckets=buckets,
            guards=(),
            in_capacities=_capacities(recipe.trace.jaxpr.in_avals),
            out_shapes=_shapes(
                [aval.shape for aval in shown.jaxpr.out_avals],
                shown.substitution.sizes(call.sizes),
            ),
            out_capacities=_capacities(recipe.trace.jaxpr.out_avals),
            exact=tuple(reasons),
            reasons=reasons,
            is_compiled=key in self._store,
            base=call.base,
            kind=kind,
            key=key,
            recipe=recipe,
            fillings=fillings(self._settings, call, chosen=self._chosen),
        )
        _check(plan, _shapes(call.dims, call.sizes), is_alike=shown.out_tree == recipe.result_tree)
        return plan

    def _recipe(
        self,
        call: BoundCall,
        buckets: Mapping[str, int],
        *,
        ranges: Mapping[str, tuple[int, int]],
    ) -> Recipe:
        """The function as JAX traces it at the buckets; without dims there is nothing to mask."""
        traced = self._traces.of(dataclasses.replace(call, sizes=buckets), buckets)
        return Recipe(
            trace=traced.trace,
            symbols=tuple(call.sizes),
            ranges=ranges,
            poison=None,
            donate=self._settings.donate_argnums,
            trace_seconds=traced.seconds,
        )

    def _showing(self, call: BoundCall, exact: Mapping[str, int], *, graph: Any) -> Trace:
        """The trace that gives the shapes of results: at symbolic sizes, or else at the true sizes.

        Args:
            call: The call.
            exact: Per exact symbol its size.
            graph: The key of the graph, and its kind.
        """
        try:
            shown = self._traces.of(call, exact).trace
        except InconclusiveShapeError:
            return self._traces.of(call, call.sizes).trace
        leaves = call.to_trace({})
        found = self._proofs.difference(graph, shown, fn=call.fn, leaves=leaves, sizes=call.sizes)
        return shown if found is None else self._traces.of(call, call.sizes).trace


def _shapes(leaves: Iterable[Any], sizes: Mapping[str, int]) -> tuple[Shape, ...]:
    return tuple(tuple(_dim.evaluate(dim, sizes) for dim in dims) for dims in leaves)


def _capacities(avals: Any) -> tuple[Shape, ...]:
    return tuple(tuple(aval.shape) for aval in avals)


def _check(plan: Plan, given: Sequence[Shape], *, is_alike: bool) -> None:
    """Check that the arrays of the call fit into arrays at the buckets.

    Args:
        plan: The plan of the call.
        given: The shapes of the arguments.
        is_alike: Whether results at the buckets are a tree of the same structure.

    Raises:
        ConfigError: An array does not fit, or the trees differ.
    """
    pairs = [("an argument", *pair) for pair in zip(given, plan.in_capacities, strict=True)]
    if is_alike:
        shapes = zip(plan.out_shapes, plan.out_capacities, strict=True)
        pairs += [("a result", *pair) for pair in shapes]
    misfits = [
        (what, f"{list(shape)} of the call, {list(capacity)} at the buckets")
        for what, shape, capacity in pairs
        if not _fits(shape, capacity)
    ]
    if not is_alike:
        misfits.append(("a result", "trees of other structures"))
    if not misfits:
        return
    what, got = misfits[0]
    at = ", ".join(f"{symbol}={size} in bucket {bucket}" for symbol, size, bucket in plan.padding)
    raise ConfigError(
        f"masking=False: {what} of the unpadded call does not fit into the one at the buckets.",
        option="masking",
        got=f"{got}; {at}",
        why="the function runs at the buckets: it reads them as sizes, and branches on them",
        fix=f"{exact_strategies(plan.sizes)} in buckets=, or masking=True",
    )


def _fits(shape: Shape, capacity: Shape) -> bool:
    return len(shape) == len(capacity) and all(
        have <= most for have, most in zip(shape, capacity, strict=True)
    )
