"""The smallest and largest value of a dimension while its symbols range over intervals.

A symbol in which the expression is monotone is fixed at one end of its interval. If the grid of the
remaining symbols is small, it is evaluated and the result is exact; otherwise interval arithmetic
gives a bound. Ranges come from the caller: buckets are not known here.
"""

import ast
import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from shapeexec._errors import SpecError, UnboundedDimError
from shapeexec.shape._expression import Expression, parse

# An int, or an infinity where a symbol has no bound.
_Bound = int | float
_Interval = tuple[_Bound, _Bound]
_Box = dict[str, _Interval]
# How an expression changes with a symbol: falls, stays, rises, or unknown.
_Direction = Literal[-1, 0, 1] | None

_GRID_MAGNITUDE = 2**62  # int64 evaluation on the grid must not wrap around
_ASSUMED: _Interval = (1, math.inf)  # JAX takes every symbol as at least 1


def extreme(
    text: str, ranges: Mapping[str, tuple[int, int]], *, sign: Literal[-1, 1], limit: int
) -> int:
    """Return the largest (`sign` 1) or smallest (`sign` -1) value of a dimension over `ranges`.

    Args:
        text: The dimension.
        ranges: By symbol, the least and the greatest size, both included. A symbol without a
            range is at least 1.
        sign: Which end.
        limit: The most points of the grid of sizes to evaluate.

    Returns:
        The exact extreme where the grid of the symbols in which the dimension is not monotone has
        at most `limit` points; a bound at or beyond it elsewhere.

    Raises:
        UnboundedDimError: No finite bound was found.
        SpecError: A range is empty.
    """
    used = tuple((symbol, ranges[symbol]) for symbol in parse(text).symbols if symbol in ranges)
    return _extreme(text, used, sign=sign, limit=limit)


@functools.lru_cache(maxsize=16384)
def _extreme(
    text: str, ranges: tuple[tuple[str, tuple[int, int]], ...], *, sign: Literal[-1, 1], limit: int
) -> int:
    expression = parse(text)
    box: _Box = dict.fromkeys(expression.symbols, _ASSUMED)
    for symbol, (low, high) in ranges:
        if low > high:
            raise SpecError(
                f"no size of `{symbol}` lies in {low}..{high}.",
                fix=f"give `{symbol}` a bucket of at least {low}",
            )
        box[symbol] = (low, high)
    _fix_monotone_symbols(expression.tree, box, sign=sign)
    if all(low == high for low, high in box.values()):
        with contextlib.suppress(ZeroDivisionError):
            return int(expression({symbol: int(low) for symbol, (low, _) in box.items()}))
    points = math.prod(high - low + 1 for low, high in box.values())
    if points <= limit and _magnitude(expression.tree, box) < _GRID_MAGNITUDE:
        return _extreme_on_grid(expression, box, sign=sign)
    bound = _interval(expression.tree, box)[1 if sign > 0 else 0]
    if bound in (math.inf, -math.inf):
        free = [symbol for symbol, (_, high) in box.items() if high == math.inf]
        raise UnboundedDimError(
            f"no {'upper' if sign > 0 else 'lower'} bound is known for the dimension `{text}`.",
            symbols=frozenset(free),
            why=f"nothing bounds {' and '.join(f'`{symbol}`' for symbol in free)}",
            fix=f"give {' and '.join(f'`{symbol}`' for symbol in free)} a bucket",
        )
    return int(bound)


def fits(text: str, ranges: Mapping[str, tuple[int, int]], *, limit: int) -> bool:
    """Whether every intermediate result stays within `limit`, and no divisor is 0, over `ranges`.

    False if interval arithmetic cannot decide it. The parameters are as in `extreme`.
    """
    used = tuple((symbol, ranges[symbol]) for symbol in parse(text).symbols if symbol in ranges)
    return _fits(text, used, limit=limit)


@functools.lru_cache(maxsize=16384)
def _fits(text: str, ranges: tuple[tuple[str, tuple[int, int]], ...], *, limit: int) -> bool:
    expression = parse(text)
    box: _Box = dict.fromkeys(expression.symbols, _ASSUMED) | dict(ranges)
    nodes = [node for node in ast.walk(expression.tree) if isinstance(node, ast.expr)]
    nodes = [n for n in nodes if not isinstance(n, ast.Name) or n.id in box]
    if any(abs(end) > limit for node in nodes for end in _interval(node, box)):
        return False
    divisors = [n.args[1] for n in nodes if isinstance(n, ast.Call) and _name(n) in _DIVISIONS]
    return not any(low <= 0 <= high for low, high in (_interval(d, box) for d in divisors))


_DIVISIONS = ("floordiv", "mod")


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _fix_monotone_symbols(tree: ast.expr, box: _Box, *, sign: Literal[-1, 1]) -> None:
    pending = True
    while pending:  # a fixed symbol narrows products, which may make others monotone
        pending = False
        for symbol, (low, high) in box.items():
            direction = _direction(tree, symbol, box=box) if low != high else None
            if direction is None:
                continue
            end = high if direction * sign > 0 else low
            if end != math.inf:
                box[symbol] = (end, end)
                pending = True


def _extreme_on_grid(expression: Expression, box: _Box, *, sign: Literal[-1, 1]) -> int:
    axes = [np.arange(low, high + 1, dtype=np.int64) for low, high in box.values()]
    grid = dict(zip(box, np.ix_(*axes), strict=True)) if axes else {}
    # Where a divisor is 0 the dimension has no value, and NumPy gives 0.
    with np.errstate(divide="ignore"):
        values = np.asarray(expression(grid))
    return int(values.max() if sign > 0 else values.min())


def _magnitude(tree: ast.expr, box: _Box) -> _Bound:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and not _is_name(node)]
    intervals = [_interval(node, box) for node in nodes]
    return max((max(-low, high) for low, high in intervals), default=0)


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name)


def _interval(node: ast.expr, box: _Box) -> _Interval:
    match node:
        case ast.Constant(value=int(value)):
            return value, value
        case ast.Name(id=symbol):
            return box[symbol]
        case ast.UnaryOp(operand=operand):
            low, high = _interval(operand, box)
            return -high, -low
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))):
            return _power(_interval(left, box), exponent)
        case ast.BinOp(left=left, op=op, right=right):
            x, y = _interval(left, box), _interval(right, box)
            if isinstance(op, ast.Add):
                return x[0] + y[0], x[1] + y[1]
            if isinstance(op, ast.Sub):
                return x[0] - y[1], x[1] - y[0]
            return _hull(_times(a, b) for a in x for b in y)
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            x, y = _interval(left, box), _interval(right, box)
            return _CALLS[name](x, y)
        case _:
            raise AssertionError(ast.dump(node))  # our bug: `parse` lets no other node through


def _hull(bounds: Iterable[_Bound]) -> _Interval:
    values = list(bounds)
    return min(values), max(values)


def _times(a: _Bound, b: _Bound) -> _Bound:
    if a == 0 or b == 0:
        return 0  # also beside an infinity: the other factor is exactly 0
    if math.inf in (abs(a), abs(b)):
        return math.inf if (a > 0) == (b > 0) else -math.inf
    return a * b


def _power(x: _Interval, exponent: int) -> _Interval:
    if exponent == 0:
        return 1, 1
    low, high = x[0] ** exponent, x[1] ** exponent
    if exponent % 2 == 1:
        return low, high
    return (0 if x[0] <= 0 <= x[1] else min(low, high)), max(low, high)


def _floordiv(x: _Interval, y: _Interval) -> _Interval:
    if y[1] < 0:
        x, y = (-x[1], -x[0]), (-y[1], -y[0])
    if y[0] <= 0:  # dividing by 0 has no value; any other quotient is no larger than x
        most = max(-x[0], x[1])
        return -most, most
    return _hull(_quotient(a, b) for a in x for b in y)


def _quotient(a: _Bound, b: _Bound) -> _Bound:
    if b == math.inf:
        return -1 if a < 0 else 0
    return a if a in (math.inf, -math.inf) else a // b


def _mod(x: _Interval, y: _Interval) -> _Interval:
    if y[1] < 0:
        low, high = _mod((-x[1], -x[0]), (-y[1], -y[0]))
        return -high, -low
    if y[0] <= 0:
        return min(y[0] + 1, 0), max(y[1] - 1, 0)
    if x[0] >= 0:
        if x[1] < y[0]:
            return x
        return 0, min(x[1], y[1] - 1)
    return 0, y[1] - 1


_CALLS: dict[str, Callable[[_Interval, _Interval], _Interval]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
}


def _direction(node: ast.expr, symbol: str, *, box: _Box) -> _Direction:
    """How `node` changes as `symbol` grows, for all values of the other symbols in `box`."""
    match node:
        case ast.Constant():
            return 0
        case ast.Name(id=name):
            return 1 if name == symbol else 0
        case ast.UnaryOp(operand=operand):
            return _both(_direction(operand, symbol, box=box), -1)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(exponent))):
            sign = 1 if exponent % 2 == 1 else _sign(_interval(left, box))
            return _both(_direction(left, symbol, box=box), sign) if exponent else 0
        case ast.BinOp(left=left, op=op, right=right):
            x, y = _direction(left, symbol, box=box), _direction(right, symbol, box=box)
            if isinstance(op, ast.Add):
                return _together(x, y)
            if isinstance(op, ast.Sub):
                return _together(x, _both(y, -1))
            # x'y' - xy = (x' - x) y' + x (y' - y)
            x_sign, y_sign = _sign(_interval(left, box)), _sign(_interval(right, box))
            return _together(_both(x, y_sign), _both(y, x_sign))
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            x, y = _direction(left, symbol, box=box), _direction(right, symbol, box=box)
            if name in ("max", "min"):
                return _together(x, y)
            if x == y == 0:
                return 0
            divisor = _interval(right, box)
            if name == "mod" or divisor[0] <= 0 <= divisor[1]:
                return None
            falls = _both(_both(y, _sign(_interval(left, box))), -1)
            return _together(_both(x, _sign(divisor)), falls)
        case _:
            raise AssertionError(ast.dump(node))  # our bug: `parse` lets no other node through


def _sign(x: _Interval) -> _Direction:
    if x[0] >= 0:
        return 1
    return -1 if x[1] <= 0 else None


def _both(direction: _Direction, sign: _Direction) -> _Direction:
    if direction == 0:
        return 0
    if direction is None or sign is None:
        return None
    return 1 if direction == sign else -1


def _together(a: _Direction, b: _Direction) -> _Direction:
    if a == 0:
        return b
    return a if b in (0, a) else None
