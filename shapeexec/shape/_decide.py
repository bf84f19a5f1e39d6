"""Whether a dim is of one sign, decided before JAX is asked: its own search has no bound.

JAX eliminates terms by all constraints that it finds in them, which takes time exponential in how
deep divisions are nested: four strided layers are seconds, six never end. An interval decides most
dims, and two sizes at which a dim has different signs show that nothing can decide the others.
"""

import functools
import math
from collections.abc import Iterable, Mapping

from shapeexec import _compat
from shapeexec._errors import UnboundedDimError
from shapeexec.shape import _dim, _expression

_TRIED = (1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 10**3, 10**6)
_NOTHING = (-math.inf, math.inf)


@functools.lru_cache(maxsize=16384)
def sign_bounds(
    text: str, constraints: tuple[tuple[str, str], ...], *, is_strict: bool
) -> tuple[float, float] | None:
    """Bounds of a dim that tell its sign, or infinities if no bounds do; None: it is not known.

    Args:
        text: The dim.
        constraints: What holds besides: `(dim, ">=" or "==")`, each compared with 0.
        is_strict: Whether the signs are `>= 0` and `< 0`; else they are `>= 0` and `<= 0`.
    """
    least, most = _least(text, 1), _least(text, -1)
    if least >= 0 or most < 0 or (most == 0 and not is_strict):
        return least, most
    seen = {_sign(value, is_strict=is_strict) for value in _values(text, constraints)}
    return _NOTHING if {-1, 1} <= seen else None


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
    """The values of a dim at sizes that are tried and fulfil the constraints."""
    texts = (text, *(other for other, _ in constraints))
    symbols = sorted({symbol for each in texts for symbol in _expression.parse(each).symbols})
    for sizes in _sizes(symbols):
        try:
            if all(_holds(_dim.evaluate(other, sizes), op) for other, op in constraints):
                yield _dim.evaluate(text, sizes)
        except ZeroDivisionError:
            continue


def _sizes(symbols: list[str]) -> Iterable[Mapping[str, int]]:
    """All symbols alike, and each of them unlike the others."""
    for size in _TRIED:
        yield dict.fromkeys(symbols, size)
    for symbol in symbols if len(symbols) > 1 else ():
        for size in _TRIED:
            for others in (1, 10**3):
                yield {**dict.fromkeys(symbols, others), symbol: size}


def _holds(value: int, op: str) -> bool:
    return value >= 0 if op == ">=" else value == 0


_compat.take_over_bounds(sign_bounds)
