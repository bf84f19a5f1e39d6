"""The sign of a dim at all sizes, decided before JAX tries: JAX's own search is unbounded.

JAX eliminates terms with every constraint that mentions them, in time exponential in the nesting
of divisions: four strided layers take seconds, six never end. Intervals decide most dims. If a dim
has different signs at two sizes, no search can decide it, and JAX is not asked.
"""

import ast
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from shapeexec import _compat
from shapeexec._errors import UnboundedDimError
from shapeexec.shape import _dim, _expression

_TRIED = (1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 10**3, 10**6)
_NOTHING = (-math.inf, math.inf)
_MOST_CASES = 32  # when maxima and minima are split into their cases

_Interval = tuple[float, float]


@functools.lru_cache(maxsize=16384)
def sign_bounds(
    text: str, constraints: tuple[tuple[str, str], ...], *, is_strict: bool
) -> tuple[float, float] | None:
    """Bounds of a dim that decide its sign.

    Args:
        text: The dim.
        constraints: Known facts: `(dim, ">=" or "==")`, each compared with 0.
        is_strict: Whether to decide between `>= 0` and `< 0`; else between `>= 0` and `<= 0`.

    Returns:
        The least and the greatest value. Infinities: the dim has both signs. None: not decided.
    """
    least, most = _bounds(text)
    if least >= 0 or most < 0 or (most == 0 and not is_strict):
        return least, most
    seen = {_sign(value, is_strict=is_strict) for value in _values(text, constraints)}
    return _NOTHING if {-1, 1} <= seen else None


def _bounds(text: str) -> _Interval:
    """Bounds of a dim, with symbols of at least 1; tightened only if the sign needs it."""
    low, high = _linear_bounds(_linear(_expression.parse(text).tree), _MOST_CASES)
    if low >= 0 or high < 0:
        return low, high  # tighter bounds would not change the sign
    return max(low, _least(text, 1)), min(high, _least(text, -1))


@dataclasses.dataclass(frozen=True)
class _Linear:
    """`scale` times a dim, as a sum of atoms (symbols, calls and products) and an interval.

    Attributes:
        atoms: The factor of each atom, by its text.
        rest: The interval that is added.
        scale: The positive factor that the dim was multiplied by.
    """

    atoms: Mapping[str, int]
    rest: _Interval = (0, 0)
    scale: int = 1

    def plus(self, other: "_Linear", factor: int) -> "_Linear":
        """Add `factor` times another sum, whose scale is 1."""
        atoms = dict(self.atoms)
        for atom, count in other.atoms.items():
            atoms[atom] = atoms.get(atom, 0) + factor * count
        atoms = {atom: count for atom, count in atoms.items() if count}
        return _Linear(atoms, _plus(self.rest, _times(other.rest, factor)), self.scale)

    def without(self, atom: str) -> "_Linear":
        """The sum without an atom."""
        atoms = {other: count for other, count in self.atoms.items() if other != atom}
        return dataclasses.replace(self, atoms=atoms)

    def scaled(self, factor: int) -> "_Linear":
        """The sum multiplied by `factor`."""
        return dataclasses.replace(_Linear({}).plus(self, factor), scale=self.scale * factor)


def _linear(node: ast.expr) -> _Linear:
    match node:
        case ast.Constant(value=int(value)):
            return _Linear({}, (value, value))
        case ast.UnaryOp(operand=operand):
            return _Linear({}).plus(_linear(operand), -1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _linear(left).plus(_linear(right), 1 if isinstance(node.op, ast.Add) else -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factor = _linear(left)  # JAX writes constants first
            if not factor.atoms:
                return _Linear({}).plus(_linear(right), int(factor.rest[0]))
        case _:
            pass
    return _Linear({ast.unparse(node): 1})


def _linear_bounds(total: _Linear, cases: int) -> _Interval:
    """Bounds of a sum. Divisions and maxima are replaced one at a time, the longest first.

    A quotient q = floordiv(a, m) satisfies m*q = a - r with 0 <= r < m. So the sum is multiplied by
    m, and the terms of a cancel against the other terms.
    """
    for atom in sorted(total.atoms, key=len, reverse=True):
        factor, rest = total.atoms[atom], total.without(atom)
        match _expression.parse(atom).tree:
            case ast.Call(ast.Name("floordiv"), [dividend, ast.Constant(int(m))]) if m > 0:
                taken = rest.scaled(m).plus(_linear(dividend), factor)
                remainder = _times((0, m - 1), -factor)
                return _linear_bounds(
                    dataclasses.replace(taken, rest=_plus(taken.rest, remainder)), cases
                )
            case ast.Call(ast.Name("max" | "min" as name), [left, right]) if cases > 1:
                ends = [
                    _linear_bounds(rest.plus(_linear(node), factor), cases // 2)
                    for node in (left, right)
                ]
                pick = max if (name == "max") == (factor > 0) else min
                return pick(end[0] for end in ends), pick(end[1] for end in ends)
            case _:
                pass
    low, high = total.rest
    for atom, factor in total.atoms.items():
        ends = [_least(atom, 1), _least(atom, -1)]
        low, high = _plus((low, high), _times((ends[0], ends[1]), factor))
    scale = total.scale
    return _divided(low, scale, rounded=math.ceil), _divided(high, scale, rounded=math.floor)


def _plus(x: _Interval, y: _Interval) -> _Interval:
    return x[0] + y[0], x[1] + y[1]


def _times(x: _Interval, factor: int) -> _Interval:
    low, high = x[0] * factor, x[1] * factor
    return (low, high) if factor > 0 else (high, low)


def _divided(value: float, by: int, *, rounded: Callable[[Fraction], int]) -> float:
    return value if math.isinf(value) else rounded(Fraction(int(value), by))


def _least(text: str, sign: int) -> float:
    """The least value of a dim, or the greatest if `sign` is -1, with symbols of at least 1."""
    try:
        return (_dim.minimum if sign > 0 else _dim.maximum)(text, {})
    except UnboundedDimError:
        return -sign * math.inf


def _sign(value: int, *, is_strict: bool) -> int:
    if value < 0:
        return -1
    return 1 if value > 0 or is_strict else 0


def _values(text: str, constraints: Iterable[tuple[str, str]]) -> Iterable[int]:
    """The values of a dim at sample sizes that fulfil the constraints."""
    texts = (text, *(other for other, _ in constraints))
    symbols = sorted({symbol for each in texts for symbol in _expression.parse(each).symbols})
    for sizes in _sizes(symbols):
        try:
            if all(_holds(_dim.evaluate(other, sizes), op) for other, op in constraints):
                yield _dim.evaluate(text, sizes)
        except ZeroDivisionError:
            continue


def _sizes(symbols: list[str]) -> Iterable[Mapping[str, int]]:
    """Sample sizes: all symbols equal, and each symbol different from the others."""
    for size in _TRIED:
        yield dict.fromkeys(symbols, size)
    for symbol in symbols if len(symbols) > 1 else ():
        for size in _TRIED:
            for others in (1, 10**3):
                yield {**dict.fromkeys(symbols, others), symbol: size}


def _holds(value: int, op: str) -> bool:
    return value >= 0 if op == ">=" else value == 0


_compat.take_over_bounds(sign_bounds)
