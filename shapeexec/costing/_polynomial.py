"""Polynomials in sizes: how much work a program does, before any size is known.

A factor is a symbol, or another function of sizes such as `floordiv(s, 2)`. Programs are not known
here.
"""

import ast
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from shapeexec.shape import _dim, _expression


@dataclasses.dataclass(frozen=True, order=True)
class Factor:
    """A symbol, or a function of sizes that is no polynomial.

    Attributes:
        text: What is printed; factors of one text are equal.
        at: Its value, from sizes by symbol: integers, or arrays of them.
    """

    text: str
    at: Callable[[Mapping[str, Any]], Any] = dataclasses.field(compare=False, repr=False)


Monomial = tuple[tuple[Factor, int], ...]
"""Factors and their powers, by text."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Polynomial:
    """A sum of products of sizes.

    Attributes:
        terms: The coefficient of each product of factors; none is 0.
    """

    terms: Mapping[Monomial, float] = dataclasses.field(default_factory=dict[Monomial, float])

    def __call__(self, sizes: Mapping[str, Any]) -> Any:
        """The value at sizes by symbol: numbers, or arrays of one shape."""
        factors = {factor for monomial in self.terms for factor, _ in monomial}
        values = {factor: factor.at(sizes) * 1.0 for factor in factors}  # products exceed an int
        total: Any = 0.0
        for monomial, coefficient in self.terms.items():
            product: Any = coefficient
            for factor, power in monomial:
                product = product * values[factor] ** power
            total = total + product
        return total

    def __add__(self, other: "Polynomial") -> "Polynomial":
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0.0) + coefficient
        return Polynomial({key: value for key, value in terms.items() if value})

    def __mul__(self, other: "Polynomial | float") -> "Polynomial":
        if not isinstance(other, Polynomial):
            return self * constant(other)
        terms: dict[Monomial, float] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product = _product(left, right)
                terms[product] = terms.get(product, 0.0) + a * b
        return Polynomial({key: value for key, value in terms.items() if value})

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: (-_degree(term[0]), _text(term[0])))
        return " + ".join(_term(*term) for term in ordered).replace("+ -", "- ") or "0"

    def __repr__(self) -> str:
        return f"Polynomial({self})"


NOTHING = Polynomial()


def constant(value: float) -> Polynomial:
    """A polynomial without symbols."""
    return Polynomial({(): float(value)} if value else {})


def make_factor(text: str, at: Callable[[Mapping[str, Any]], Any]) -> Polynomial:
    """One factor that is no polynomial, such as a logarithm."""
    return Polynomial({((Factor(text, at), 1),): 1.0})


def read_dim(dim: Any) -> Polynomial:
    """The polynomial of a dim: an integer, a string, a `Dim` or a JAX dim."""
    return constant(dim) if isinstance(dim, int) else _of_text(_dim.dim_text(dim))


@functools.lru_cache(maxsize=4096)
def _of_text(text: str) -> Polynomial:
    return _of_tree(_expression.parse(text).tree)


def _of_tree(tree: ast.expr) -> Polynomial:
    match tree:
        case ast.Constant(int(value)):
            return constant(value)
        case ast.UnaryOp(ast.USub(), operand):
            return _of_tree(operand) * -1.0
        case ast.BinOp(left, ast.Add(), right):
            return _of_tree(left) + _of_tree(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _of_tree(left) + _of_tree(right) * -1.0
        case ast.BinOp(left, ast.Mult(), right):
            return _of_tree(left) * _of_tree(right)
        case ast.BinOp(left, ast.Pow(), ast.Constant(int(power))):
            return functools.reduce(Polynomial.__mul__, [_of_tree(left)] * power, constant(1))
        case _:
            text = ast.unparse(tree)
            return make_factor(text, functools.partial(_dim.evaluate, text))


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for factor, power in right:
        powers[factor] = powers.get(factor, 0) + power
    return tuple(sorted(powers.items()))


def _degree(monomial: Monomial) -> int:
    return sum(power for _, power in monomial)


def _text(monomial: Monomial) -> str:
    return "*".join(f.text if power == 1 else f"{f.text}^{power}" for f, power in monomial)


def _term(monomial: Monomial, coefficient: float) -> str:
    number = f"{coefficient:.0f}" if coefficient == round(coefficient) else f"{coefficient:.4g}"
    if not monomial:
        return number
    return _text(monomial) if coefficient == 1 else f"{number}*{_text(monomial)}"
