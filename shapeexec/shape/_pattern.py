"""The text of one array's spec: `"b, s, 512"`, `"b, 2*s + 1"`, `"b, _"`, `"b, ?"`, `"b, ..."`.

The syntax is that of `jax.export.symbolic_shape`, with `...` anywhere, Python's operators, and `?`
for a size without a name. Arguments are not known here.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any

from shapeexec._errors import SpecError
from shapeexec.shape import _unknown
from shapeexec.shape._dim import Dim, DimLike, is_unknown, negative, substitute
from shapeexec.shape._unknown import UNKNOWN, Unknown, check_known, is_named_unknown

# An int (exactly that size), a symbolic Dim, UNKNOWN (`?` in text; becomes a symbol of its own once
# its place is known) or None (`_` in text; static, any size).
PatternDim = int | Dim | Unknown | None

_FIX = 'one entry per axis, separated by commas: "b, s, 512", "b, 2*s + 1", "b, _" or "b, ..."'


@dataclasses.dataclass(frozen=True)
class Spec:
    """The spec of one array.

    Attributes:
        before: The axes before `...`, or all axes. None: static, any size.
        has_ellipsis: Whether any number of further static axes may follow `before`.
        after: The axes after `...`.
        dtype: The dtype that the array must have; None: any.

    Example:
        >>> spec = parse_spec("b, ..., 2*s")
        >>> spec.least_rank, sorted(spec.symbols)
        (2, ['b', 's'])
    """

    before: tuple[PatternDim, ...]
    has_ellipsis: bool = False
    after: tuple[PatternDim, ...] = ()
    dtype: Any = None  # a NumPy dtype or one of JAX's extended dtypes, which share no type

    @property
    def least_rank(self) -> int:
        """The number of axes outside of `...`."""
        return len(self.before) + len(self.after)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of all axes."""
        dims = (dim for dim in self.before + self.after if isinstance(dim, Dim))
        return frozenset[str]().union(*(dim.symbols for dim in dims))

    @property
    def unknown_axes(self) -> tuple[int, ...]:
        """The axes of `UNKNOWN`; those after `...` count from the end, as -1."""
        dims = [*enumerate(self.before)]
        dims += [(axis - len(self.after), dim) for axis, dim in enumerate(self.after)]
        return tuple(axis for axis, dim in dims if isinstance(dim, Unknown))

    def accepts_rank(self, rank: int) -> bool:
        """Return whether an array of this rank fits.

        Args:
            rank: The number of axes.

        Returns:
            Whether it has the rank of the spec, or with `...` at least that.
        """
        return rank >= self.least_rank if self.has_ellipsis else rank == self.least_rank

    def resolve(self, shape: tuple[int | Dim, ...]) -> tuple[int | Dim, ...]:
        """Return the dims of an array of this shape: its own sizes replace `_`, `?` and `...`.

        Args:
            shape: A shape whose rank `accepts_rank` accepts.

        Returns:
            One dim per axis: an int or a `Dim`.
        """
        end = len(shape) - len(self.after)
        middle = (None,) * (end - len(self.before))
        dims = self.before + middle + self.after
        return tuple(
            own if dim is None or isinstance(dim, Unknown) else dim
            for dim, own in zip(dims, shape, strict=True)
        )

    def named(self, place: str) -> "Spec":
        """Return the spec with a symbol in place of each `UNKNOWN`; see `_unknown.at_place`."""
        count = len(self.after)
        before = enumerate(self.before)
        after = ((axis - count, dim) for axis, dim in enumerate(self.after))
        return dataclasses.replace(
            self,
            before=tuple(_named(dim, place, axis=axis) for axis, dim in before),
            after=tuple(_named(dim, place, axis=axis) for axis, dim in after),
        )

    def renamed(self, names: Mapping[str, str]) -> "Spec":
        """Return the spec with some symbols renamed.

        Args:
            names: The new name of each symbol that gets one.

        Returns:
            A new spec.
        """
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


def _named(dim: PatternDim, place: str, *, axis: int) -> PatternDim:
    return Dim(_unknown.at_place(place, axis)) if isinstance(dim, Unknown) else dim


def _renamed(dim: PatternDim, names: Mapping[str, str]) -> PatternDim:
    if not isinstance(dim, Dim):
        return dim
    replaced = substitute(dim, {old: new for old, new in names.items() if old in dim.symbols})
    return replaced if isinstance(replaced, Dim) else dim


@functools.lru_cache(maxsize=4096)
def parse_spec(text: str) -> Spec:
    """Parse the spec of one array.

    Args:
        text: Dims separated by commas, in parentheses or not; `_` for an axis that is static, `...`
            for any number of them; `?` or `UNKNOWN` for a size that changes and has no name; empty
            for a scalar.

    Raises:
        SpecError: An entry is not a dimension, or there are two `...`.

    Example:
        >>> sorted(parse_spec("b, 2*s + 1").symbols)
        ['b', 's']
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
                path=text,
                got=error.where,
                why=error.why,
                fix=_separated(text) or (error.fix if is_named_unknown(entry) else _FIX),
            ) from None
    return make_spec(dims, text)


def _separated(text: str) -> str | None:
    """The fix for `b s`, and `(b s) d` of merged axes; None: missing commas are not the cause."""
    merged = re.sub(r"\(([\w\s]+)\)", lambda found: "_".join(found[1].split()), _bare(text))
    separated = re.sub(r"(?<=[\w?])\s+(?=[\w?])", ", ", merged)
    if separated == _bare(text):
        return None
    try:
        parse_spec(separated)
    except SpecError:
        return None
    return f'separate the axes by commas: "{separated}"'


def make_spec(
    dims: Iterable[DimLike | Unknown | EllipsisType | None], text: str | None = None
) -> Spec:
    """Make a spec of a sequence of dims.

    Args:
        dims: Integers, strings, `Dim`s, `UNKNOWN`; `"_"` or None for a static axis of any size;
            `...` once at most.
        text: The caller's spelling, for errors.

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
            path=text,
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
            "write `_` for a static axis of any size",
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
    """Split at the commas outside of parentheses."""
    entries, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += character
    entries = [entry.strip() for entry in entries]
    return entries[:-1] if entries[-1] == "" else entries  # a scalar, or a comma at the end
