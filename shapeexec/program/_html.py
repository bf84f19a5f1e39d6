"""A program as an HTML table for notebooks; functions inside equations can be expanded.

`_text` writes one operation; `Program` hands over the content.
"""

import html as escapes
from collections.abc import Iterable, Sequence

from shapeexec.program._content import Body, Content, Equation, Variable
from shapeexec.program._text import mask_text, operation

_LEFT = 'style="text-align:left;vertical-align:top"'


def html(program: Content) -> str:
    """The program: its sizes, guards and host numbers, and a row per equation."""
    inputs = ", ".join(map(str, program.inputs + program.constants))
    returned = ", ".join(v.text for v in program.results)
    head = [f"<b>{_escaped(program.name)}</b>({_escaped(inputs)}) &rarr; {_escaped(returned)}"]
    head += [_escaped(", ".join(map(str, program.extents)))] if program.extents else []
    head += [_escaped(f"{symbol} is exact: {why}") for symbol, why in program.exact.items()]
    head += [f"guard {_escaped(str(fact))}" for fact in program.guards]
    head += [f"host {_escaped(str(number))}" for number in program.numbers]
    returns = _escaped(", ".join(v.name for v in program.results))
    table = _table(program.equations, is_open=program.is_expanded)
    return f"<div><p>{'<br>'.join(head)}</p>{table}<p>return {returns}</p></div>"


def _table(equations: Sequence[Equation], *, is_open: bool) -> str:
    head = "".join(
        f"<th {_LEFT}>{title}</th>" for title in ("results", "operation", "padding", "line")
    )
    rows = "".join(_row(eqn, is_open=is_open) for eqn in equations)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(eqn: Equation, *, is_open: bool) -> str:
    shown = f"{_escaped(operation(eqn))} {_names(eqn.operands)}"
    bodies = "".join(_body(body, is_open=is_open) for body in eqn.bodies)
    if bodies:
        state = " open" if is_open else ""
        shown = f"<details{state}><summary>{shown}</summary>{bodies}</details>"
    masks = "<br>".join(
        f"<b>{_escaped(mask_text(note))}</b>" if note.masked else _escaped(mask_text(note))
        for note in (eqn.masks if is_open else eqn.all_masks)
    )
    results = "<br>".join(_escaped(_sized(v)) for v in eqn.results)
    cells = (results, shown, masks or _escaped(eqn.rule or ""), _escaped(eqn.where or ""))
    return f"<tr>{''.join(f'<td {_LEFT}>{cell}</td>' for cell in cells)}</tr>"


def _body(body: Body, *, is_open: bool) -> str:
    inputs = _escaped(", ".join(map(str, body.inputs)))
    returns = _names(body.results)
    table = _table(body.equations, is_open=is_open)
    return f"<p>{_escaped(body.label)}({inputs})</p>{table}<p>return {returns}</p>"


def _sized(variable: Variable) -> str:
    if variable.lengths is None or variable.lengths == variable.capacities:
        return str(variable)
    return f"{variable} {_joined(variable.lengths)} of {_joined(variable.capacities or ())}"


def _joined(sizes: Iterable[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _names(variables: Sequence[Variable]) -> str:
    return _escaped(" ".join(v.name for v in variables))


def _escaped(text: str) -> str:
    return escapes.escape(text)
