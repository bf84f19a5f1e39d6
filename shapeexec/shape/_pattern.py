"""The text of one array's spec: `"b, s, 512"`, `"b, 2*s + 1"`, `"b, _"`, `"b, ?"`, `"b, ..."`.

The syntax is that of `jax.export.symbolic_shape`, with `...` at any place, Python's operators, and
`?` for a size that has no name.
Arguments are not known here.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any

from shapeexec._errors import SpecError
from shapeexec.shape import _unknown
from shapeexec.shape._dim import (
    UNKNOWN,
    Dim,
    DimLike,
    Unknown,
    check_known,
    is_named_unknown,
    is_unknown,
    negative,
    substitute,
)

# An int (that size and no other), a symbolic Dim, UNKNOWN (a symbol of its own once it has a place;
# `?` in text) or None (static, any size; `_` in text).
PatternDim = int | Dim | Unknown | None

_FIX = 'one entry an axis, parted by commas: "b, s, 512", "b, 2*s + 1", "b, _" or "b, ..."'


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is said of one array's axes.

    Attributes:
        before: The axes in front of `...`, or all of them. None: static, whatever the size.
        has_ellipsis: Whether any number of further axes, all static, may follow `before`.
        after: The axes behind `...`.
        dtype: The dtype that the array must have; None: any.
    """

    before: tuple[PatternDim, ...]
    has_ellipsis: bool = False
    after: tuple[PatternDim, ...] = ()
    dtype: Any = None  # a NumPy dtype or one of JAX's extended dtypes, which share no type

    @property
    def least_rank(self) -> int:
        """The number of axes beside `...`."""
        return len(self.before) + len(self.after)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of all axes."""
        dims = (dim for dim in self.before + self.after if isinstance(dim, Dim))
        return frozenset().union(*(dim.symbols for dim in dims))

    @property
    def unknown_axes(self) -> tuple[int, ...]:
        """The axes of `UNKNOWN`; those behind `...` count from the end, as -1."""
        dims = [*enumerate(self.before)]
        dims += [(axis - len(self.after), dim) for axis, dim in enumerate(self.after)]
        return tuple(axis for axis, dim in dims if isinstance(dim, Unknown))

    def accepts_rank(self, rank: int) -> bool:
        """Return whether an array of this rank can fit."""
        return rank >= self.least_rank if self.has_ellipsis else rank == self.least_rank

    def resolve(self, shape: tuple[int | Dim, ...]) -> tuple[int | Dim, ...]:
        """Return the dims of an array of this shape: `_`, `?` and `...` become its own.

        Args:
            shape: Of a rank that `accepts_rank` accepts.
        """
        end = len(shape) - len(self.after)
        middle = (None,) * (end - len(self.before))
        dims = self.before + middle + self.after
        return tuple(
            own if dim is None or isinstance(dim, Unknown) else dim
            for dim, own in zip(dims, shape, strict=True)
        )

    def named(self, place: str) -> "Spec":
        """Return the spec with a symbol in the place of each `UNKNOWN`; see `_unknown.at_place`."""
        count = len(self.after)
        before = enumerate(self.before)
        after = ((axis - count, dim) for axis, dim in enumerate(self.after))
        return dataclasses.replace(
            self,
            before=tuple(_named(dim, place, axis) for axis, dim in before),
            after=tuple(_named(dim, place, axis) for axis, dim in after),
        )

    def renamed(self, names: Mapping[str, str]) -> "Spec":
        """Return the spec with some symbols called otherwise."""
        return dataclasses.replace(
            self,
            before=tuple(_renamed(dim, names) for dim in self.before),
            after=tuple(_renamed(dim, names) for dim in self.after),
        )

    def __str__(self) -> str:
        entries = [_text(dim) for dim in self.before]
        entries += ["..."] * self.has_ellipsis
        entries += [_text(dim) for dim in self.after]
        return ", ".join(entries)


def _text(dim: PatternDim) -> str:
    if dim is None:
        return "_"
    return "?" if isinstance(dim, Unknown) else str(dim)


def _named(dim: PatternDim, place: str, axis: int) -> PatternDim:
    return Dim(_unknown.at_place(place, axis)) if isinstance(dim, Unknown) else dim


def _renamed(dim: PatternDim, names: Mapping[str, str]) -> PatternDim:
    if not isinstance(dim, Dim):
        return dim
    replaced = substitute(dim, {old: new for old, new in names.items() if old in dim.symbols})
    return replaced if isinstance(replaced, Dim) else dim


@functools.lru_cache(maxsize=4096)
def parse_spec(text: str) -> Spec:
    """Read the spec of one array.

    Args:
        text: Dims parted by commas, in parentheses or not; `_` for an axis that is static, `...`
            for any number of them; `?` or `UNKNOWN` for a size that changes and has no name; empty
            for a scalar.

    Raises:
        SpecError: An entry is not a dimension, or there are two `...`.
    """
    entries = _split(_bare(text))
    dims: list[DimLike | Unknown | EllipsisType | None] = []
    for axis, entry in enumerate(entries):
        if entry in ("...", "_"):
            dims.append(... if entry == "..." else None)
            continue
        if is_unknown(entry):
            dims.append(UNKNOWN)
            continue
        if not is_named_unknown(entry):
            check_known(entry)
        try:
            dims.append(Dim(entry))
        except SpecError as error:
            raise SpecError(
                f'axis {axis} of the spec "{text}" is not a dimension: "{entry}".',
                got=error.where,
                why=error.why,
                fix=_parted(text) or (error.fix if is_named_unknown(entry) else _FIX),
            ) from None
    return make_spec(dims, text)


def _parted(text: str) -> str | None:
    """The way to write `b s`, and `(b s) d` of merged axes; None: blanks are not what is amiss."""
    merged = re.sub(r"\(([\w\s]+)\)", lambda found: "_".join(found[1].split()), _bare(text))
    parted = re.sub(r"(?<=[\w?])\s+(?=[\w?])", ", ", merged)
    if parted == _bare(text):
        return None
    try:
        parse_spec(parted)
    except SpecError:
        return None
    return f'part the axes by commas: "{parted}"'


def make_spec(
    dims: Iterable[DimLike | Unknown | EllipsisType | None], text: str | None = None
) -> Spec:
    """Return the spec that a sequence of dims says.

    Args:
        dims: Integers, texts, `Dim`s, `UNKNOWN`; `"_"` or None for a static axis of any size; `...`
            once at most.
        text: How the caller wrote it, for errors.

    Raises:
        SpecError: One is not a dimension, one is negative, or there are two `...`.
    """
    parts: list[list[PatternDim]] = [[]]
    for dim in dims:
        if dim is ... or dim == "...":
            parts.append([])
        elif is_unknown(dim):
            parts[-1].append(UNKNOWN)
        elif dim is None or dim == "_":
            parts[-1].append(None)
        else:
            parts[-1].append(_pattern_dim(Dim(dim), text))
    if len(parts) > 2:
        raise SpecError(
            f'the spec "{text or dims}" has more than one `...`.',
            why="which axes each of them stands for would be a guess",
            fix='keep one `...`, and write `_` for single static axes: "_, s, ..."',
        )
    before, after = parts[0], parts[1] if len(parts) == 2 else []
    return Spec(tuple(before), len(parts) == 2, tuple(after))


def _pattern_dim(dim: Dim, text: str | None) -> PatternDim:
    if not dim.is_static:
        return dim
    if dim.value < 0:
        raise negative(
            f'the spec "{text or dim}" has the negative size {dim}.',
            "write `_` for an axis that is static, whatever its size",
        )
    return dim.value


def _bare(text: str) -> str:
    text = text.strip()
    while text.startswith("(") and _closing(text) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _closing(text: str) -> int:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position
    return -1


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside of parentheses."""
    entries, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    entries = [entry.strip() for entry in entries]
    return entries[:-1] if entries[-1] == "" else entries  # a scalar, or a comma at the end
