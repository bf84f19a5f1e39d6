"""Maps: which examples share a graph, and running these graphs.

Examples that need another trace (other dtypes, another outcome of a guard, a size of 0), or are on
other devices, get a separate graph. All others share one graph, at the buckets of their largest
sizes. `_group` defines what such a graph computes.
"""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec._errors import ConfigError, UnsupportedPrimitiveError
from shapeexec.bucketing import checked_bucket
from shapeexec.execution import _handle
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph
from shapeexec.execution._examples import Examples, Reduce, add
from shapeexec.execution._group import Group, MapRecipe, check_sum, cut, stacked, whole
from shapeexec.execution._key import Key, Mapped
from shapeexec.execution._memory import raise_if_out_of_memory
from shapeexec.execution._monitor import Span
from shapeexec.execution._permission import SignatureChanged
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner
from shapeexec.execution._result import Result
from shapeexec.execution._settings import Settings
from shapeexec.execution._store import Store
from shapeexec.execution.saving._saved import is_given_up


class Mapper:
    """Plans and runs maps whose examples have the same specs.

    Args:
        planner: Plans single examples.
        specs: Identifies the planner's specs among the mappers with the same store.
        store: Keeps graphs, and how examples of given shapes are planned.
    """

    def __init__(self, planner: Planner, specs: Hashable, *, store: Store) -> None:
        self._planner, self._specs, self._store = planner, specs, store

    def clear(self) -> None:
        """Forget all traces."""
        self._planner.clear()

    def bind(self, examples: Examples, number: int) -> BoundCall:
        """The bound call of one example."""
        return self._planner.bind(examples.one(number))

    def run(self, examples: Examples, reduce: Reduce) -> Any:
        """A list of the results, or their sum."""
        began = time.perf_counter()
        # Raised if plans were for other shared arguments, or an argument is no longer an array.
        with contextlib.suppress(SignatureChanged, ConfigError):
            try:
                groups = self._groups(examples, self._known_plans(examples), reduce=reduce)
                graphs = [self._store.find(group.key) for group in groups]
                if all(graphs):
                    return self._results(
                        examples, groups, graphs=graphs, retrace=False, began=began
                    )
            except TypeError:
                if all(examples.one(number).has_dtypes() for number in range(examples.count)):
                    raise  # a graph itself has failed
        examples = examples.complete()
        self._store.note_places(examples.at)
        groups = self.plan(examples, reduce)
        graphs = [None] * len(groups)
        return self._results(examples, groups, graphs=graphs, retrace=True, began=began)

    def plan(self, examples: Examples, reduce: Reduce) -> list[Group]:
        """Plan groups of examples that share a graph, and put in the masks of missing graphs.

        Raises:
            SpecError: The results cannot be added.
            ShapeExecError: Whatever a call with one of the examples raises.
        """
        if not examples.count:
            return []
        calls = [self.bind(examples, number) for number in range(examples.count)]
        signatures = examples.signatures()
        while True:
            plans = [self._planner.draft(call) for call in calls]
            for signature, plan in zip(signatures, plans, strict=True):
                self._store.plans[self._specs, signature] = plan
            groups = self._groups(examples, plans, reduce=reduce)
            if reduce == "sum":
                check_sum(groups)
            if all(self._is_prepared(group, calls[group.numbers[0]]) for group in groups):
                return groups

    def _is_prepared(self, group: Group, call: BoundCall) -> bool:
        """Whether the group's graph can be made; if not, other symbols are exact from now on."""
        if group.key in self._store:
            return True
        try:
            self._store.making.prepared(group.key, lambda: group.outline(call))
        except UnsupportedPrimitiveError as error:
            planner, first = self._planner, group.first
            if planner.exact.make_fewest(first, error, call=call) and (
                # A graph of one call, whose sizes start at the bucket's least size, may need no
                # mask where the graph of the group does: then the planner makes nothing exact.
                planner.draft(call).kind != first.kind or planner.exact.make_all(first, error)
            ):
                return False
            raise
        return True

    def _known_plans(self, examples: Examples) -> list[Plan]:
        plans: list[Plan] = []
        for number, signature in enumerate(examples.signatures()):
            plan = self._store.plans.get((self._specs, signature)) if signature else None
            if plan is None:
                if not examples.holds_only_arrays(number):
                    raise SignatureChanged
                plan = self._planner.draft(self.bind(examples, number))
                self._store.plans[self._specs, signature] = plan
            plans.append(plan)
        return plans

    def _groups(self, examples: Examples, plans: Sequence[Plan], *, reduce: Reduce) -> list[Group]:
        alike: dict[Key, list[int]] = {}
        for number, plan in enumerate(plans):
            alike.setdefault(plan.kind, []).append(number)
        return [
            self._group(
                examples, numbers, plans=[plans[number] for number in numbers], reduce=reduce
            )
            for numbers in alike.values()
        ]

    def _group(
        self, examples: Examples, numbers: Sequence[int], *, plans: Sequence[Plan], reduce: Reduce
    ) -> Group:
        first, kind = plans[0].recipe, plans[0].kind
        layout = self._store.layouts.get((self._specs, kind))
        if layout is None:
            layout = examples.layout(numbers[0])
            self._store.layouts[self._specs, kind] = layout
        capacity = checked_bucket(examples.settings.examples, len(plans))
        # The least size is 1 for all: a graph per pair of least and largest size would be too many.
        ranges = {
            symbol: (1, max(plan.buckets[symbol] for plan in plans)) for symbol in first.ranges
        }
        recipe = MapRecipe(
            first.trace,
            first.symbols,
            ranges,
            poison=first.poison,
            is_mapped=layout.is_mapped,
            reduce=reduce,
            trace_seconds=first.trace_seconds,
        )
        key = Key(Mapped(self._specs, reduce, kind, capacity, tuple(ranges.items())))
        return Group(tuple(numbers), tuple(plans), capacity, key=key, recipe=recipe, layout=layout)

    def _results(
        self,
        examples: Examples,
        groups: Sequence[Group],
        *,
        graphs: Sequence[Graph | None],
        retrace: bool,
        began: float,
    ) -> Any:
        runs = [
            self._run(examples, group, graph=graph, retrace=retrace)
            for group, graph in zip(groups, graphs, strict=True)
        ]
        for group, (_, graph, span, is_hit) in zip(groups, runs, strict=True):
            self._store.record_run(group, graph, span=span, is_hit=is_hit, began=began)
        if groups[0].reduce == "sum":
            check_sum(groups)
            return _complete(functools.reduce(add, [result for result, *_ in runs]))
        results = {
            number: result
            for group, (rows, *_) in zip(groups, runs, strict=True)
            for number, result in zip(group.numbers, map(_complete, rows), strict=True)
        }
        return [results[number] for number in range(examples.count)]

    def _run(
        self, examples: Examples, group: Group, *, graph: Graph | None, retrace: bool
    ) -> tuple[Any, Graph, Span, bool]:
        """A group's results, its graph, the compilations, and whether it was a hit."""
        is_hit = graph is not None or group.key in self._store
        span = Span()
        args, kwargs = stacked(group, examples)
        if retrace:  # a shared argument may be a handle, which JAX has refused on the fast path
            args, kwargs = _handle.cut_all(args, kwargs)
        span.copied()
        if graph is None:
            call = self.bind(examples, group.numbers[0])
            making = self._store.making
            begin = functools.partial(making.prepared, group.key, lambda: group.outline(call))
            graph = making.graph(group, begin)
            span.restart()  # `graph` has counted its own compilation
        run = graph.retraced if retrace else graph
        try:
            leaves = run(group.sizes, args, kwargs=kwargs)
        except _compat.JaxRuntimeError as error:
            raise_if_out_of_memory(error, graph.row, sizes=group.first.sizes)
            if not is_given_up(graph, error, drop=self._store.drop):
                raise
            return self._run(examples, group, graph=None, retrace=True)
        span.ran()
        returns = examples.settings.returns
        if returns == "host":
            leaves = _handle.on_host(leaves)
        is_sum = group.reduce == "sum"
        result = whole(group, leaves) if is_sum else cut(group, leaves, returns=returns)
        span.copied()
        return result, graph, span, is_hit


class Mappers:
    """The mappers of an Exec: one for its specs, and one for each set of default specs.

    Args:
        settings: The settings of the Exec; those of a method would keep its instance alive.
        planner: Plans calls of the Exec.
        store: The store of the Exec.
    """

    def __init__(self, settings: Settings, planner: Planner, *, store: Store) -> None:
        self._settings, self._planner, self._store = settings, planner, store
        self._lock = threading.Lock()
        self._own = Mapper(planner, None, store=store)
        self._others: dict[Hashable, Mapper] = {}

    def of(self, examples: Examples) -> Mapper:
        """The mapper for the specs of examples."""
        if not examples.has_default_specs:
            return self._own
        settings = examples.settings
        named = tuple((settings.kwarg_shapes or {}).items())
        specs = (settings.in_shapes, named, examples.positions, examples.names)
        with self._lock:
            if specs not in self._others:
                own = dataclasses.replace(settings, fn=self._settings.fn)
                self._others[specs] = Mapper(Planner(own, self._store), specs, store=self._store)
            return self._others[specs]

    def clear(self) -> None:
        """Forget all traces, except the traces of the Exec's planner."""
        with self._lock:
            for mapper in self._others.values():
                mapper.clear()


def _complete(result: Any) -> Any:
    return result.whole(None) if isinstance(result, Result) else result
