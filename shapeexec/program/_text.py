"""A program as text, for a screen of 110 columns.

`_rows` decides which equations share a line.
"""

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from shapeexec.masking._values import MaskNote
from shapeexec.program._content import Content, Equation, Variable
from shapeexec.program._rows import Row, rows

WIDTH = 110
_LEFT = 65
_LEAST_ROOM = 16
_GAP = "   "
_MOST_LINES = 4
_HARD_SPACE = "\N{NO-BREAK SPACE}"
# Parameters that operands and results show already.
_SHOWN_ELSEWHERE = frozenset(
    """broadcast_dimensions dimension_numbers dtype name new_dtype new_sizes out_sharding
    preferred_element_type shape sharding sizes weak_type""".split()
)
_OF_LOOPS = frozenset(("length", "reverse"))
_LONGEST_PARAM = 32
_NOISE = ("False", "None", "Unspecified", "PyTreeDef")


def text(program: Content) -> str:
    """The program, in lines of at most 110 characters."""
    shown = rows(program)
    left = [_left(row) for row in shown]
    column = max((len(line) for line, row in zip(left, shown, strict=True) if row.where), default=0)
    lines, last = [*_head(program)], None
    for line, row in zip(left, shown, strict=True):
        where = None if row.where is None else _own(row.where)
        lines.append(_with_place(line, where, last=last, column=column))
        last = where if row.equations else last
        indent = "  " * row.depth
        for note in row.masks(is_expanded=program.is_expanded):
            lines += _wrapped(f"{indent}    {mask_text(note)}", f"{indent}          ")
    returned = ", ".join(v.name for v in program.results)
    return "\n".join([*lines, _cut(f"  return {returned}", WIDTH)])


def operation(eqn: Equation, width: int | None = None) -> str:
    """The primitive, the function that it calls, and its parameters: `cumsum[axis=1]`.

    Args:
        eqn: The equation.
        width: Parameters are left out if they do not fit; None: no limit.
    """
    params = " ".join(
        f"{key}={value}" for key, value in eqn.params if _is_shown(eqn, key, value=value)
    )
    name = f"{eqn.primitive} {eqn.name}" if eqn.name else eqn.primitive
    fits = width is None or len(name) + len(params) + 2 <= width
    return f"{name}[{params}]" if params and fits else name


def operations(row: Row, width: int) -> str:
    """The operations of a row, shortened to `width` characters if possible."""
    if len(row.equations) == 1:
        return operation(row.equations[0], width)
    names = [eqn.name or eqn.primitive for eqn in row.equations]
    for shown in range(len(names), 0, -1):
        rest = len(names) - shown
        listed = ", ".join(names[:shown]) + (f", +{rest}" if rest else "")
        if len(listed) <= width:
            return listed
    return f"{len(names)} operations"


def mask_text(note: MaskNote) -> str:
    """A mask, or one that was not needed (spared)."""
    kind = "mask" if note.masked else "spared"
    why = f", for {note.why}" if note.why else ""
    return f"{kind}  {note.primitive}: {note.what}: {note.action.removeprefix('none: ')}{why}"


def _is_shown(eqn: Equation, key: str, *, value: str) -> bool:
    if key in _SHOWN_ELSEWHERE or (eqn.bodies and key not in _OF_LOOPS):
        return False
    is_noise = any(word in value for word in _NOISE)
    return not is_noise and len(value) <= _LONGEST_PARAM


def _head(program: Content) -> Iterator[str]:
    returned = ", ".join(v.text for v in program.results)
    inputs = _joined(map(str, program.inputs))
    yield from _wrapped(f"{program.name}({inputs}) -> {returned}", "    ")
    if program.constants:
        yield from _wrapped(f"  closes over {_joined(map(str, program.constants))}", "    ")
    if program.extents:
        yield from _wrapped(f"  {_joined(map(str, program.extents))}", "  ")
    for symbol, why in program.exact.items():
        yield _cut(f"  {symbol} is exact: {why}", WIDTH)
    for fact in program.guards:
        yield _cut(f"  guard {fact}", WIDTH)
    for number in program.numbers:
        yield _cut(f"  host  {number}", WIDTH)


def _joined(texts: Iterable[str]) -> str:
    """Strings joined by commas, none of which is broken across lines."""
    return ", ".join(text.replace(" ", _HARD_SPACE) for text in texts)


def _wrapped(line: str, indent: str) -> list[str]:
    lines = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    lines = [line.replace(_HARD_SPACE, " ") for line in lines]
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 1], f"{indent}... ({len(lines) - _MOST_LINES + 1} lines more)"]


def _left(row: Row) -> str:
    """A row without its source line."""
    indent = "  " * (row.depth + 1)
    if row.begins is not None:
        return _cut(f"{indent}{row.begins.label}({', '.join(map(str, row.results))}):", WIDTH)
    if row.ends is not None:
        return _cut(f"{indent}return {', '.join(map(_name, row.operands))}", WIDTH)
    made = _made(row.results)
    read = " ".join(map(_name, row.operands))
    start = f"{indent}{made} = " if made else indent
    room = _LEFT - len(start) - len(read) - 1
    return _cut(f"{start}{operations(row, max(room, _LEAST_ROOM))} {read}".rstrip(), _LEFT)


def _with_place(left: str, where: str | None, *, last: str | None, column: int) -> str:
    if where is None:
        return left
    place = '"' if where == last else _place(where, WIDTH - column - len(_GAP))
    return f"{left:<{column}}{_GAP}{place}"


def _made(results: Sequence[Variable]) -> str:
    """Results with their types; neighbours of one type share it."""
    groups = itertools.groupby(results, key=lambda variable: variable.text)
    return ", ".join(f"{', '.join(map(_name, group))} {text}" for text, group in groups)


def _name(variable: Variable) -> str:
    return variable.name


def _own(where: str) -> str:
    """The user's own line, without the line of an installed package."""
    own, through, _ = where.partition("), through ")
    return f"{own})" if through else where


def _place(where: str, width: int) -> str:
    """A source line in `width` characters: the code is cut, the file and line number stay."""
    code, mark, place = where.rpartition("  (")
    if len(where) <= width or not mark:
        return _cut(where, width)
    room = width - len(place) - 3
    return f"{_cut(code, room)}  ({place}" if room > 3 else _cut(place.rstrip(")"), width)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 3, 0)]}..."[:width]
