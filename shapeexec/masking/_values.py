"""Values at capacity, and the report on masks of one pass over a jaxpr.

Which masks are needed is decided by rules, through `RuleContext`.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec.masking._knowledge import Known
from shapeexec.shape import _dim


@dataclasses.dataclass(frozen=True)
class Value:
    """An array at capacity, and the facts about its padding.

    Attributes:
        array: The array.
        known: The facts.
        number: Identifies the value within one pass; a filled value keeps its number.
    """

    array: Any
    known: Known
    number: int = -1

    def of(self, array: Any) -> "Value":
        """Another array with the facts and the number of this one."""
        return dataclasses.replace(self, array=array)


def values_of(arrays: Iterable[Any], known: Iterable[Known]) -> list[Value]:
    """A value per array, with the facts about it."""
    return [Value(*pair) for pair in zip(arrays, known, strict=True)]


@dataclasses.dataclass(frozen=True)
class MaskNote:
    """One mask that is in the graph, or one that was not needed.

    Attributes:
        primitive: The primitive that reads across the padding.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        what: The array and its padded axes, `f32[b,s] along s`.
        action: `filled with 0`, or `none: padding is 0`.
        masked: Whether an operation was added to the graph.
        why: The fact about the masked padding, `padding is unspecified`; empty where `action`
            holds it.
        at: The equations that enclose the reading equation, the outermost first, and itself.
    """

    primitive: str
    where: str | None
    what: str
    action: str
    masked: bool
    why: str = ""
    at: tuple[Any, ...] = dataclasses.field(default=(), repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class FillRequest:
    """The fill of a value that all of its readers agree on.

    Attributes:
        value: The scalar that overwrites the padding.
        axes: The axes along which it does.
        note: The note of the first reader.
    """

    value: Any
    axes: frozenset[int]
    note: MaskNote

    def noted_at_source(self, aval: Any, axes: Sequence[int]) -> MaskNote:
        """The note where the value, an array like `aval`, is computed and filled."""
        action = f"{self.note.action} where it is made"
        return dataclasses.replace(self.note, what=along(aval, axes), action=action)


class Report:
    """What one pass over a jaxpr finds: its masks, and the fills that its readers request.

    The next pass over the same jaxpr, which numbers values alike, fills them at the source: in the
    loop that computes the value, and not in one more pass over memory for each of its readers.

    Attributes:
        notes: Each mask that is added or spared, in the order of the equations.
    """

    def __init__(self) -> None:
        self.notes: list[MaskNote] = []
        self._requests: dict[int, FillRequest | None] = {}
        self._unread: set[int] = set()
        self._bodies: dict[tuple[int, int], Report] = {}

    def request(self, number: int, fill: FillRequest) -> None:
        """Add a reader's request to fill a value; readers that disagree get nothing."""
        before = self._requests.get(number, fill)
        agreed = before is not None and bool(before.value == fill.value)
        self._requests[number] = (
            dataclasses.replace(before, axes=before.axes | fill.axes)
            if before is not None and agreed
            else None
        )

    def requested(self, number: int) -> FillRequest | None:
        """The fill of a value that all of its readers request."""
        return self._requests.get(number)

    def note(self, note: MaskNote) -> None:
        """Add a note."""
        self.notes.append(note)

    def note_at_source(self, number: int, note: MaskNote) -> None:
        """Note that a value is filled where it is computed."""
        self._unread.add(number)
        self.note(note)

    def note_spared(self, number: int, note: MaskNote) -> None:
        """Note a mask of a value that is not needed.

        The first reader of a value that was filled at the source is the reason for that fill, so
        its mask is not spared.
        """
        if number in self._unread:
            self._unread.discard(number)
        else:
            self.note(note)

    def body(self, key: tuple[int, int]) -> "Report":
        """The report on the body of a loop or branch, by the equation's number and the body's."""
        return self._bodies.get(key) or Report()

    def add_body(self, key: tuple[int, int], body: "Report", *, operands: Sequence[int]) -> None:
        """Add the report on the body of a loop or branch.

        Args:
            key: The equation's number, and the body's within it.
            body: The report; it numbers the body's operands from 0.
            operands: The numbers of the operands outside; -1: computed for the body.
        """
        self.notes.extend(body.notes)
        self._bodies[key] = body
        for inside, outside in enumerate(operands):
            fill = body.requested(inside)
            if outside >= 0 and fill is not None:
                self.request(outside, fill)


def along(aval: Any, axes: Sequence[int]) -> str:
    """The text of an array and some of its axes, `f32[b,s] along s`."""
    symbols = ", ".join(_dim.dim_text(aval.shape[axis]) for axis in axes)
    return f"{_compat.describe_aval(aval)} along {symbols}"
