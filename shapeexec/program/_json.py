"""A program as JSON.

The keys are the fields of the dataclasses in `_content`; nothing is computed here.
"""

import json
from collections.abc import Sequence
from typing import Any

from shapeexec.masking._values import MaskNote
from shapeexec.program._content import Body, Content, Equation, Variable


def text(program: Content, indent: int | None) -> str:
    """The whole program."""
    content = {
        "name": program.name,
        "symbols": list(program.symbols),
        "inputs": _variables(program.inputs),
        "constants": _variables(program.constants),
        "equations": [*map(_equation, program.equations)],
        "results": _variables(program.results),
        "guards": [{"text": fact.text, "where": fact.where} for fact in program.guards],
        "numbers": [
            {"text": number.text, "dtype": number.dtype, "value": number.value}
            for number in program.numbers
        ],
        "sizes": dict(program.sizes),
        "buckets": dict(program.buckets),
        "extents": [
            {"dim": extent.dim, "length": extent.length, "capacity": extent.capacity}
            for extent in program.extents
        ],
        "exact": dict(program.exact),
    }
    return json.dumps(content, indent=indent)


def _equation(eqn: Equation) -> dict[str, Any]:
    return {
        "primitive": eqn.primitive,
        "name": eqn.name,
        "params": dict(eqn.params),
        "operands": _variables(eqn.operands),
        "results": _variables(eqn.results),
        "where": eqn.where,
        "rule": eqn.rule,
        "masks": [*map(_mask, eqn.masks)],
        "bodies": [*map(_body, eqn.bodies)],
    }


def _body(body: Body) -> dict[str, Any]:
    return {
        "label": body.label,
        "inputs": _variables(body.inputs),
        "equations": [*map(_equation, body.equations)],
        "results": _variables(body.results),
    }


def _mask(note: MaskNote) -> dict[str, Any]:
    return {
        "primitive": note.primitive,
        "where": note.where,
        "what": note.what,
        "action": note.action,
        "masked": note.masked,
        "why": note.why,
    }


def _variables(variables: Sequence[Variable]) -> list[dict[str, Any]]:
    return [*map(_variable, variables)]


def _variable(variable: Variable) -> dict[str, Any]:
    shape = variable.shape
    return {
        "name": variable.name,
        "text": variable.text,
        "dtype": None if shape is None else str(shape.dtype),
        "dims": None
        if shape is None
        else [d if isinstance(d, int) else str(d) for d in shape.dims],
        "lengths": None if variable.lengths is None else list(variable.lengths),
        "capacities": None if variable.capacities is None else list(variable.capacities),
        "is_literal": variable.is_literal,
    }
