"""Arithmetic on symbolic sizes while a function is traced.

Sums, products and quotients of dims and integers stay dims. Everything else is computed on the
host: the result is a `HostNumber`, whose expression is evaluated again at the sizes of each call.
Comparisons of dims are in `_questions`; tracing itself is in `_attempt`.
"""

# `operator.floordiv` and NumPy's types have unknown type parameters.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError
from shapeexec.shape import _dim
from shapeexec.shape._host import (
    HostExpression,
    HostGuard,
    HostOperand,
    HostValues,
    escaped,
    kind_of,
    of_dim,
)
from shapeexec.shape._numbers import BINARY, COMPARISONS, HostNumber, bind, is_operand, number_of
from shapeexec.shape._questions import Need, Questions, as_ints

# Operators that make a dim of dims and integers.
_DIM_ARITHMETIC = frozenset("add sub mul floordiv mod divmod".split())
_DIM_ARITHMETIC_BY_UFUNC: dict[Any, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.negative: operator.neg,
    np.positive: operator.pos,
}
_LARGEST_POWER = 16  # of a size that is a dim: JAX multiplies it out
_MOST_SHIFTED = 64
_LONG_ENOUGH = 8  # bytes of an integer that no array's size exceeds
_ASSUMED_SIZE = 97  # where there is no call, a number has the kind that it has at this size


@dataclasses.dataclass
class Listener:
    """The `_compat.DimListener` and `Computer` of one attempt to trace a function.

    Attributes:
        questions: Answers comparisons.
        kinds: The type, dtype and shape of each result that was computed on the host.
        numpy_dims: By id, each dim that is a NumPy number in the plain call, and its expression.
        quotients: By the expression of a true division of a dim by a positive int, both operands.
        has_ended: Whether the attempt is over. A number that user code kept, as `lru_cache` does,
            is its value from then on, which is what plain code would have kept.
    """

    questions: Questions
    kinds: dict[HostExpression, Any] = dataclasses.field(default_factory=dict[HostExpression, Any])
    numpy_dims: dict[int, tuple[Any, HostExpression]] = dataclasses.field(
        default_factory=dict[int, tuple[Any, HostExpression]]
    )
    quotients: dict[HostExpression, tuple[Any, int]] = dataclasses.field(
        default_factory=dict[HostExpression, tuple[Any, int]]
    )
    has_ended: bool = False

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        return self.questions.decide(left, op, right, place)

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        return self.questions.need(dim, what, place)

    def hear(self, left: Any, op: str, right: Any) -> None:
        """See `_compat.DimListener`."""
        self.questions.hear(left, op, right)

    def calculate(self, name: str, left: Any, right: Any) -> Any:
        """See `_compat.DimListener`."""
        if not self.numpy_dims and type(left) in _SIZES and type(right) in _SIZES:
            is_exact = name in _DIM_ARITHMETIC  # nearly all of JAX's own arithmetic ends here
        else:
            if not (is_operand(left) and is_operand(right)):
                return None
            is_exact = name in _DIM_ARITHMETIC and _is_size(left) and _is_size(right)
            if is_exact and any(map(self._is_number_of_numpy, (left, right))):
                return self._numpy_dim(*BINARY[name], left, right)
        if is_exact or any(isinstance(x, HostNumber) for x in (left, right)):
            return None if is_exact else NotImplemented
        if name in ("lshift", "rshift", "and", "pow"):
            dim = _as_dim(name, left, right)
            if dim is not None:
                return dim
        left, right = (int(x) if type(x) is bool else x for x in (left, right))
        if name in _DIM_ARITHMETIC and _is_size(left) and _is_size(right):
            return BINARY[name][0](left, right)
        made = self.compute(*BINARY[name], left, right)
        is_quotient = name == "truediv" and type(left) is _compat.JaxDim and type(right) is int
        if is_quotient and right > 0 and not self.is_of_numpy(left):
            self.quotients[made.expression] = (left, right)
        return made

    def compare(self, name: str, left: Any, right: Any) -> Any:
        """See `_compat.DimListener`."""
        if isinstance(right, HostNumber) or not is_operand(right):
            return NotImplemented
        return self.compute(*COMPARISONS[name.strip("_")], left, right)

    def compute(self, function: Callable[..., Any], pattern: str, *operands: Any) -> Any:
        """See `_compat.DimListener`, and `Computer`."""
        if self.has_ended:
            return function(*map(_without_ended, operands))
        if function in (math.floor, math.ceil) and isinstance(operands[0], HostNumber):
            dim, divisor = self.quotients.get(operands[0].expression, (None, 1))
            if dim is not None:  # f64 rounds no quotient of a size across an integer
                return dim // divisor if function is math.floor else -(-dim // divisor)
        return self._computed(HostExpression(function, self._as_operands(operands), pattern))

    def call_method(self, number: Any, name: str, args: Any, options: Any) -> Any:
        """See `_compat.DimListener`, and `Computer`."""
        method = operator.methodcaller(name, *args, **options)
        given = escaped(f"{args}{options or ''}")
        return self.compute(method, f"{{}}.{name}{given}", number)

    def ufunc(
        self, function: Any, method: str, operands: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """See `_compat.DimListener`."""
        if not all(map(is_operand, operands)) or "out" in options:
            return NotImplemented
        applied, pattern = getattr(function, method), f"np.{function.__name__}"
        if getattr(np, function.__name__, None) is not function:
            # Several ufuncs outside of NumPy may have one name.
            pattern = f"{function.__name__} at {id(function):x}"
        if options or method != "__call__":
            applied, pattern = functools.partial(applied, **options), f"{pattern}.{method}{options}"
        pattern = f"{escaped(pattern)}({', '.join('{}' for _ in operands)})"
        exact = _DIM_ARITHMETIC_BY_UFUNC.get(function)
        if exact and method == "__call__" and not options and all(map(_is_size, operands)):
            return self._numpy_dim(applied, pattern, *operands, exact=exact)
        return self.compute(applied, pattern, *operands)

    def reduce(
        self, function: Any, elements: Sequence[Any], args: Any, options: Mapping[str, Any]
    ) -> Any:
        """See `_compat.DimListener`."""
        if not all(map(is_operand, elements)):
            return function(elements, *args, **options)
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())]
        of_list = f"({', '.join('{}' for _ in elements)})"
        expression = HostExpression(
            functools.partial(_with_list, function, args, options),
            self._as_operands(elements),
            f"np.{function.__name__}({', '.join([of_list, *map(escaped, given)])})",
        )
        exact = None if args or options.keys() - {"dtype"} else _REDUCTIONS.get(function.__name__)
        value = self._value(expression)
        if exact is None or not (_is_size(value) and all(map(_is_size, elements))):
            return self._computed(expression)
        dim = exact([self._plain(x) for x in elements])
        return self._marked(dim, expression)

    def as_array(self, dim: Any, via: str) -> Any:
        """See `_compat.DimListener`."""
        _, expression = self.numpy_dims.get(id(dim), (None, None))
        if expression is None:
            if via == "argument":
                return None  # JAX makes a size data itself
            expression = self._expression(dim)
        aval = _compat.aval_of_number(self._value(expression))
        return bind(HostOperand(expression, aval.dtype, (), via), weak_type=aval.weak_type)

    def is_of_numpy(self, dim: Any) -> bool:
        """See `_compat.DimListener`."""
        return id(dim) in self.numpy_dims

    def need_value(self, number: HostNumber, what: str) -> Any:
        """See `Computer`."""
        if self.has_ended:
            return _CONVERSIONS.get(what, _itself)(number.value)
        if what in ("str", "repr", "format", "hash"):
            if not _compat.is_asked_by_user(3):
                return hash(number.expression) if what == "hash" else str(number.expression)
            self._pin(number.expression.symbols)
            return _CONVERSIONS.get(what, _itself)(number.value)
        kind = "float" if what in ("float", "complex") else "int"
        self.questions.needs.append(Need(number.expression.symbols, kind, _compat.user_place()))
        # Python's conversions, such as int(), expect a TypeError of what they cannot convert.
        raise TypeError(f"the {what} of `{number.expression}` is not known while tracing")

    @functools.cached_property
    def _values(self) -> HostValues:
        sizes = self.questions.sizes
        return HostValues(_AnySize() if sizes is None else sizes)

    def _value(self, expression: HostExpression) -> Any:
        """The value of an expression at the sizes of the call; an exception becomes a guard."""
        try:
            value = self._values.of(expression)
        except Exception as error:  # user code may raise anything, and the caller gets it unchanged
            if self.questions.sizes is None:
                what = f"`{expression}` raises {type(error).__name__} at some sizes."
                raise _undecided(what, expression) from error
            self._guard(expression, type(error))
            raise
        self.kinds.setdefault(expression, kind_of(value))
        return value

    def _computed(self, expression: HostExpression) -> Any:
        """The result of an expression, as the code that computes it gets it."""
        value = self._value(expression)
        if type(value) in (bool, np.bool_):
            if self.questions.sizes is None:
                raise _undecided(f"`{expression}` cannot be decided for all sizes.", expression)
            self._guard(expression, bool(value))
            return value
        if _is_array_of_bools(value):
            self._computed(HostExpression(np.array_equal, (expression, value), "{} is {}"))
            return value
        number = number_of(self, expression, value=value)
        if number is not None:
            return number
        if isinstance(value, tuple):
            return tuple(self._computed(_item(expression, i)) for i in range(len(_items(value))))
        self._pin(expression.symbols)  # a string, or bytes, is another one at each size
        return value

    def _guard(self, expression: HostExpression, outcome: Any) -> None:
        guard = HostGuard(expression, outcome, _compat.user_place())
        self.questions.guards.setdefault(guard)

    def _pin(self, symbols: frozenset[str]) -> None:
        if self.questions.sizes is not None:
            self.questions.pin(Need(symbols, "str", _compat.user_place()))

    def _as_operands(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(self._expression, operands))

    def _expression(self, operand: Any) -> Any:
        """The expression of a dim or a host number; any other operand is a constant."""
        operand = _without_ended(operand)
        if isinstance(operand, HostNumber):
            return operand.expression
        if not export.is_symbolic_dim(operand):
            # User code may change an array later.
            return operand.copy() if type(operand) is np.ndarray else operand
        if id(operand) in self.numpy_dims:
            return self.numpy_dims[id(operand)][1]
        return of_dim(self.questions.outer(_dim.dim_text(operand)))

    # Dims that are NumPy numbers in the plain call

    def _is_number_of_numpy(self, x: Any) -> bool:
        if export.is_symbolic_dim(x):
            return id(x) in self.numpy_dims
        return isinstance(x, np.integer) and _compat.is_asked_by_user(4)

    def _plain(self, x: Any) -> Any:
        if export.is_symbolic_dim(x):
            return _compat.copy_of_dim(x) if id(x) in self.numpy_dims else x
        return int(x)

    def _numpy_dim(
        self,
        function: Callable[..., Any],
        pattern: str,
        *operands: Any,
        exact: Callable[..., Any] | None = None,
    ) -> Any:
        """The dim that NumPy arithmetic on dims gives, for a shape; its expression is kept, too."""
        dim = (exact or function)(*map(self._plain, operands))
        expression = HostExpression(function, self._as_operands(operands), pattern)
        if not isinstance(dim, tuple):
            return self._marked(dim, expression)
        pairs = enumerate(_items(dim))
        return tuple(self._marked(one, _item(expression, i)) for i, one in pairs)

    def _marked(self, dim: Any, expression: HostExpression) -> Any:
        value = self._value(expression)
        if not export.is_symbolic_dim(dim):
            return value  # it is the same at all sizes
        if value.dtype.itemsize < _LONG_ENOUGH:  # uint8 makes 44 of 300
            operands = (expression, self._expression(dim))
            if not self._computed(HostExpression(operator.eq, operands, "{} == {}")):
                return self._computed(expression)
        dim = _compat.copy_of_dim(dim)
        self.numpy_dims[id(dim)] = (dim, expression)
        return dim


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "repr": repr,
    "hash": hash,
    "int": int,
    "index": operator.index,
    "float": float,
    "complex": complex,
}
_SIZES = frozenset[Any]((int, _compat.JaxDim))
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "prod": math.prod,
    "sum": sum,
    **dict.fromkeys(("max", "amax"), max),
    **dict.fromkeys(("min", "amin"), min),
}


class _AnySize(dict[str, int]):
    """One assumed size for every symbol, where there is no call."""

    def __missing__(self, symbol: str) -> int:
        return _ASSUMED_SIZE

    def __contains__(self, symbol: object) -> bool:
        return True


def _itself(value: Any) -> Any:
    return value


def _items(values: Any) -> Sequence[Any]:
    return values


def _item(expression: HostExpression, index: int) -> HostExpression:
    """The expression of one element of a tuple."""
    return HostExpression(operator.itemgetter(index), (expression,), f"{{}}[{index}]")


def _is_size(x: Any) -> bool:
    """Whether it is a dim or an integer, of Python or NumPy."""
    return type(x) is int or isinstance(x, np.integer) or export.is_symbolic_dim(x)


def _is_array_of_bools(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype == np.bool_


def _without_ended(operand: Any) -> Any:
    """An operand; its value, if it is a host number that code kept from an earlier trace."""
    is_ended = isinstance(operand, HostNumber) and operand.has_ended
    return operand.value if is_ended else operand


def _undecided(what: str, expression: HostExpression) -> InconclusiveShapeError:
    where, symbols = _compat.describe_line(_compat.user_place()), expression.symbols
    return InconclusiveShapeError(what, symbols=symbols, where=where, fix=as_ints(symbols))


def _with_list(function: Any, args: Any, options: Mapping[str, Any], *elements: Any) -> Any:
    return function(elements, *args, **options)


def _as_dim(name: str, left: Any, right: Any) -> Any:
    """The dim that `<<`, `>>`, `&` or `**` of a dim and a constant is; None: it is not a dim."""
    is_constant = type(right) is int and right >= 0 and export.is_symbolic_dim(left)
    if not is_constant:
        left, right = (right, left) if name == "and" else (left, right)
        if name != "and" or type(right) is not int or right < 0:
            return None
    if name == "and":
        return cast(Any, left) % (right + 1) if right & (right + 1) == 0 else None
    if name == "pow":
        return math.prod([left] * right) if right <= _LARGEST_POWER else None
    if right > _MOST_SHIFTED:
        return None
    return left * 2**right if name == "lshift" else left // 2**right
