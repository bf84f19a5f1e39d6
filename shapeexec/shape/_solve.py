"""The size of a symbol, solved from the value of an expression of it.

Only linear equations in one unknown are solved. Shapes and specs are not known here.
"""

import ast
from collections.abc import Mapping

from shapeexec.shape._dim import Dim
from shapeexec.shape._expression import parse

# slope * symbol + offset
_Line = tuple[int, int]


class NotLinearError(Exception):
    """A dimension is not linear in the unknown symbol; another axis may determine its size."""


def solve_linear(dim: Dim, value: int, *, symbol: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size of `symbol` at which a dimension has a value.

    Args:
        dim: Linear in `symbol` once the other symbols have their sizes.
        value: The value of the dimension.
        symbol: The unknown.
        sizes: The sizes of the other symbols.

    Returns:
        The only solution of at least 0; None if there is none.

    Raises:
        NotLinearError: The dimension is not linear in the symbol, or does not depend on it.
    """
    slope, offset = _line(parse(dim.text).tree, symbol, sizes=sizes)
    if slope == 0:
        raise NotLinearError(f"{dim} does not depend on {symbol}")
    size, remainder = divmod(value - offset, slope)
    return size if remainder == 0 and size >= 0 else None


def _line(node: ast.expr, symbol: str, *, sizes: Mapping[str, int]) -> _Line:
    match node:
        case ast.Name(id=name) if name == symbol:
            return 1, 0
        case ast.UnaryOp(operand=operand):
            slope, offset = _line(operand, symbol, sizes=sizes)
            return -slope, -offset
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            (a, b), (c, d) = _line(left, symbol, sizes=sizes), _line(right, symbol, sizes=sizes)
            return (a + c, b + d) if isinstance(op, ast.Add) else (a - c, b - d)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            (a, b), (c, d) = _line(left, symbol, sizes=sizes), _line(right, symbol, sizes=sizes)
            if a == 0 or c == 0:
                return a * d + b * c, b * d
        case _:
            pass
    text = ast.unparse(node)
    if symbol in parse(text).symbols:
        raise NotLinearError(f"{text} is not linear in {symbol}")
    return 0, parse(text)(sizes)
