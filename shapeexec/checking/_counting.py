"""What a loop puts out that hangs on its counter alone: a row of known numbers.

The indices that a loop keeps for its gradient are such rows. Only scalars are counted.
"""

from collections.abc import Mapping

import numpy as np

from shapeexec.checking._fold import folded_each
from shapeexec.checking._values import Table

_MOST_STEPS = 1 << 16


def counters(
    table: Table, starts: Mapping[int, int], made: Mapping[int, int], steps: int
) -> dict[int, np.ndarray]:
    """The numbers that counters are, step by step.

    Args:
        table: The values.
        starts: By what the body is given of a carry the value that it starts with.
        made: By the same what the body makes of it.
        steps: How many there are.
    """
    found = {}
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
    table: Table, value: int, known: dict[int, np.ndarray | None], steps: int
) -> np.ndarray | None:
    """A scalar of a body step by step, if it hangs on `known` values and constants alone."""
    if value not in known:
        known[value] = _counted(table, value, known, steps)
    return known[value]


def _counted(
    table: Table, value: int, known: dict[int, np.ndarray | None], steps: int
) -> np.ndarray | None:
    node = table[value]
    if node.kind.shape:
        return None
    if node.constant is not None:
        return np.broadcast_to(node.constant, (steps,))
    operands = []
    for operand in node.operands:
        row = counted(table, operand, known, steps)
        if row is None:
            return None
        operands.append(row)
    return folded_each(node.op, operands, node.kind.dtype) if operands else None
