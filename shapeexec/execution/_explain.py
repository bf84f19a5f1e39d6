"""The masks of a graph, as a person reads them.

The rules in `masking` put them in.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from shapeexec._errors import beside
from shapeexec.execution._fillings import Filling
from shapeexec.execution._plan import Plan
from shapeexec.execution._split import FUNCTION, Call
from shapeexec.masking._values import MaskNote
from shapeexec.program import Program
from shapeexec.program._names import argument_names, function_name
from shapeexec.program._read import Moment, read


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Each mask of a graph and its reason, a view of `program`; `print` it.

    Attributes:
        plan: The plan of the call: sizes, buckets and guards.
        program: The equations of the graph, with their masks.
        ladders: Per symbol the reason for the last change of an `Adaptive` ladder.

    Example:
        >>> found = sx.Exec(jnp.max, ("s",)).explain(np.ones(5, np.float32))
        >>> [(note.primitive, note.masked) for note in found.masks]
        [('reduce_max', True)]
    """

    plan: Plan
    program: Program
    ladders: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def masks(self) -> tuple[MaskNote, ...]:
        """Each mask, and each that was spared because the padding is known to be harmless."""
        return self.program.masks

    @property
    def added(self) -> tuple[MaskNote, ...]:
        """The masks that the graph has."""
        return tuple(note for note in self.masks if note.masked)

    @property
    def spared(self) -> tuple[MaskNote, ...]:
        """The masks that were not needed."""
        return tuple(note for note in self.masks if not note.masked)

    @property
    def _fillings(self) -> list[Filling]:
        rows = zip(self.plan.fillings, self.plan.base.is_ragged, strict=True)
        return [filling for filling, is_ragged in rows if is_ragged]

    def __str__(self) -> str:
        lines = [str(self.plan)]
        if self.plan.is_compiled and self.plan.runs_in is not None:
            lines.append(f"its graph was made in {self.plan.runs_in.seconds}")
        lines += [f"ladder of {symbol}: {why}" for symbol, why in self.ladders.items()]
        if self.program.guards:
            lines.append("guards (another outcome gets its own graph):")
            lines += [f"  {guard}" for guard in self.program.guards]
        lines += [f"{symbol} is exact: {why}" for symbol, why in self.program.exact.items()]
        if self.plan.fillings:
            lines.append("masking=False: the function masks for itself, and reads the buckets")
            lines += [f"  padding of {filling}" for filling in self._fillings]
        count = len(self.added)
        lines.append(f"{count} mask{'s' * (count != 1)}, {len(self.spared)} spared:")
        for note in self.masks:
            lines.append(beside(f"  {note.primitive}: {note.what}: {note.action}", note.where))
        return "\n".join(lines)


def program_of(plan: Plan, call: Call, *, notes: Sequence[MaskNote]) -> Program:
    """The equations of the graph of a call.

    Args:
        plan: The plan of the call.
        call: The call.
        notes: Its masks, and those that were spared, with the equations that need them.
    """
    args, kwargs = call.trees()
    moment = Moment(
        sizes=plan.sizes,
        buckets=plan.buckets,
        ranges=plan.recipe.ranges,
        operands=plan.recipe.numbers.operands,
        exact=plan.reasons,
        notes=notes,
    )
    name = function_name(call.fn)
    names = argument_names(call.fn, args, kwargs=kwargs)
    names = [text.replace(f"{FUNCTION}[0]", name) for text in names]
    return read(plan.recipe.trace, name, arguments=names, moment=moment)
