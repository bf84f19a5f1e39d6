"""Plans of calls whose function masks for itself: `Exec(masking=False)`.

The graph is the function as JAX traces it at the buckets: every size that it reads is a bucket, and
every branch on a size is decided there. No rule is applied. Beside it stands a trace that tells
which shapes the unpadded call returns, to which results are cut.
"""

import dataclasses
from collections.abc import Mapping
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
        traces: Those of the function.
        proofs: Of the traces that tell shapes.
        chosen: Looks up padding modes that were measured.
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
            ranges: Per symbol that is padded the least size and the bucket.
            exact: Per other symbol its size.
            reasons: Why symbols are exact in spite of their strategies.

        Raises:
            ConfigError: An argument or a result is larger than at the buckets, or a number does not
                fit a dtype.
            Exception: Whatever the function raises at the sizes of the call or at the buckets.
        """
        buckets = {s: exact[s] if s in exact else ranges[s][1] for s in call.sizes}
        whole = dataclasses.replace(call, sizes=buckets)
        traced = self._traces.of(whole, buckets)
        kind = Key(Kind(call.base, tuple(exact.items()), _THE_ONLY, call.placement))
        key = Key(Bucketed(kind, tuple(ranges.items())))
        in_capacities = _capacities(traced.trace.jaxpr.in_avals)
        shown = self._showing(call, exact, graph=(key.without_placement(), kind))
        own_sizes = shown.substitution.sizes(call.sizes)
        out_shapes = tuple(_shape(aval.shape, own_sizes) for aval in shown.jaxpr.out_avals)
        out_capacities = _capacities(traced.trace.jaxpr.out_avals)
        own = tuple(_shape(dims, call.sizes) for dims in call.dims)
        _check(call, buckets, what="an argument", shapes=own, capacities=in_capacities)
        is_alike = shown.out_tree == traced.trace.out_tree
        _check(
            call,
            buckets,
            what="a result",
            shapes=out_shapes,
            capacities=out_capacities if is_alike else (),
        )
        return Plan(
            sizes=call.sizes,
            buckets=buckets,
            guards=(),
            in_capacities=in_capacities,
            out_shapes=out_shapes,
            out_capacities=out_capacities,
            exact=tuple(reasons),
            reasons=reasons,
            is_compiled=key in self._store,
            base=call.base,
            kind=kind,
            key=key,
            recipe=Recipe(
                trace=traced.trace,
                symbols=tuple(call.sizes),
                ranges=ranges,
                poison=None,
                donate=self._settings.donate_argnums,
                trace_seconds=traced.seconds,
            ),
            fillings=fillings(self._settings, call, chosen=self._chosen),
        )

    def _showing(self, call: BoundCall, exact: Mapping[str, int], *, graph: Any) -> Trace:
        """The trace that tells the shapes of results: at symbolic sizes, or else at the true ones.

        Args:
            call: The call.
            exact: The symbols that are not padded, with their sizes.
            graph: The key of the graph, and the kind.
        """
        try:
            shown = self._traces.of(call, exact).trace
        except InconclusiveShapeError:
            return self._traces.of(call, call.sizes).trace
        leaves = call.to_trace({})
        found = self._proofs.difference(graph, shown, fn=call.fn, leaves=leaves, sizes=call.sizes)
        return shown if found is None else self._traces.of(call, call.sizes).trace


def _shape(dims: Any, sizes: Mapping[str, int]) -> Shape:
    return tuple(_dim.evaluate(dim, sizes) for dim in dims)


def _capacities(avals: Any) -> tuple[Shape, ...]:
    return tuple(tuple(aval.shape) for aval in avals)


def _check(
    call: BoundCall,
    buckets: Mapping[str, int],
    *,
    what: str,
    shapes: tuple[Shape, ...],
    capacities: tuple[Shape, ...],
) -> None:
    """Check that arrays at the buckets hold those of the call.

    Raises:
        ConfigError: One does not.
    """
    pairs = list(zip(shapes, capacities, strict=False))
    misfit = next((pair for pair in pairs if not _fits(*pair)), None)
    if misfit is None and len(shapes) == len(capacities):
        return
    sizes = ", ".join(f"{s}={size} in bucket {buckets[s]}" for s, size in call.sizes.items())
    got = "other results" if misfit is None else f"{list(misfit[0])}, and {list(misfit[1])} there"
    raise ConfigError(
        f"masking=False: {what} of the unpadded call is no corner of the one at the buckets.",
        option="masking",
        got=f"{got}; {sizes}",
        why="the function runs at the buckets, where each size and each branch on one is theirs",
        fix=f"{exact_strategies(call.sizes)} in buckets=, or masking=True",
    )


def _fits(shape: Shape, capacity: Shape) -> bool:
    return len(shape) == len(capacity) and all(
        have <= most for have, most in zip(shape, capacity, strict=True)
    )
