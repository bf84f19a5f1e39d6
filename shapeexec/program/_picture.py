"""A program as a flow chart in the language of Mermaid."""

from collections.abc import Iterator

from shapeexec.program._content import Content, Variable
from shapeexec.program._rows import Row, rows
from shapeexec.program._text import operations

_LABEL = 60
_QUOTES = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"})


def mermaid(program: Content) -> str:
    """A node per argument and per line, an arrow per value; masks are marked."""
    return "\n".join(_lines(program))


def _lines(program: Content) -> Iterator[str]:
    makers: dict[str, str] = {}
    shown = [row for row in rows(program) if row.body is None]
    read = {v.name for row in shown for v in row.operands} | {v.name for v in program.results}
    yield "flowchart TD"
    for number, variable in enumerate((*program.inputs, *program.constants)):
        if variable.name in read:
            makers[variable.name] = f"in{number}"
            yield f'  in{number}(["{_escaped(variable.name)}"])'
    for number, row in enumerate(shown):
        yield f'  n{number}["{_label(row, program.is_expanded)}"]'
        makers |= {result.name: f"n{number}" for result in row.results}
    for number, row in enumerate(shown):
        yield from dict.fromkeys(_arrows(makers, row.operands, f"n{number}"))
    yield '  out(["return"])'
    yield from dict.fromkeys(_arrows(makers, program.results, "out"))
    masked = [f"n{i}" for i, row in enumerate(shown) if _count(row, program.is_expanded)]
    if masked:
        yield "  classDef masked stroke-width:3px,stroke:#c33"
        yield f"  class {','.join(masked)} masked"


def _arrows(makers: dict[str, str], read: tuple[Variable, ...], node: str) -> Iterator[str]:
    for variable in read:
        maker = None if variable.is_literal else makers.get(variable.name)
        if maker is not None:
            yield f'  {maker} -->|"{_escaped(variable.text)}"| {node}'


def _label(row: Row, is_expanded: bool) -> str:
    count = _count(row, is_expanded)
    masks = f"<br>{count} mask{'s' if count > 1 else ''}" if count else ""
    return _escaped(operations(row, _LABEL)) + masks


def _count(row: Row, is_expanded: bool) -> int:
    found = (eqn.masks if is_expanded else eqn.all_masks for eqn in row.equations)
    return sum(note.masked for notes in found for note in notes)


def _escaped(text: str) -> str:
    return text.translate(_QUOTES)
