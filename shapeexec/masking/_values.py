"""Values of a graph, and what is noted of their masks while it is made."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec.masking._knowledge import Known


@dataclasses.dataclass(frozen=True)
class Value:
    """An array at capacity, and what is known of it.

    Attributes:
        array: The array.
        known: What is known of it.
        number: Tells values of one graph apart; filling a value does not change its number.
    """

    array: Any
    known: Known
    number: int = -1

    def of(self, array: Any) -> "Value":
        """What is known of this value, said of another array."""
        return dataclasses.replace(self, array=array)


def values_of(arrays: Iterable[Any], known: Iterable[Known]) -> list[Value]:
    """A value per array, with what is known of it."""
    return [Value(*pair) for pair in zip(arrays, known, strict=True)]


@dataclasses.dataclass(frozen=True)
class MaskNote:
    """One mask, or one that was not needed.

    Attributes:
        primitive: The primitive that needed it.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        what: The array and its padded axes, `f32[b,s] along s`.
        action: What was done, `filled with 0` or `none: padding is 0`.
        masked: Whether anything was added to the graph.
        why: What is known of the padding that was masked, `padding is unspecified`; empty where
            `action` says it all.
        at: The equation that needed it, behind those around it, the outermost first.
    """

    primitive: str
    where: str | None
    what: str
    action: str
    masked: bool
    why: str = ""
    at: tuple[Any, ...] = dataclasses.field(default=(), repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Wish:
    """A fill that all readers of a value have asked for.

    Attributes:
        value: What the padding is to be.
        axes: Along which axes.
        note: How the first reader told of it.
    """

    value: Any
    axes: frozenset[int]
    note: MaskNote

    def told_at_source(self, aval: Any, axes: Sequence[int]) -> MaskNote:
        """What to report where the value, an array like `aval`, is made and filled."""
        action = f"{self.note.action} where it is made"
        return dataclasses.replace(self.note, what=along(aval, axes), action=action)


class Fills:
    """The fills that one pass over a graph asks for, so that the next can fill at the source.

    A value that is filled where it is made is filled once, in the loop that makes it; filled where
    it is read, it costs a pass over memory for each reader that nobody came before.
    """

    def __init__(self) -> None:
        self._asked: dict[int, Wish | None] = {}
        self._unread: set[int] = set()
        self._bodies: dict[tuple[int, int], Fills] = {}

    def ask(self, number: int, wish: Wish) -> None:
        """Note what a value is to be filled with; readers that disagree get nothing."""
        before = self._asked.get(number, wish)
        agreed = before is not None and bool(before.value == wish.value)
        self._asked[number] = (
            dataclasses.replace(before, axes=before.axes | wish.axes)
            if before is not None and agreed
            else None
        )

    def at_source(self, number: int) -> Wish | None:
        """What all readers want of a value."""
        return self._asked.get(number)

    def at_source_now(self, number: int) -> None:
        """Note that this pass has filled a value where it is made."""
        self._unread.add(number)

    def is_first_reader(self, number: int) -> bool:
        """Whether a value was filled where it is made, and nobody has asked this of it before."""
        is_first = number in self._unread
        self._unread.discard(number)
        return is_first

    def body(self, key: tuple[int, int]) -> "Fills":
        """Those of the body of a loop or branch, by the equation's number and the body's."""
        return self._bodies.get(key) or Fills()

    def keep_body(self, key: tuple[int, int], fills: "Fills") -> None:
        """Keep what the body of a loop or branch asks for."""
        self._bodies[key] = fills


def along(aval: Any, axes: Sequence[int]) -> str:
    return f"{_compat.describe_aval(aval)} along {', '.join(str(aval.shape[a]) for a in axes)}"
