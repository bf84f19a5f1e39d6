"""`UNKNOWN`, a size without a name, and the symbols that stand for it.

Each place of `UNKNOWN` in a spec becomes a symbol of its own, named after the argument and the axis
(`unknown_0_1`), so that users can refer to it. No two places get the same name: a single underscore
separates the entries of a path, and an underscore inside an entry is doubled, as in
`unknown_q__len_0`. How specs are written is not known here.
"""

import re
from collections.abc import Iterable
from typing import Any, Never

from shapeexec._code import code
from shapeexec._errors import SpecError

WORD = "UNKNOWN"
"""The key of `buckets` that stands for all unknown sizes."""

MARKS = ("?", WORD)
"""The spellings of an unknown size in a string."""

_OF_SHAPE = re.compile(r"unknown_(\d+)", re.ASCII)
_AT_PLACE = re.compile(r"unknown_(\w+)_((?:end)?\d+)", re.ASCII)
_ANY = re.compile(r"unknown(\d+|_\w+)", re.ASCII)
_BETWEEN = re.compile(r"(?<!_)_(?!_)")
_NOT_PLAIN = re.compile(r"\W|^_+|_+$|0(?=x)", re.ASCII)  # 0x begins an escaped character
_MENTIONS_UNKNOWN = re.compile(rf"[?]|\b{WORD}\b")


class Unknown:
    """The type of `UNKNOWN`, a dimension without a name.

    Each occurrence is a symbol of its own, so two unknown dimensions are never assumed to have the
    same size. In a spec the symbol is named after the argument and the axis (`unknown_0_1`), in a
    `Shape` after the axis (`unknown_1`); each `Dim(UNKNOWN)` is a new one (`unknown1`, `unknown2`,
    ...). As a key of `buckets` it means all of them. Strings write it `?` or `UNKNOWN`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The word for it in strings. The symbol's name follows from the place."""
        return WORD

    @property
    def is_static(self) -> bool:
        """Whether the dimension is an integer: always False."""
        return False

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols: none, until it has a place."""
        return frozenset()

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __reduce__(self) -> str:
        return "UNKNOWN"  # pickled and copied by name, so that there is only one

    def _refuse(self, *_: object) -> Never:
        raise _unknown_in_arithmetic()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse


def _unknown_in_arithmetic() -> SpecError:
    return SpecError(
        "UNKNOWN cannot be used in arithmetic.",
        why="each occurrence is a separate size, so UNKNOWN + 1 would mean nothing",
        fix='name the size: sx.Dim("n") + 1',
    )


@code.register
def _(value: Unknown) -> str | None:
    return f"sx.{value!r}"


UNKNOWN = Unknown()


def check_known(text: str) -> None:
    """Check that the text of a dim does not compute with an unknown size.

    Raises:
        SpecError: It does, or gives an unknown size a name.
    """
    if not _MENTIONS_UNKNOWN.search(text):
        return
    if is_named_unknown(text):
        raise SpecError(
            f'"{text}" is not a dimension.',
            path=text,
            why="an unknown size has no name",
            fix='`?` for a size without a name, or its name alone, such as "n"',
        )
    raise _unknown_in_arithmetic()


def is_named_unknown(text: str) -> bool:
    """Whether a string is `?` beside a name, such as `?b` or `b ?`, and no arithmetic."""
    return bool(_MENTIONS_UNKNOWN.search(text) and re.fullmatch(r"[\w\s?]+", text))


# The names of symbols


def of_axis(axis: int) -> str:
    """The symbol of an unknown dim of a shape that is not an argument yet: `unknown_1`."""
    return f"unknown_{axis}"


def at_place(place: str, axis: int) -> str:
    """The symbol of an unknown dim of an argument: `unknown_0_1`.

    Args:
        place: The argument's position or keyword, and the path to the array in it.
        axis: Counted from 0; after `...` from the end, as -1, which gives `unknown_0_end1`.
    """
    return f"unknown_{place}_{axis if axis >= 0 else f'end{-axis}'}"


def place_of(*path: object) -> str:
    """The part of a name that stands for an argument and the path to an array in it.

    Args:
        path: The argument's position or keyword, and entries of a JAX key path.
    """
    return "_".join(_encoded(str(entry(key))) for key in path)


def entry(key: Any) -> Any:
    """What an entry of a JAX key path names: a key, a number or an attribute."""
    return getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))


def _encoded(entry: str) -> str:
    """A path entry as letters, digits and doubled underscores, different for each entry."""
    if not entry:
        return "0xz"
    plain = _NOT_PLAIN.sub(lambda match: "".join(map(_code, match[0])), entry)
    return plain.replace("_", "__")


def _code(character: str) -> str:
    return f"0x{ord(character):x}z"


def placed(symbols: Iterable[str], place: str) -> dict[str, str]:
    """New names for the symbols of a shape that `of_axis` made, at an argument's place."""
    found = {symbol: _OF_SHAPE.fullmatch(symbol) for symbol in symbols}
    return {symbol: f"unknown_{place}_{match[1]}" for symbol, match in found.items() if match}


def inner(symbols: Iterable[str], path: str) -> dict[str, str]:
    """New names for the symbols that `at_place` made, for one array of a tree below the place."""
    found = {symbol: _AT_PLACE.fullmatch(symbol) for symbol in symbols}
    return {
        symbol: f"unknown_{match[1]}_{path}_{match[2]}" for symbol, match in found.items() if match
    }


def may_be_found(name: str) -> bool:
    """Whether a name may belong to an unknown size of any argument, or stands for all of them."""
    return name == WORD or _ANY.fullmatch(name) is not None


def names_for(symbol: str) -> tuple[str, ...]:
    """The keys of `buckets` that apply to a symbol, the most specific first.

    A spec of several arrays makes symbols such as `unknown_0_tokens_1`. The name of the spec's own
    place, `unknown_0_1`, applies to them, and `UNKNOWN` applies to all. Entries of a path match
    as a whole: `unknown_q_0` does not apply to `unknown_q__len_0`.
    """
    if not _ANY.fullmatch(symbol):
        return (symbol,)
    names = [symbol]
    match = _AT_PLACE.fullmatch(symbol)
    if match:
        path = _BETWEEN.split(match[1])
        shorter = ("_".join(path[:end]) for end in range(len(path) - 1, 0, -1))
        names += [f"unknown_{place}_{match[2]}" for place in shorter]
    return (*names, WORD)
