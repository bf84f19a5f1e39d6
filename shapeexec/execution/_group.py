"""Examples of a map that share a graph, which is the masked function, vmapped over its sizes.

The arguments are stacked, and the results are cut or summed. `_map` decides which examples share a
graph.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from shapeexec import _compat
from shapeexec._errors import SpecError
from shapeexec.execution import _handle, _one_by_one, _transfer
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Outline
from shapeexec.execution._examples import Examples, Layout, Reduce
from shapeexec.execution._key import Key, graph_name, shown_sizes
from shapeexec.execution._one_by_one import one_by_one, sum_one_by_one
from shapeexec.execution._options import name_of
from shapeexec.execution._placement import Shape
from shapeexec.execution._plan import Plan
from shapeexec.execution._settings import Returns
from shapeexec.execution._sized import Sized
from shapeexec.execution._stats import Elements
from shapeexec.execution._traffic import Padding
from shapeexec.execution._usage import elements_of
from shapeexec.masking._extents import Extents, holds_dim
from shapeexec.masking._masked import Masked
from shapeexec.masking.folding import SumNote, notes_of_sums, sum_over_examples
from shapeexec.shape import _trees


@dataclasses.dataclass(frozen=True, eq=False)
class MapRecipe(Sized):
    """All that is needed to compile the graph of a group of examples.

    Attributes:
        is_mapped: For each leaf of the arguments whether it differs between examples.
        reduce: How the results are combined.
    """

    is_mapped: tuple[bool, ...]
    reduce: Reduce
    donate: tuple[int, ...] = ()  # a second group of examples may need the same memory
    trace_seconds: float = 0.0

    def body(self, sizes: Any, consts: Any, kwargs: Any, *args: Any) -> Any:  # noqa: PLR0917 - jax.jit donates by position
        """The function that XLA compiles.

        Args:
            sizes: i32[examples, words], and i32[]: the number of examples without fillers.
            consts: The arrays that the function closed over.
            kwargs: As for one example; mapped leaves have a first axis for the examples.
            *args: As for one example; mapped leaves have a first axis for the examples.
        """
        vectors, count = sizes
        leaves = _trees.leaves((args, kwargs))
        if self.calls_the_host:
            one = self._one(consts)
            results = one_by_one(one, vectors, leaves=leaves, is_mapped=self.is_mapped, count=count)
            return self._as_declared(sum_one_by_one(results) if self.reduce == "sum" else results)
        each = self._each(consts)
        if self.reduce == "sum":
            is_example = lax.iota(np.int32, len(vectors)) < count
            results = sum_over_examples(each, is_example, vectors, leaves)
        else:
            results = each(vectors, leaves)
        return self._as_declared(results)

    def sums(self, sizes: Any, args: Any, *, kwargs: Any) -> list[SumNote]:
        """How each leaf of the result is summed. Sizes and arguments may be structs."""
        vectors, _ = sizes
        if self.calls_the_host:
            why = "examples run one by one, because the function calls the host"
            avals = enumerate(self.out_avals)
            return [SumNote(i, _compat.describe_aval(aval), (), why) for i, aval in avals]
        each, leaves = self._each(self.trace.jaxpr.consts), _trees.leaves((args, kwargs))
        return notes_of_sums(each, vectors.shape[0], vectors, leaves)

    @property
    def result_tree(self) -> Any:
        """The structure of what the body returns: a list of leaves."""
        return _trees.structure([0] * len(self.out_avals))

    @property
    def calls_the_host(self) -> bool:
        """Whether the function calls the host: then examples run one by one."""
        return _one_by_one.calls_the_host(self.trace.jaxpr.jaxpr)

    def _one(self, consts: Any) -> Callable[[Any, Any], list[Any]]:
        """The masked function of one example: of its vector of sizes, and of its leaves."""
        masked = Masked(self.trace, self.ranges, self.poison, zero_padded=self.poison is None)

        def one(vector: Any, leaves: Any) -> list[Any]:
            by_symbol, hosted = self.numbers.read(vector)
            results = masked(by_symbol, consts, leaves=leaves, hosted=hosted)
            return [*itertools.compress(results, self.is_number)]

        return one

    def _each(self, consts: Any) -> Callable[[Any, Any], list[Any]]:
        """The masked function of all examples, which are along axis 0."""
        axes = [0 if mapped else None for mapped in self.is_mapped]
        return jax.vmap(self._one(consts), in_axes=(0, axes))

    def _as_declared(self, results: Sequence[Any]) -> list[Any]:
        return [
            _compat.with_weak_type(result, aval)
            for result, aval in zip(results, self.out_avals, strict=True)
        ]

    @property
    def is_number(self) -> list[bool]:
        """For each leaf of the result whether a graph can return it: float0 it cannot."""
        return [aval.dtype != jax.dtypes.float0 for aval in self.trace.jaxpr.out_avals]

    @property
    def out_avals(self) -> list[Any]:
        """The avals of the leaves that the graph returns for one example."""
        return [*itertools.compress(self.trace.jaxpr.out_avals, self.is_number)]


@dataclasses.dataclass(frozen=True)
class Group:
    """Examples that share a graph.

    Attributes:
        numbers: The numbers of the examples.
        plans: The plan of each example if it ran alone.
        capacity: How many examples the graph takes.
        key: The key of the graph.
        recipe: What compiles the graph.
        layout: Which leaves of the arguments differ between examples.
        requests: (symbol, size, bucket) of each symbol, for each example, without fillers.
    """

    numbers: tuple[int, ...]
    plans: tuple[Plan, ...]
    capacity: int
    key: Key
    recipe: MapRecipe
    layout: Layout
    requests: tuple[Padding, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        ranges = self.recipe.ranges
        requests = (
            tuple((s, size, ranges.get(s, (0, size))[1]) for s, size in plan.sizes.items())
            for plan in self.plans
        )
        object.__setattr__(self, "requests", tuple(requests))

    @property
    def first(self) -> Plan:
        """The plan of the first example."""
        return self.plans[0]

    @property
    def examples(self) -> int:
        """How many examples the graph takes."""
        return self.capacity

    @property
    def reduce(self) -> Reduce:
        """How the results are combined."""
        return self.recipe.reduce

    @property
    def _size_structs(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of `sizes`."""
        own = self.recipe.numbers.struct
        vectors = jax.ShapeDtypeStruct((self.capacity, *own.shape), own.dtype)
        return vectors, jax.ShapeDtypeStruct((), np.int32)

    def outline(self, call: BoundCall) -> Outline:
        """The outline of the graph; `call` is the call of the first example."""
        args, kwargs = self._structs(call)
        buckets = {symbol: bucket for symbol, (_, bucket) in self.recipe.ranges.items()}
        sizes = shown_sizes(buckets, {}, examples=self.capacity)
        name = graph_name(name_of(call.call.fn), sizes)
        config = call.base.config
        return Outline(self.recipe, self._size_structs, args, kwargs, name=name, config=config)

    @property
    def capacities(self) -> list[Shape]:
        """The capacities of each leaf of the arguments of one example."""
        recipe = self.recipe
        extents = Extents(recipe.ranges, {}, substitution=recipe.trace.substitution)
        return [extents.capacities(aval.shape) for aval in recipe.trace.jaxpr.in_avals]

    def _structs(self, call: BoundCall) -> tuple[Any, Any]:
        """The arguments of the graph without their data.

        Args:
            call: The call of the first example.
        """
        leaves, tree = _trees.flatten(call.structs(self.capacities))
        own = [
            _transfer.stacked_struct(leaf, self.capacity) if mapped else leaf
            for leaf, mapped in zip(leaves, self.layout.is_mapped, strict=True)
        ]
        return _trees.unflatten(tree, own)

    @property
    def of_one_example(self) -> Plan:
        """The first example's plan at the buckets of the graph."""
        plan, ranges = self.first, self.recipe.ranges
        recipe = dataclasses.replace(plan.recipe, ranges=ranges)
        buckets = {s: ranges[s][1] if s in ranges else n for s, n in plan.buckets.items()}
        return dataclasses.replace(
            plan, buckets=buckets, in_capacities=tuple(self.capacities), recipe=recipe
        )

    def sums(self, call: BoundCall) -> tuple[SumNote, ...]:
        """How each leaf of the result is summed; empty without `reduce`.

        Args:
            call: The call of the first example.
        """
        if self.reduce is None:
            return ()
        args, kwargs = self._structs(call)
        return tuple(self.recipe.sums(self._size_structs, args, kwargs=kwargs))

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """i32[capacity, words] and i32[]: see `MapRecipe.body`. Fillers are the first example."""
        vectors = [self.recipe.numbers.vector(plan.sizes) for plan in self.plans]
        vectors += [vectors[0]] * (self.capacity - len(vectors))
        return np.stack(vectors), np.asarray(len(self.plans), np.int32)

    @property
    def padding(self) -> tuple[tuple[str, int, int], ...]:
        """(symbol, sum of sizes, sum of buckets), fillers included."""
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
        first, sizes = self.first, [plan.sizes for plan in self.plans]
        return elements_of(
            first.base,
            capacities=self.capacities,
            all_sizes=sizes,
            rows=self.capacity,
        )

    @property
    def exact(self) -> tuple[str, ...]:
        """Symbols that run exactly because a primitive has no rule."""
        return self.plans[0].exact

    @property
    def warm_up(self) -> str:
        """How to have the graph compiled before it is needed."""
        return "by a map over as many examples"

    def __str__(self) -> str:
        dims = ", ".join(
            f"{symbol} up to {max(plan.sizes[symbol] for plan in self.plans)}"
            for symbol in self.recipe.symbols
        )
        return f"map over {len(self.plans)} examples in bucket {self.capacity}, {dims}"


def stacked(group: Group, examples: Examples) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a group's graph: those that differ between examples are stacked."""
    call = examples.one(group.numbers[0])
    args, kwargs = [*call.arrays], {**call.named}
    capacities = group.capacities
    for place, tree, start in group.layout.places:
        given = examples.of(place)
        leaves = [tree.flatten_up_to(given[number]) for number in group.numbers]
        rows = zip(zip(*leaves, strict=True), capacities[start:], strict=False)
        own = [
            _transfer.stack([_array(x, shape) for x in arrays], shape, count=group.capacity)
            for arrays, shape in rows
        ]
        whole = _trees.unflatten(tree, own)
        if isinstance(place, int):
            args[place] = whole
        else:
            kwargs[place] = whole
    return args, kwargs


def _array(x: Any, capacity: Shape) -> Any:
    return _handle.pad(x, capacity) if type(x) is _handle.Padded else x


def cut(group: Group, stacked: Sequence[Any], *, returns: Returns) -> list[Any]:
    """The result of each example.

    Args:
        group: The examples.
        stacked: Per leaf that is a number the results of all examples.
        returns: See `Settings`.
    """
    recipe = group.recipe
    results: list[Any] = []
    for row, plan in enumerate(group.plans):
        shapes = itertools.compress(plan.out_shapes, recipe.is_number)
        own: list[Any] = []
        for x, shape, aval in zip(stacked, shapes, recipe.out_avals, strict=True):
            if returns == "padded" and holds_dim(tuple(aval.shape)):
                whole_row = _transfer.cut_row(x, row, shape=x.shape[1:])
                own.append(_handle.Padded(whole_row, shape))
            else:
                own.append(_transfer.cut_row(x, row, shape=shape))
        results.append(whole(group, own, plan=plan))
    return results


def whole(group: Group, leaves: Sequence[Any], *, plan: Plan | None = None) -> Any:
    """The tree of a result, from the leaves that a graph returns; others are zeros of float0."""
    recipe, given = group.recipe, iter(leaves)
    shapes = (plan or group.plans[0]).out_shapes
    leaves = [
        next(given) if is_number else np.zeros(shape, jax.dtypes.float0)
        for is_number, shape in zip(recipe.is_number, shapes, strict=True)
    ]
    return _trees.unflatten(recipe.trace.out_tree, leaves)


def check_sum(groups: Sequence[Group]) -> None:
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
                path="reduce",
                fix=f"{fix}; or leave reduce= out",
            )
    trees = {group.recipe.trace.out_tree for group in groups}
    shapes = {plan.out_shapes for group in groups for plan in group.plans}
    if len(trees) > 1 or len(shapes) > 1:
        raise SpecError(
            'map: reduce="sum", but the results of examples differ in structure or shape.',
            path="reduce",
            got="; ".join(map(str, (*trees, *shapes)))[:200],
            fix="return one tree of one shape for all examples, or leave reduce= out",
        )
