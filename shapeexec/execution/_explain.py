"""What a graph does about padding, told to a person."""

import dataclasses

from shapeexec.execution._plan import Plan
from shapeexec.masking._values import MaskNote


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Each mask of a graph and why it is there; `print` it.

    Attributes:
        plan: What the call runs: sizes, buckets and guards.
        masks: Each mask, and each that was spared because what is known of the padding suffices.
    """

    plan: Plan
    masks: tuple[MaskNote, ...]

    @property
    def added(self) -> tuple[MaskNote, ...]:
        """The masks that the graph has."""
        return tuple(note for note in self.masks if note.masked)

    @property
    def spared(self) -> tuple[MaskNote, ...]:
        """The masks that were not needed."""
        return tuple(note for note in self.masks if not note.masked)

    def __str__(self) -> str:
        lines = [str(self.plan)]
        if self.plan.guards:
            lines.append("guards (another outcome gets its own graph):")
            lines += [f"  {guard.described()}" for guard in self.plan.guards]
        lines += [f"{symbol} is exact: {why}" for symbol, why in self.plan.reasons.items()]
        lines.append(f"{len(self.added)} masks, {len(self.spared)} spared:")
        for note in self.masks:
            where = f"   <- {note.where}" if note.where else ""
            lines.append(f"  {note.primitive}: {note.what}: {note.action}{where}")
        return "\n".join(lines)
