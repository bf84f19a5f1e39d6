"""A program as a Mermaid flow chart.

`_rows` decides which equations share a node; any viewer of Mermaid draws it.
"""

from collections.abc import Iterable, Iterator, Mapping

from shapeexec.program._content import Content, Variable
from shapeexec.program._rows import Row, rows
from shapeexec.program._text import operations

_LABEL = 60
_QUOTES = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"})


def mermaid(program: Content) -> str:
    """A node per argument and per line, an arrow per value; masks are marked."""
    return "\n".join(_lines(program))


def _lines(program: Content) -> Iterator[str]:
    shown = rows(program)
    nodes = {id(eqn): f"n{i}" for i, row in enumerate(shown) for eqn in row.equations}
    makers: dict[str, str] = {}
    read = {v.name for row in shown for v in row.operands} | {v.name for v in program.results}
    yield "flowchart TD"
    for number, variable in enumerate((*program.inputs, *program.constants)):
        if variable.name in read:
            makers[variable.name] = f"in{number}"
            yield f'  in{number}(["{_escaped(variable.name)}"])'
    for row in shown:
        if row.equations:
            yield f'  {_node(row, nodes)}["{_label(row, is_expanded=program.is_expanded)}"]'
        makers |= {result.name: _node(row, nodes) for result in row.results}
    for row in shown:
        line = "-->" if row.equations else "-.->"
        yield from _arrows(makers, row.operands, node=_node(row, nodes), line=line)
    yield '  out(["return"])'
    yield from _arrows(makers, program.results, node="out", line="-->")
    expanded = program.is_expanded
    masked = [_node(row, nodes) for row in shown if _count(row, is_expanded=expanded)]
    if masked:
        yield "  classDef masked stroke-width:3px,stroke:#c33"
        yield f"  class {','.join(masked)} masked"


def _node(row: Row, nodes: Mapping[int, str]) -> str:
    """The node of a row; inputs and results of a function belong to the node of its equation."""
    return nodes[id(row.equations[0] if row.equations else row.owner)]


def _arrows(
    makers: Mapping[str, str], read: Iterable[Variable], *, node: str, line: str
) -> Iterator[str]:
    made = [v for v in read if not v.is_literal and v.name in makers]
    arrows = (f'  {makers[v.name]} {line}|"{_escaped(v.text)}"| {node}' for v in made)
    yield from dict.fromkeys(arrows)


def _label(row: Row, *, is_expanded: bool) -> str:
    count = _count(row, is_expanded=is_expanded)
    masks = f"<br>{count} mask{'s' if count > 1 else ''}" if count else ""
    return _escaped(operations(row, _LABEL)) + masks


def _count(row: Row, *, is_expanded: bool) -> int:
    return sum(note.masked for note in row.masks(is_expanded=is_expanded))


def _escaped(text: str) -> str:
    return text.translate(_QUOTES)
