"""The lines of a printed program: one equation each, or several of one source line.

They are data: `_text` and `_picture` write them.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from shapeexec.masking._values import MaskNote
from shapeexec.program._content import Body, Content, Equation, Variable

_MOST_LINES = 44  # a screen, without the head


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a program.

    Attributes:
        equations: One equation, or neighbours of one source line.
        operands: The variables that they read from other rows.
        results: The variables that other rows read from them.
        depth: The number of functions around it.
        begins: The function that begins here, inside `owner`. Then there are no equations, and its
            parameters are the results.
        ends: The function that ends here, inside `owner`; its results are the operands.
        owner: The equation that holds the function.
    """

    equations: tuple[Equation, ...]
    operands: tuple[Variable, ...]
    results: tuple[Variable, ...]
    depth: int = 0
    begins: Body | None = None
    ends: Body | None = None
    owner: Equation | None = None

    @property
    def where(self) -> str | None:
        """The user's line."""
        return self.equations[0].where if self.equations else None

    def masks(self, *, is_expanded: bool) -> list[MaskNote]:
        """The masks of its equations, and of the functions inside if these have no rows."""
        found = (eqn.masks if is_expanded else eqn.all_masks for eqn in self.equations)
        return [note for notes in found for note in notes]


def rows(program: Content) -> list[Row]:
    """The lines of a program.

    An expanded program has one line per equation. Otherwise functions inside equations are left
    out. If that is too long for a screen, neighbouring equations of one source line that have no
    mask share a line, the longest runs first, until it fits or there are no more runs.
    """
    if program.is_expanded:
        return list(_expanded(program.equations, 0))
    return _folded(program)


def _expanded(equations: Iterable[Equation], depth: int) -> Iterator[Row]:
    for eqn in equations:
        yield Row((eqn,), eqn.operands, eqn.results, depth)
        for body in eqn.bodies:
            inner = depth + 1 + (not body.is_call)
            if not body.is_call:  # its parameters are variables of their own
                yield Row((), (), body.inputs, depth + 1, begins=body, owner=eqn)
            yield from _expanded(body.equations, inner)
            yield Row((), body.results, (), inner, ends=body, owner=eqn)


def _folded(program: Content) -> list[Row]:
    runs = _fitting([tuple(run) for _, run in itertools.groupby(program.equations, key=_Run())])
    readers: dict[str, set[int]] = {}
    for number, run in enumerate(runs):
        for eqn in run:
            for operand in eqn.operands:
                readers.setdefault(operand.name, set()).add(number)
    returned = {result.name for result in program.results}
    return [
        Row(run, _read_by(run), _kept(run, number=number, readers=readers, returned=returned))
        for number, run in enumerate(runs)
    ]


def _fitting(runs: list[tuple[Equation, ...]]) -> list[tuple[Equation, ...]]:
    """The longest runs, and the equations of the other runs one by one."""
    masks = sum(len(eqn.all_masks) for run in runs for eqn in run)
    least = 1 + max(map(len, runs), default=0)
    while least > 2 and sum(_lines(run, least) for run in runs) + masks > _MOST_LINES:
        least = max((len(run) for run in runs if len(run) < least), default=1)
    parts = ([run] if len(run) >= least else [(eqn,) for eqn in run] for run in runs)
    return [part for some in parts for part in some]


def _lines(run: Sequence[Equation], least: int) -> int:
    return 1 if len(run) >= least else len(run)


class _Run:
    """A number per equation: the same for those that share a line."""

    def __init__(self) -> None:
        self._number = 0
        self._last: str | None = None

    def __call__(self, eqn: Equation) -> int:
        line = None if eqn.all_masks else eqn.where
        if line is None or line != self._last:
            self._number += 1
        self._last = line
        return self._number


def _read_by(run: Sequence[Equation]) -> tuple[Variable, ...]:
    if len(run) == 1:
        return run[0].operands
    own = {result.name for eqn in run for result in eqn.results}
    read = {v.name: v for eqn in run for v in eqn.operands if not v.is_literal}
    return tuple(variable for name, variable in read.items() if name not in own)


def _kept(
    run: Sequence[Equation], *, number: int, readers: dict[str, set[int]], returned: set[str]
) -> tuple[Variable, ...]:
    if len(run) == 1:
        return run[0].results
    made = [result for eqn in run for result in eqn.results]
    kept = [v for v in made if v.name in returned or readers.get(v.name, set()) - {number}]
    return tuple(kept or made[-1:])
