"""Numbers a whole program. `_scope` numbers its equations, `_bodies` its loops and branches."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from shapeexec.checking._bodies import BODIES
from shapeexec.checking._equalities import EQUALITIES
from shapeexec.checking._scope import Origins, Scope
from shapeexec.checking._values import Table, kind_of


@dataclasses.dataclass(frozen=True)
class Numbered:
    """One of the two programs, numbered.

    Attributes:
        results: The values of its results.
        effects: Its side effects, in order.
        origins: The first equation of this program that has the value as a result, and the calls
            around it, the innermost first.
    """

    results: tuple[int, ...]
    effects: tuple[int, ...]
    origins: Origins


def number_program(
    table: Table, closed: Any, *, equalities: Mapping[str, Any] = EQUALITIES
) -> Numbered:
    """Number the values of a closed jaxpr without symbols; its calls are opened."""
    scope = Scope(table, equalities, BODIES)
    inputs = [table.given("input", i, kind=kind_of(aval)) for i, aval in enumerate(closed.in_avals)]
    results = scope.run(closed, inputs)
    return Numbered(tuple(results), tuple(scope.effects), scope.origins)
