"""The dims that replace symbols of a call in one trace.

A guard that is an equation removes a symbol from the trace: under `s == 5` the trace has 5 for `s`,
under `t == s` it has `s` for `t`, and under `mod(s, 2) == 1`, if the guard splits, it has
`2*s_by_2 - 1` for `s`. JAX simplifies the replaced dims. With `s == 5` as a constraint of its scope
it would not: `s^2` would stay as it is. Guards and sizes use the symbols of the call, jaxprs the
symbols of the trace. `_guards` says what a guard is.
"""

import ast
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from shapeexec.shape import _dim, _expression
from shapeexec.shape._dim import Dim
from shapeexec.shape._guards import Guard


@dataclasses.dataclass(frozen=True)
class Substitution:
    """The dims that replace symbols of a call in a trace, and their inverse.

    Attributes:
        inner: For each replaced symbol of the call, the dim in the trace's own symbols.
        outer: For each symbol that only the trace has, the dim in the call's symbols.
    """

    inner: Mapping[str, Dim] = dataclasses.field(default_factory=dict[str, Dim])
    outer: Mapping[str, Dim] = dataclasses.field(default_factory=dict[str, Dim])

    def inward(self, dim: Any) -> Dim:
        """Rewrite a dim from the call's symbols to the trace's own."""
        return _replaced(dim, self.inner)

    def outward(self, dim: Any) -> Dim:
        """Rewrite a dim from the trace's own symbols to the call's."""
        return _replaced(dim, self.outer)

    def symbols(self, own: Iterable[str]) -> frozenset[str]:
        """The call's symbols that these symbols of the trace depend on."""
        return frozenset(s for name in own for s in _dim.symbols_of(self.outer.get(name, name)))

    def sizes(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes of the trace's own symbols, ints or i32[], from the sizes in the call."""
        own = {name: _dim.evaluate(dim, sizes) for name, dim in self.outer.items() if sizes}
        return {s: size for s, size in sizes.items() if s not in self.inner} | own

    def ranges(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """The least and the greatest size of each of the trace's own symbols, from the call's.

        A symbol of the trace grows with the symbol of the call that it replaces, so the ends of one
        range are the ends of the other.
        """
        ends = (self.sizes({s: ends[i] for s, ends in ranges.items()}) for i in (0, 1))
        lower, upper = ends
        return {name: (max(1, lower[name]), max(1, upper[name])) for name in upper}

    def with_guard(self, guard: Guard) -> "Substitution | None":
        """The substitution under one more guard; None if the guard replaces no symbol."""
        if guard.op != "==":
            return None
        left, right = self.inward(guard.left), self.inward(guard.right)
        if guard.splits:
            return self._split(left, right)
        difference = left - right
        for symbol in sorted(difference.symbols, reverse=True):
            for value in (_solution(difference, symbol, sign=sign) for sign in (1, -1)):
                if value is not None:
                    return self._replacing(symbol, value)
        return None

    def _split(self, left: Dim, right: Dim) -> "Substitution | None":
        divided = _remainder(left)
        if divided is None or divided[0].name is None or not right.is_static:
            return None
        symbol, divisor = divided[0].text, divided[1]
        short = (divisor - right.value) % divisor
        name = f"{symbol}_by_{divisor}"
        replaced = self._replacing(symbol, Dim(name) * divisor - short)
        value = (self.outward(symbol) + short) // divisor
        return Substitution(replaced.inner, {**replaced.outer, name: value})

    def _replacing(self, symbol: str, value: Dim) -> "Substitution":
        new = {symbol: value}
        inner = {name: _replaced(dim, new) for name, dim in self.inner.items()}
        if symbol not in self.outer:
            inner[symbol] = value
        return Substitution(inner, {s: dim for s, dim in self.outer.items() if s != symbol})


def _solution(difference: Dim, symbol: str, *, sign: int) -> Dim | None:
    """Solve `difference == 0` for `symbol`, if it is `sign * symbol` plus terms without it."""
    rest = difference - Dim(symbol) * sign
    if symbol in rest.symbols:
        return None
    value = -rest if sign == 1 else rest
    return value if not value.is_static or value.value >= 1 else None


def _remainder(dim: Dim) -> tuple[Dim, int] | None:
    """`(e, m)` of a dim `mod(e, m)` with a constant m of at least 2; None for any other."""
    match _expression.parse(dim.text).tree:
        case ast.Call(ast.Name("mod"), [dividend, ast.Constant(int(divisor))]) if divisor > 1:
            return Dim(ast.unparse(dividend)), divisor
        case _:
            return None


def _replaced(dim: Any, values: Mapping[str, Dim]) -> Dim:
    return _dim.from_jax(_dim.substitute(_dim.dim_text(dim), values))


def substitution(guards: Iterable[Guard]) -> tuple[Substitution, list[Guard]]:
    """The substitution by the guards that are equations, and the other guards.

    Two bounds that meet, `t >= s` and `s >= t`, are the equation `t == s`. JAX would see that the
    two dims are equal, but not give them one hash, by which some of its checks compare shapes.
    """
    found = Substitution()
    left: list[Guard] = []
    bounds: set[Dim] = set()
    for guard in guards:
        bound = _bound(guard)
        extended = found.with_guard(guard)
        if extended is None and bound is not None and -bound in bounds:
            extended = found.with_guard(Guard(bound.text, "==", "0"))
        if extended is None:
            left.append(guard)
        else:
            found = extended
        if bound is not None:
            bounds.add(bound)
    return found, left


def _bound(guard: Guard) -> Dim | None:
    """The dim that is at least 0 under a guard; None if the guard is not of that kind."""
    difference = Dim(guard.left) - Dim(guard.right)
    match guard.op:
        case ">=":
            return difference
        case "<=":
            return -difference
        case ">":
            return difference - 1
        case "<":
            return -difference - 1
        case _:
            return None
