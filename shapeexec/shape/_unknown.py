"""Names of unknown sizes: each place of `UNKNOWN` in a spec is a symbol of its own.

A name tells the argument and the axis, so that people can name it, too: `unknown_0_1`. No two
places have one name: one underscore parts the entries of a place, and those inside of an entry are
doubled, as in `unknown_q__len_0`. How specs are written is not known here.
"""

import re
from collections.abc import Iterable

WORD = "UNKNOWN"
"""What stands for all unknown sizes where strategies are given by symbol."""

MARKS = ("?", WORD)
"""How texts write an unknown size."""

_OF_SHAPE = re.compile(r"unknown_(\d+)", re.ASCII)
_AT_PLACE = re.compile(r"unknown_(\w+)_((?:end)?\d+)", re.ASCII)
_ANY = re.compile(r"unknown(\d+|_\w+)", re.ASCII)
_BETWEEN = re.compile(r"(?<!_)_(?!_)")
_NOT_PLAIN = re.compile(r"\W|^_+|_+$|0(?=x)", re.ASCII)  # the last is how a code begins


def of_axis(axis: int) -> str:
    """The symbol of an unknown dim of a shape that is no argument yet: `unknown_1`."""
    return f"unknown_{axis}"


def at_place(place: str, axis: int) -> str:
    """The symbol of an unknown dim of an argument: `unknown_0_1`.

    Args:
        place: Of the argument: its position or its keyword, and the way to the array in it.
        axis: Counted from 0; behind `...` from the end, as -1, which gives `unknown_0_end1`.
    """
    return f"unknown_{place}_{axis if axis >= 0 else f'end{-axis}'}"


def place_of(*path: object) -> str:
    """The part of a name that tells an argument and the way to an array in it.

    Args:
        path: The argument's position or keyword, and entries of a path of JAX's.
    """
    entries = [getattr(e, "key", getattr(e, "idx", getattr(e, "name", e))) for e in path]
    return "_".join(_encoded(str(entry)) for entry in entries)


def _encoded(entry: str) -> str:
    """An entry of a path in letters, digits and pairs of underscores between them, as no other."""
    if not entry:
        return "0xz"
    plain = _NOT_PLAIN.sub(lambda match: "".join(map(_code, match[0])), entry)
    return plain.replace("_", "__")


def _code(character: str) -> str:
    return f"0x{ord(character):x}z"


def placed(symbols: Iterable[str], place: str) -> dict[str, str]:
    """The new names of those symbols of a shape that `of_axis` made, for an argument's place."""
    found = {symbol: _OF_SHAPE.fullmatch(symbol) for symbol in symbols}
    return {symbol: f"unknown_{place}_{match[1]}" for symbol, match in found.items() if match}


def inner(symbols: Iterable[str], path: str) -> dict[str, str]:
    """The new names of those symbols that `at_place` made, for an array further in."""
    found = {symbol: _AT_PLACE.fullmatch(symbol) for symbol in symbols}
    return {
        symbol: f"unknown_{match[1]}_{path}_{match[2]}" for symbol, match in found.items() if match
    }


def names_for(symbol: str) -> tuple[str, ...]:
    """Under which names a symbol's strategy may be given, the most special first.

    A spec of several arrays makes symbols such as `unknown_0_tokens_1`, which the name of the
    spec's own place, `unknown_0_1`, covers; and `UNKNOWN` covers all. So an entry of a place is
    covered whole or not at all: `unknown_q_0` does not cover `unknown_q__len_0`.
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
