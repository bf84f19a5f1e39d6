"""In which order a chain of reshapes and transposes reads an array.

It reads the elements of an array in nested loops, and each loop steps by a stride of the array's
row-major order. So a chain is a sequence of loops, and two chains with the same loops are the same.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from shapeexec.checking._values import Table, own_params


@dataclasses.dataclass(frozen=True)
class Loop:
    """One of the loops, from outer to inner, that read an array.

    Attributes:
        size: How often it runs, more than once.
        stride: How many elements lie between.
    """

    size: int
    stride: int


def rearranged(table: Table, value: int) -> tuple[int, list[Loop]]:
    """What was reshaped and transposed to make a value, and how it is read."""
    node = table[value]
    turned = table[node.operands[0]] if node.op == "shaped" else node
    if turned.op != "turned":
        base = node.operands[0] if node.op == "shaped" else value
        return base, row_major((node.kind.size,))
    (short,) = turned.operands
    loops = row_major(table.kind(short).shape)
    base = table[short].operands[0] if table[short].op == "shaped" else short
    return base, [loops[axis] for axis in own_params(turned)["permutation"]]


def row_major(shape: Sequence[int]) -> list[Loop]:
    """The loops that read an array in order."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return [Loop(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]


def by_axis(loops: Sequence[Loop], shape: Sequence[int]) -> list[list[Loop]] | None:
    """The loops that run along each axis of what they read; None: one crosses axes unevenly."""
    waiting, axes = [*loops][::-1], []
    for n in shape:
        along, left = [], n
        while left > 1:
            loop = waiting.pop()
            inner = max(1, loop.size // left)
            if loop.size != inner * min(left, loop.size) or left % (loop.size // inner):
                return None
            along.append(Loop(loop.size // inner, loop.stride * inner))
            left //= along[-1].size
            if inner > 1:
                waiting.append(Loop(inner, loop.stride))
        axes.append(along)
    return axes


def merged(loops: Iterable[Loop]) -> list[Loop]:
    """The fewest loops that do the same."""
    fewest: list[Loop] = []
    for loop in loops:
        runs_on = bool(fewest) and fewest[-1].stride == loop.size * loop.stride
        size = fewest.pop().size if runs_on else 1
        fewest.append(Loop(size * loop.size, loop.stride))
    return fewest


def order(loops: Sequence[Loop]) -> list[int]:
    """The places of loops in the array's own order."""
    return sorted(range(len(loops)), key=lambda place: -loops[place].stride)
