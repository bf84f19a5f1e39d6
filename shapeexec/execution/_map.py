"""One graph for many examples of different sizes: the masked function, vmapped over its sizes.

Examples that need another trace (other dtypes, another outcome of a guard, a size of 0) get a graph
of their own; all others share the one at the buckets of their greatest sizes.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec._errors import ConfigError, SpecError, UnsupportedPrimitiveError
from shapeexec.bucketing import checked_bucket
from shapeexec.execution import _monitor, _transfer
from shapeexec.execution._compile import Graph, Numbers
from shapeexec.execution._examples import Examples, Layout, Reduce, add
from shapeexec.execution._key import Key, Mapped
from shapeexec.execution._one_by_one import calls_the_host, one_by_one, sum_one_by_one
from shapeexec.execution._permission import SignatureChanged
from shapeexec.execution._plan import Plan
from shapeexec.execution._planner import Planner
from shapeexec.execution._ready import Outcome
from shapeexec.execution._split import Place, Result
from shapeexec.execution._stats import Elements
from shapeexec.execution._usage import elements_of
from shapeexec.masking._extents import Extents
from shapeexec.masking._hosted import host_operands
from shapeexec.masking._masked import Masked
from shapeexec.masking.folding import sum_over_examples
from shapeexec.shape._trace import Trace

_MOST_PLANS = 8192


class _PlanAgain(Exception):
    """What cannot be padded was met, and runs at exact sizes from now on."""


@dataclasses.dataclass(frozen=True, eq=False)
class MapRecipe:
    """All that is needed to compile the graph of a group of examples.

    Attributes:
        trace: The function of one example at symbolic sizes.
        symbols: The order of the symbols in an example's sizes.
        ranges: Per symbol the least size and the bucket.
        poison: See `Masked`.
        is_mapped: Per leaf of the arguments whether examples have their own.
        reduce: How the results are put together.
    """

    trace: Trace
    symbols: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    poison: str | None
    is_mapped: tuple[bool, ...]
    reduce: Reduce
    donate: tuple[int, ...] = ()  # a second group of examples may need the same memory
    trace_seconds: float = 0.0

    def body(self, sizes: Any, consts: Any, kwargs: Any, *args: Any) -> Any:
        """What is compiled.

        Args:
            sizes: i32[examples, words], and i32[]: how many examples are no fillers.
            consts: The arrays that the function closed over.
            kwargs: As for one example, with a first axis for the examples where they differ.
            *args: Likewise.
        """
        vectors, count = sizes
        masked = Masked(self.trace, self.ranges, self.poison, zero_padded=self.poison is None)

        def one(vector: Any, leaves: Any) -> list[Any]:
            by_symbol, hosted = self.numbers.read(vector)
            results = masked(by_symbol, consts, leaves, hosted=hosted)
            return [*itertools.compress(results, self.is_number)]

        if calls_the_host(self.trace.jaxpr.jaxpr):
            leaves = jax.tree.leaves((args, kwargs))
            results = one_by_one(one, vectors, leaves, self.is_mapped, count)
            return self._as_declared(sum_one_by_one(results) if self.reduce == "sum" else results)
        axes = [0 if mapped else None for mapped in self.is_mapped]
        each = jax.vmap(one, in_axes=(0, axes))
        leaves = jax.tree.leaves((args, kwargs))
        if self.reduce == "sum":
            is_example = jnp.arange(len(vectors)) < count
            results = sum_over_examples(each, is_example, vectors, leaves)
        else:
            results = each(vectors, leaves)
        return self._as_declared(results)

    def _as_declared(self, results: Sequence[Any]) -> list[Any]:
        return [
            _compat.with_weak_type(result, aval)
            for result, aval in zip(results, self.out_avals, strict=True)
        ]

    @functools.cached_property
    def numbers(self) -> Numbers:
        """What the graph is told of an example's sizes."""
        return Numbers(self.symbols, host_operands(self.trace, self.ranges))

    @property
    def is_number(self) -> list[bool]:
        """Per leaf of the result whether it is one that a graph can give: float0 is not."""
        return [aval.dtype != jax.dtypes.float0 for aval in self.trace.jaxpr.out_avals]

    @property
    def out_avals(self) -> list[Any]:
        """What the graph gives of one example."""
        return [*itertools.compress(self.trace.jaxpr.out_avals, self.is_number)]


@dataclasses.dataclass(frozen=True)
class Group:
    """Examples that share a graph.

    Attributes:
        numbers: Which examples they are.
        plans: The plan that each would have alone.
        capacity: How many the graph takes.
        key: What names the graph.
        recipe: What compiles it.
        layout: Where its examples have leaves of their own.
    """

    numbers: tuple[int, ...]
    plans: tuple[Plan, ...]
    capacity: int
    key: Key
    recipe: MapRecipe
    layout: Layout

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """i32[capacity, words] and i32[]: see `MapRecipe.body`. Fillers are the first example."""
        vectors = [self.recipe.numbers.vector(plan.sizes) for plan in self.plans]
        vectors += [vectors[0]] * (self.capacity - len(vectors))
        return np.stack(vectors), np.asarray(len(self.plans), np.int32)

    @property
    def padding(self) -> tuple[tuple[str, int, int], ...]:
        """Per symbol its sizes in all examples, and what was run for them."""
        return tuple(
            (
                symbol,
                sum(plan.sizes[symbol] for plan in self.plans),
                self.capacity * self.recipe.ranges.get(symbol, (0, size))[1],
            )
            for symbol, size in self.plans[0].sizes.items()
        )

    @property
    def elements(self) -> Elements:
        """How many elements of the examples' arguments are data, and how many run."""
        recipe, first = self.recipe, self.plans[0]
        extents = Extents(recipe.ranges, {}, recipe.trace.substitution)
        capacities = [extents.capacities(aval.shape) for aval in recipe.trace.jaxpr.in_avals]
        sizes = [plan.sizes for plan in self.plans]
        return elements_of(first.base, first.recipe, capacities, sizes, self.capacity)

    @property
    def exact(self) -> tuple[str, ...]:
        """Symbols that run exactly for want of a rule."""
        return self.plans[0].exact

    def __str__(self) -> str:
        dims = ", ".join(
            f"{symbol} up to {max(plan.sizes[symbol] for plan in self.plans)}"
            for symbol in self.recipe.symbols
        )
        return f"map over {len(self.plans)} examples in bucket {self.capacity}, {dims}"


class Mapper:
    """Runs the groups of a call, and remembers how examples of given shapes are planned.

    Args:
        planner: Plans single examples.
        specs: Tells the planner's specs from those of other mappers with the same cache.
        find: The graph of a key, if it is compiled.
        get: The graph of a group, compiled if it must be, from its stacked arguments.
        finish: Told of each run of a graph: the group, the graph, the outcome, and `"hits"` or
            `"misses"`.
        seen: Told where arguments hold more than arrays.
    """

    def __init__(  # noqa: PLR0917 - what an Exec does for it
        self,
        planner: Planner,
        specs: Hashable,
        find: Callable[[Hashable], Graph | None],
        get: Callable[[Group, Sequence[Any], Mapping[str, Any]], Graph],
        finish: Callable[[Group, Graph, Outcome, str], Any],
        seen: Callable[[frozenset[Place]], None],
    ) -> None:
        self._planner, self._specs, self._seen = planner, specs, seen
        self._find, self._get, self._finish = find, get, finish
        self._plans: dict[Hashable, Plan] = {}
        self._layouts: dict[Key, Layout] = {}

    def clear(self) -> None:
        """Forget all plans and traces."""
        self._plans.clear()
        self._layouts.clear()
        self._planner.clear()

    def run(self, examples: Examples, reduce: Reduce) -> Any:
        """A list of the results, or their sum."""
        numbers = range(examples.count)
        # If plans were for other shared arguments, or something is no array that was one.
        with contextlib.suppress(SignatureChanged, TypeError, ConfigError):
            signatures = examples.signatures()
            plans = [self._plan(examples, i, signatures[i], is_new=False) for i in numbers]
            groups = self._groups(examples, plans, reduce)
            graphs = [self._find(group.key) for group in groups]
            if all(graphs):
                return self._results(examples, groups, graphs, retrace=False)
        examples = examples.complete()
        self._seen(examples.at)
        signatures = examples.signatures()
        while True:
            plans = [self._plan(examples, i, signatures[i], is_new=True) for i in numbers]
            groups = self._groups(examples, plans, reduce)
            if reduce == "sum":
                _check_sum(groups)
            with contextlib.suppress(_PlanAgain):
                return self._results(examples, groups, [None] * len(groups), retrace=True)

    def _plan(self, examples: Examples, number: int, known_as: Hashable, *, is_new: bool) -> Plan:
        plan = None if is_new or known_as is None else self._plans.get(known_as)
        if plan is None:
            if not is_new and not examples.holds_only_arrays(number):
                raise SignatureChanged
            plan = self._planner.plan(examples.one(number))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
                self._layouts.clear()
            self._plans[known_as] = plan
        return plan

    def _groups(self, examples: Examples, plans: Sequence[Plan], reduce: Reduce) -> list[Group]:
        alike: dict[Key, list[int]] = {}
        for number, plan in enumerate(plans):
            alike.setdefault(plan.kind, []).append(number)
        return [self._group(examples, numbers, plans, reduce) for numbers in alike.values()]

    def _group(
        self, examples: Examples, numbers: Sequence[int], plans: Sequence[Plan], reduce: Reduce
    ) -> Group:
        members = tuple(plans[number] for number in numbers)
        first, kind = members[0].recipe, members[0].kind
        layout = self._layouts.get(kind)
        if layout is None:
            layout = self._layouts[kind] = examples.layout(numbers[0])
        capacity = checked_bucket(examples.settings.examples, len(members))
        # One lower bound for all: a graph per pair of least and greatest bucket would be many.
        ranges = {
            symbol: (1, max(plan.buckets[symbol] for plan in members)) for symbol in first.ranges
        }
        recipe = MapRecipe(
            first.trace,
            first.symbols,
            ranges,
            first.poison,
            layout.is_mapped,
            reduce,
            trace_seconds=first.trace_seconds,
        )
        key = Key(Mapped(self._specs, reduce, kind, capacity, tuple(ranges.items())))
        return Group(tuple(numbers), members, capacity, key, recipe, layout)

    def _results(
        self,
        examples: Examples,
        groups: Sequence[Group],
        graphs: Sequence[Graph | None],
        *,
        retrace: bool,
    ) -> Any:
        outcomes = []
        for group, found in zip(groups, graphs, strict=True):
            graph, outcome, is_hit = self._run(examples, group, found, retrace=retrace)
            outcomes.append((group, graph, outcome, "hits" if is_hit else "misses"))
        told = [self._finish(*outcome) for outcome in outcomes]
        if groups[0].recipe.reduce == "sum":
            _check_sum(groups)
            return _whole_result(functools.reduce(add, told))
        results = {
            number: result
            for group, rows in zip(groups, told, strict=True)
            for number, result in zip(group.numbers, map(_whole_result, rows), strict=True)
        }
        return [results[number] for number in range(examples.count)]

    def _run(
        self, examples: Examples, group: Group, graph: Graph | None, *, retrace: bool
    ) -> tuple[Graph, Outcome, bool]:
        totals = _monitor.totals.own
        start = totals.count
        args, kwargs = _stacked(group, examples)
        copied = totals.count - start
        is_hit = graph is not None or self._find(group.key) is not None
        if graph is None:
            graph = self._compiled(examples, group, args, kwargs)
        count, seconds = totals.count, totals.seconds
        run = graph.retraced if retrace else graph
        leaves = run(group.sizes, args, kwargs)
        ran, seconds = totals.count - count, totals.seconds - seconds
        result = _whole(group, leaves) if group.recipe.reduce == "sum" else _cut(group, leaves)
        copied += totals.count - count - ran
        return graph, Outcome(result, copied, ran, seconds), is_hit

    def _compiled(
        self, examples: Examples, group: Group, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Graph:
        try:
            return self._get(group, args, kwargs)
        except UnsupportedPrimitiveError as error:
            planner, first = self._planner, group.plans[0]
            call = examples.one(group.numbers[0])
            if planner.make_fewest_exact(first, error, call) and (
                # Alone, at sizes from its bucket's least one up, an example may be masked all the
                # same.
                planner.plan(call).kind != first.kind
                or planner.make_exact(first.base, error.symbols or first.sizes, error)
            ):
                raise _PlanAgain from error
            raise


def _stacked(group: Group, examples: Examples) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a group's graph: those that examples have of their own are stacked."""
    call = examples.one(group.numbers[0])
    args, kwargs = [*call.arrays], {**call.named}
    avals, extents = (
        group.recipe.trace.jaxpr.in_avals,
        Extents(group.recipe.ranges, {}, group.recipe.trace.substitution),
    )
    for place, tree, start in group.layout.places:
        given = examples.of(place)
        leaves = [tree.flatten_up_to(given[number]) for number in group.numbers]
        stacked = [
            _transfer.stack(rows, extents.capacities(aval.shape), group.capacity)
            for rows, aval in zip(zip(*leaves, strict=True), avals[start:], strict=False)
        ]
        whole = jax.tree.unflatten(tree, stacked)
        if isinstance(place, int):
            args[place] = whole
        else:
            kwargs[place] = whole
    return args, kwargs


def _cut(group: Group, stacked: Sequence[Any]) -> list[Any]:
    """The result of each example."""
    recipe = group.recipe
    results = []
    for row, plan in enumerate(group.plans):
        shapes = itertools.compress(plan.out_shapes, recipe.is_number)
        cut = [_transfer.cut_row(x, row, shape) for x, shape in zip(stacked, shapes, strict=True)]
        results.append(_whole(group, cut, plan))
    return results


def _whole(group: Group, leaves: Sequence[Any], plan: Plan | None = None) -> Any:
    """The tree of a result, from those of its leaves that a graph can give."""
    recipe, given = group.recipe, iter(leaves)
    shapes = (plan or group.plans[0]).out_shapes
    whole = [
        next(given) if is_number else np.zeros(shape, jax.dtypes.float0)
        for is_number, shape in zip(recipe.is_number, shapes, strict=True)
    ]
    return jax.tree.unflatten(recipe.trace.out_tree, whole)


def _whole_result(result: Any) -> Any:
    return result.whole(None) if isinstance(result, Result) else result


def _check_sum(groups: Sequence[Group]) -> None:
    """Check that the results of all examples can be added.

    Raises:
        SpecError: They cannot.
    """
    for aval in (aval for group in groups for aval in group.recipe.out_avals):
        is_ragged = any(not isinstance(dim, int) for dim in aval.shape)
        if is_ragged or aval.dtype == np.bool_ or _compat.is_extended(aval.dtype):
            why = "as large as its example" if is_ragged else "which is not a number"
            fix = "return a sum over the axis" if is_ragged else "convert it, as by x.astype(int)"
            raise SpecError(
                f'map: reduce="sum", but a result is {_compat.describe_aval(aval)}, {why}.',
                fix=f"{fix}; or leave reduce= out",
            )
    trees = {group.recipe.trace.out_tree for group in groups}
    shapes = {plan.out_shapes for group in groups for plan in group.plans}
    if len(trees) > 1 or len(shapes) > 1:
        raise SpecError(
            'map: reduce="sum", but the results of examples differ in structure or shape.',
            got="; ".join(map(str, (*trees, *shapes)))[:200],
            fix="return one tree of one shape for all examples, or leave reduce= out",
        )
