"""`Exec.map`: a map that can be called, planned and explained, as an Exec itself can.

`_map` plans and runs it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._examples import Reduce, map_plainly
from shapeexec.execution._explain import program_of
from shapeexec.execution._group import Group
from shapeexec.execution._plain import count_plain
from shapeexec.execution._plan import notes_of
from shapeexec.execution._runner import Runner
from shapeexec.masking._values import MaskNote
from shapeexec.masking.folding import SumNote
from shapeexec.program import Program


@dataclasses.dataclass(frozen=True)
class MapPlan:
    """What a map runs: one graph per group of examples; `print` it.

    Attributes:
        groups: Examples that share a graph: their positions (`numbers`), the plan of each alone
            (`plans`), and how many the graph takes (`capacity`).
        is_compiled: Per group whether its graph was in the cache when the plan was made.

    Example:
        >>> examples = [np.ones(3, np.float32), np.ones(5, np.float32)]
        >>> plan = sx.Exec(jnp.sum, ("s",)).map.plan(examples)
        >>> [(group.numbers, group.capacity) for group in plan.groups], plan.waste
        ([((0, 1), 2)], 0.5)
    """

    groups: tuple[Group, ...]
    is_compiled: tuple[bool, ...]

    @property
    def waste(self) -> float:
        """The share of the elements of examples that is padding, fillers included, 0 to 1."""
        elements = [group.elements for group in self.groups]
        run = sum(one.bucket for one in elements)
        return 1 - sum(one.valid for one in elements) / run if run else 0.0

    def __str__(self) -> str:
        count = len(self.groups)
        lines = [f"{count} graph{'s' if count != 1 else ''}, {self.waste:.0%} padding:"]
        for group, is_compiled in zip(self.groups, self.is_compiled, strict=True):
            state = "compiled" if is_compiled else "not compiled yet"
            guards = "".join(f"; if {guard}" for guard in group.first.guards)
            lines.append(f"  examples {_ranges(group.numbers)}: {group}; {state}{guards}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class MapExplanation:
    """The masks of each graph of a map, and how it sums over examples; `print` it.

    Attributes:
        plan: The plan of the map.
        programs: Per group the equations that its graph runs for one example.
        sums: Per group one note for each leaf of the result; empty where nothing is summed.

    Example:
        >>> examples = [np.ones(3, np.float32), np.ones(5, np.float32)]
        >>> found = sx.Exec(jnp.max, ("s",)).map.explain(examples)
        >>> [note.primitive for note in found.masks]
        ['reduce_max']
    """

    plan: MapPlan
    programs: tuple[Program, ...]
    sums: tuple[tuple[SumNote, ...], ...]

    @property
    def masks(self) -> tuple[MaskNote, ...]:
        """Each mask of each graph, and each that was spared."""
        return tuple(note for program in self.programs for note in program.masks)

    def __str__(self) -> str:
        head, *groups = str(self.plan).splitlines()
        lines = [head]
        for group, program, sums in zip(groups, self.programs, self.sums, strict=True):
            added = sum(note.masked for note in program.masks)
            lines += [group, f"    {added} masks, {len(program.masks) - added} spared"]
            lines += [f"    {note}" for note in sums]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class MapMethod:
    """`run.map(...)`, and previews of it: `run.map.plan(...)`, `run.map.explain(...)`.

    Args:
        ex: The Exec; comparing and pickling use it.
        receiver: From the arguments of a call to its runner and the arguments without `self`.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> [float(x) for x in run.map([np.ones(3, np.float32), np.ones(5, np.float32)])]
        [3.0, 5.0]
    """

    ex: object
    receiver: Callable[[Sequence[Any]], tuple[Runner, Sequence[Any]]] = dataclasses.field(
        repr=False, compare=False
    )

    def __reduce__(self) -> Any:
        return getattr, (self.ex, "map")

    def __call__(self, *args: Any, reduce: Reduce = None, **kwargs: Any) -> Any:
        """Run the function on examples of different sizes: see `Exec.map`."""
        runner, own = self.receiver(args)
        examples = runner.examples((own, kwargs), reduce)
        if not _compat.trace_state_clean():
            count_plain(runner, examples.count)
            return map_plainly(examples, reduce)
        return runner.mappers.of(examples).run(examples, reduce) if examples.count else []

    def plan(self, *args: Any, reduce: Reduce = None, **kwargs: Any) -> MapPlan:
        """Show what a map of these arguments would run; it may trace, but compiles nothing.

        Arrays may be `jax.ShapeDtypeStruct`s.

        Args:
            *args: See `Exec.map`.
            reduce: See `Exec.map`.
            **kwargs: See `Exec.map`.

        Returns:
            The graphs, and which examples run in each.

        Raises:
            ShapeExecError: Whatever the map raises before it runs.
        """
        plan, _ = self._planned(args, kwargs, reduce=reduce)
        return plan

    def explain(self, *args: Any, reduce: Reduce = None, **kwargs: Any) -> MapExplanation:
        """Show each mask of the graphs of a map and why, and which sums over examples are folded.

        Arrays may be `jax.ShapeDtypeStruct`s.

        Args:
            *args: See `Exec.map`.
            reduce: See `Exec.map`.
            **kwargs: See `Exec.map`.

        Returns:
            The explanation of each graph.

        Raises:
            ShapeExecError: Whatever the map raises before it runs.
        """
        plan, bind = self._planned(args, kwargs, reduce=reduce)
        programs: list[Program] = []
        sums: list[tuple[SumNote, ...]] = []
        for group in plan.groups:
            call, one = bind(group.numbers[0]), group.of_one_example
            programs.append(program_of(one, call.call, notes=notes_of(one, call)))
            sums.append(group.sums(call))
        return MapExplanation(plan, tuple(programs), tuple(sums))

    def _planned(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, reduce: Reduce
    ) -> tuple[MapPlan, Callable[[int], BoundCall]]:
        """The plan, and the bound call of an example by its number."""
        runner, own = self.receiver(args)
        examples = runner.examples((own, kwargs), reduce).complete()
        mapper = runner.mappers.of(examples)
        groups = tuple(mapper.plan(examples, reduce))
        plan = MapPlan(groups, tuple(group.key in runner.store for group in groups))
        return plan, functools.partial(mapper.bind, examples)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as a string: `0-3, 7`."""
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in _runs(numbers))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
