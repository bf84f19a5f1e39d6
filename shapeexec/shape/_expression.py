"""The grammar of a dimension's text, and its evaluation on integers, arrays, tracers and dims.

JAX prints a dimension as `2*s + 1`, `floordiv(s, 2)`, `mod(s, 3)`, `max(s - 2, 0)`, `s^2 - b`;
people also write `s // 2`, `s % 3`, `s**2`. Both are read here, and nothing else of Python: it is
parsed, checked node by node and compiled once. `Dim` itself is in `_dim`.
"""

# `operator.floordiv` has unknown type parameters.
# pyright: reportUnknownMemberType=false

import ast
import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Never

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from shapeexec._code import parsed
from shapeexec._errors import SpecError

_FUNCTIONS = ("floordiv", "mod", "max", "min")
_LARGEST_EXPONENT = 64
_FIX = 'write it as "2*s + 1": integers, names, + - * // % **, floordiv, mod, max, min'

Kind = Literal["int", "numpy", "jax", "symbolic"]

# The grammar's functions, by kind of operand. JAX's dims round down, so lax.div and lax.rem, which
# truncate, would be wrong here.
_MEANINGS: dict[Kind, dict[str, Callable[..., Any]]] = {
    "int": {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min},
    "numpy": {
        "floordiv": np.floor_divide,
        "mod": np.mod,
        "max": np.maximum,
        "min": np.minimum,
    },
    "jax": {
        "floordiv": jnp.floor_divide,
        "mod": jnp.mod,
        "max": jnp.maximum,
        "min": jnp.minimum,
    },
    "symbolic": {
        "floordiv": operator.floordiv,
        "mod": operator.mod,
        "max": jax.core.max_dim,
        "min": jax.core.min_dim,
    },
}

# No text can name it, but JAX's C code imports modules at its first use, which may be in here.
_BUILTINS = {"__import__": __import__}


@dataclasses.dataclass(frozen=True, eq=False)
class Expression:
    """A parsed dimension.

    Attributes:
        tree: Its syntax tree, made of Constant, Name, UnaryOp (-), BinOp (+ - * **) and Call (of
            floordiv, mod, max and min, with two arguments).
        symbols: Its symbols, sorted.
    """

    tree: ast.expr
    symbols: tuple[str, ...]

    @functools.cached_property
    def functions(self) -> Mapping[Kind, Callable[..., Any]]:
        """By kind of operand, the expression as a function of its symbols in that order."""
        return _compile(self.tree, self.symbols)

    def __call__(self, env: Mapping[str, Any]) -> Any:
        """Return the value with the operands of `env` in place of the symbols."""
        try:
            operands = [env[symbol] for symbol in self.symbols]
        except KeyError:
            missing = [symbol for symbol in self.symbols if symbol not in env]
            raise SpecError(
                f"no size is known for `{missing[0]}` in `{ast.unparse(self.tree)}`.",
                got=", ".join(f"{name}={size}" for name, size in env.items()) or "no sizes",
                fix=f"give {' and '.join(f'{symbol}=...' for symbol in missing)}",
            ) from None
        return self.functions[_kind(operands)](*operands)


@functools.lru_cache(maxsize=16384)
def parse(text: str) -> Expression:
    """Read a dimension's text.

    Args:
        text: Such as `2*s + 1`, as JAX prints it or as Python spells it.

    Raises:
        SpecError: The text is not a dimension.
    """
    try:
        checker = _Checker(text)
        tree = checker.visit(parsed(text.strip().replace("^", "**")))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SpecError):
            raise
        detail = error.msg if isinstance(error, SyntaxError) else "too deeply nested or not text"
        raise SpecError(f"`{text}` is not a dimension.", path=text, why=detail, fix=_FIX) from None
    return Expression(tree, tuple(sorted(checker.symbols)))


def _compile(tree: ast.expr, symbols: tuple[str, ...]) -> Mapping[Kind, Callable[..., Any]]:
    parameters = ast.arguments(
        posonlyargs=[ast.arg(symbol) for symbol in symbols],
        args=[],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    body = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, tree)))
    code = compile(body, "<dimension>", "eval")
    functions: dict[Kind, Callable[..., Any]] = {
        kind: eval(code, {"__builtins__": _BUILTINS, **meanings})
        for kind, meanings in _MEANINGS.items()
    }
    return types.MappingProxyType(functions)


def _kind(operands: list[Any]) -> Kind:
    kind: Kind = "int"
    for operand in operands:
        if type(operand) is int:
            continue
        if isinstance(operand, jax.Array):
            return "jax"
        if jax.export.is_symbolic_dim(operand):
            return "symbolic"
        kind = "numpy" if isinstance(operand, np.ndarray | np.generic) else kind
    return kind


class _Checker(ast.NodeTransformer):
    """Let the grammar's nodes through, in one spelling; refuse every other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.symbols: set[str] = set()

    def generic_visit(self, node: ast.AST) -> Never:
        self._refuse(node, f"a dimension holds no {type(node).__name__}")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) is not int:
            self._refuse(node, "a dimension holds integers and names only")
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _FUNCTIONS:
            self._refuse(node, f"`{node.id}` is a function of two dimensions, not a symbol")
        if node.id == "_":
            self._refuse(node, "`_` stands for a whole static axis in a spec, not for a symbol")
        if node.id.startswith("__"):
            self._refuse(node, "a symbol does not start with two underscores")
        self.symbols.add(node.id)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(node.op, ast.USub):
            return ast.UnaryOp(node.op, operand)
        self._refuse(node, "of the signs, a dimension knows - and +")

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        match node.op:
            case ast.Add() | ast.Sub() | ast.Mult():
                return ast.BinOp(left, node.op, right)
            case ast.FloorDiv():
                return _call("floordiv", left=left, right=right)
            case ast.Mod():
                return _call("mod", left=left, right=right)
            case ast.Pow():
                if not _is_exponent(right):
                    self._refuse(node, f"an exponent is an integer from 0 to {_LARGEST_EXPONENT}")
                return ast.BinOp(left, node.op, right)
            case ast.Div():
                self._refuse(node, "a dimension is an integer; `//` divides and rounds down")
            case _:
                self._refuse(node, "of the operators, a dimension knows + - * // % and **")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            self._refuse(node, f"the functions of a dimension are {', '.join(_FUNCTIONS)}")
        if len(node.args) != 2 or node.keywords:
            self._refuse(node, f"`{node.func.id}` takes two dimensions")
        return _call(node.func.id, left=self.visit(node.args[0]), right=self.visit(node.args[1]))

    def _refuse(self, node: ast.AST, why: str) -> Never:
        raise SpecError(
            f"`{self._text}` is not a dimension.",
            path=self._text,
            where=f"`{ast.unparse(node)}`",
            why=why,
            fix=_FIX,
        )


def _is_exponent(node: ast.expr) -> bool:
    # Bounded, because users write the text and a power of constants is computed at once.
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int)
        and node.value <= _LARGEST_EXPONENT
    )


def _call(name: str, *, left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [left, right], [])
