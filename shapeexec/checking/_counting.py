"""Loop outputs that depend on the loop counter only, as known rows of numbers.

The indices that a loop stores for its gradient are such rows. Only scalars are handled.
"""

from collections.abc import Mapping

import numpy as np

from shapeexec.checking._fold import folded_each
from shapeexec.checking._values import Table

_MOST_STEPS = 1 << 16


def counters(
    table: Table, starts: Mapping[int, int], *, made: Mapping[int, int], steps: int
) -> dict[int, np.ndarray]:
    """The values of counters at each step.

    Args:
        table: The values.
        starts: The initial value of each carry, by its value in the body.
        made: The next value of each carry, by its value in the body.
        steps: The number of steps.
    """
    found: dict[int, np.ndarray] = {}
    for given, start in starts.items():
        first, step = table.constant_of(start), table[made[given]]
        if first is None or first.ndim or first.dtype.kind not in "iu" or steps > _MOST_STEPS:
            continue
        one = table.constant(np.ones((), first.dtype))
        last = int(first) + steps
        if step.op == "add" and set(step.operands) == {given, one} and _holds(first.dtype, last):
            found[given] = (int(first) + np.arange(steps)).astype(first.dtype)
    return found


def _holds(dtype: np.dtype, number: int) -> bool:
    return number <= np.iinfo(dtype).max


def counted(
    table: Table, value: int, *, known: dict[int, np.ndarray | None], steps: int
) -> np.ndarray | None:
    """A scalar of a body at each step, if it depends on `known` values and constants only."""
    if value not in known:
        known[value] = _counted(table, value, known=known, steps=steps)
    return known[value]


def _counted(
    table: Table, value: int, *, known: dict[int, np.ndarray | None], steps: int
) -> np.ndarray | None:
    node = table[value]
    if node.kind.shape:
        return None
    if node.constant is not None:
        return np.broadcast_to(node.constant, (steps,))
    operands: list[np.ndarray] = []
    for operand in node.operands:
        row = counted(table, operand, known=known, steps=steps)
        if row is None:
            return None
        operands.append(row)
    return folded_each(node.op, operands, dtype=node.kind.dtype) if operands else None
