"""How many outcomes the guards of a function can have: each is a trace, and a graph per bucket.

`_traces` warns of a function with many.
"""

import ast
from collections.abc import Iterable, Sequence

from shapeexec.shape import _expression
from shapeexec.shape._guards import Guard
from shapeexec.shape._questions import AnyGuard
from shapeexec.shape._trace import Trace

_MANY = 8
_FORESEEN_AT = 3


def are_many(traces: Sequence[Trace]) -> bool:
    """Whether to warn now, of traces of which the last is new: once, as soon as it can be foreseen.

    At the third trace, if the guards seen so far can have more than 8 outcomes; at a later one,
    when they can for the first time; at the eighth at the latest.
    """
    if len(traces) < _FORESEEN_AT or len(traces) > _MANY:
        return False
    if len(traces) == _MANY:
        return not any(_foreseen(traces[:n]) for n in range(_FORESEEN_AT, _MANY))
    before = range(_FORESEEN_AT, len(traces))
    return _foreseen(traces) and not any(_foreseen(traces[:n]) for n in before)


def _foreseen(traces: Sequence[Trace]) -> bool:
    guards = dict.fromkeys(guard for trace in traces for guard in trace.guards)
    return outcomes(guards) > _MANY


def outcomes(guards: Iterable[AnyGuard]) -> int:
    """How many outcomes guards can have together, as far as their form tells.

    A remainder by m has m, another question 2, and questions of the same two dims as many as there
    are answers: `s < 4` and `s >= 4` are one question. A size that was pinned (`s == 5`) tells of
    no other outcome than that it is another: such questions of one dim count one more than them.
    """
    by_question: dict[tuple[str, ...], int] = {}
    pins: dict[str, set[str]] = {}
    for guard in guards:
        if not isinstance(guard, Guard):
            by_question[guard.expression.digest.hex(),] = 2
            continue
        divisor = _divisor(guard)
        if divisor is not None:
            by_question[guard.left,] = divisor
        elif guard.op in ("==", "!=") and guard.right.isdigit():
            pins.setdefault(guard.left, set()).add(guard.right)
        else:
            by_question[guard.left, guard.right] = 2
    total = 1
    for count in (*by_question.values(), *(len(values) + 1 for values in pins.values())):
        total *= count
    return total


def _divisor(guard: Guard) -> int | None:
    """By what the remainder is taken that a guard speaks of; None if it speaks of none."""
    match _expression.parse(guard.left).tree:
        case ast.Call(ast.Name("mod"), [_, ast.Constant(int(divisor))]) if divisor > 1:
            return divisor
        case _:
            return None
