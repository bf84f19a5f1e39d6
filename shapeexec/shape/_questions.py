"""What a function and JAX ask of sizes while it is traced, and the answers.

A question that only known sizes answer is decided at the sizes of the call at hand, and the answer
is a guard. What code computes from sizes becomes a number of the host. Tracing itself is not known
here.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import export

from shapeexec import _compat
from shapeexec._errors import InconclusiveShapeError, UnboundedDimError, named
from shapeexec.shape import _dim
from shapeexec.shape._guards import Guard, pin
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
from shapeexec.shape._substitution import Substitution

AnyGuard = Guard | HostGuard

# Operators that make a dim of dims and integers.
_OF_DIMS = frozenset("add sub mul floordiv mod divmod".split())
_OF_DIMS_BY_UFUNC = {
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
_ASSUMED_SIZE = 97  # tells of what kind a number is where there is no call


@dataclasses.dataclass(frozen=True)
class Need:
    """User code wanted a size as a Python value.

    Attributes:
        symbols: The call's symbols that the size is made of.
        what: `int`, `float` or `hash`.
        place: `path/file.py:12` of the code that wanted it.
    """

    symbols: frozenset[str]
    what: str
    place: str | None


@dataclasses.dataclass
class Questions:
    """The questions of one attempt to trace; hears what `_compat.listen_to_dims` tells.

    Attributes:
        sizes: The size of each symbol of the call; None: there is no call.
        substitution: What the call's symbols are in this attempt.
        guards: The answers, added to those of earlier attempts.
        heard: Where to put what would be true of the sizes and help JAX, had it known: what its
            own code compares, bounds and divides. None: nowhere.
        needs: Sizes that were wanted as Python values.
        kinds: What was computed on the host, and of what kind the results are.
        open: What JAX's core compared and answered as it does if nothing is known.
        numpy_dims: By id the dims that are numbers of NumPy's in the plain call, and what they are.
        quotients: By the expression of a true division of a dim by a positive int the two.
        has_ended: Whether the attempt is over. A number that user code kept, as `lru_cache` does,
            is from then on what plain code would have kept: its value.
    """

    sizes: Mapping[str, int] | None
    substitution: Substitution
    guards: dict[AnyGuard, None]
    heard: dict[Guard, None] | None = None
    needs: list[Need] = dataclasses.field(default_factory=list)
    kinds: dict[HostExpression, Any] = dataclasses.field(default_factory=dict)
    open: dict[Guard, None] = dataclasses.field(default_factory=dict)
    numpy_dims: dict[int, tuple[Any, HostExpression]] = dataclasses.field(default_factory=dict)
    quotients: dict[HostExpression, tuple[Any, int]] = dataclasses.field(default_factory=dict)
    has_ended: bool = False
    _compared: dict[Guard, None] = dataclasses.field(default_factory=dict)

    def decide(self, left: Any, op: str, right: Any, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        if op == "==":
            if isinstance(right, np.ndarray | np.generic):
                if right.ndim:
                    self.need(left, "hash", place)
                right = right.item()
            if not export.is_symbolic_dim(right):
                right = _as_int(right)
                if right is NotImplemented:
                    return right
            if _is_known(left - right):
                return None  # JAX's answer is right: they differ
        return self.ask(Guard(_dim.dim_text(left), op, _dim.dim_text(right), place))

    def ask(self, asked: Guard) -> bool:
        """Whether a comparison of the trace's own dims holds; the answer is a guard."""
        asked = dataclasses.replace(
            asked, left=self._outer(asked.left), right=self._outer(asked.right)
        )
        if self.sizes is None:
            raise InconclusiveShapeError(
                f"`{asked}` cannot be decided for all sizes.",
                symbols=asked.symbols,
                where=_compat.describe_line(asked.place),
                fix=f"{asked.deciding}, if that holds of all sizes; or {_as_ints(asked.symbols)}",
            )
        guard = asked.decided(self.sizes)
        self.guards.setdefault(guard)
        return guard.op == asked.op

    def need(self, dim: Any, what: str, place: str | None) -> Any:
        """See `_compat.DimListener`."""
        need = Need(_dim.symbols_of(self._outer(_dim.dim_text(dim))), what, place)
        if what == "str" and self.sizes is not None and not self.needs:
            # Its text tells sizes apart, as its hash does; but not in the text of an exception.
            self.pin(need)
            return str(_dim.evaluate(_dim.dim_text(dim), self.substitution.sizes(self.sizes)))
        if what != "str":
            self.needs.append(need)
        if what == "hash":
            raise TypeError(f"unhashable: the size `{dim}` is not known while tracing")
        return None

    def pin(self, need: Need) -> None:
        """Make the symbols of a need exact."""
        assert self.sizes is not None
        for symbol in sorted(need.symbols):
            guard = pin(symbol, self.sizes[symbol])
            self.guards.setdefault(dataclasses.replace(guard, place=need.place))

    def hear(self, left: Any, op: str, right: Any) -> None:
        """See `_compat.DimListener`."""
        if self.sizes is None:
            return
        if op in ("==", "<", "<=", ">", ">="):
            self._hear_comparison(left, op, right)
        if self.heard is None:
            return
        sizes = self.substitution.sizes(self.sizes)
        if op in ("max", "min"):
            asked = Guard(self._outer(_dim.dim_text(left)), ">=", self._outer(_dim.dim_text(right)))
            self.heard.setdefault(asked.decided(self.sizes))
        if op not in ("//", "%"):
            return
        if export.is_symbolic_dim(right):
            sign = (">=", "1") if _dim.evaluate(right, sizes) > 0 else ("<=", "-1")
            self.heard.setdefault(Guard(self._outer(_dim.dim_text(right)), *sign))
        elif isinstance(right, int) and right > 1:
            for symbol in _dim.symbols_of(left):
                remainder = sizes[symbol] % right
                text = f"mod({self._outer(symbol)}, {right})"
                self.heard.setdefault(Guard(text, "==", str(remainder), splits=True))

    def _hear_comparison(self, left: Any, op: str, right: Any) -> None:
        if not (isinstance(right, int) or export.is_symbolic_dim(right)):
            return
        asked = Guard(_dim.dim_text(left), op, _dim.dim_text(right))
        if asked in self._compared:
            return
        self._compared[asked] = None
        if op == "==" and _is_known(left - right):
            return
        guard = dataclasses.replace(
            asked, left=self._outer(asked.left), right=self._outer(asked.right)
        )
        self.open.setdefault(guard)
        if self.heard is not None and op == "==" and guard.holds(self.sizes or {}):
            self.heard.setdefault(guard)

    # Computing on the host

    def calculate(self, name: str, left: Any, right: Any) -> Any:
        """See `_compat.DimListener`."""
        if not self.numpy_dims and type(left) in _SIZES and type(right) in _SIZES:
            is_exact = name in _OF_DIMS  # the way of nearly all arithmetic that JAX does itself
        else:
            if not (is_operand(left) and is_operand(right)):
                return None
            is_exact = name in _OF_DIMS and all(map(self._is_size, (left, right)))
            if is_exact and any(map(self._is_number_of_numpy, (left, right))):
                return self._numpy_dim(*BINARY[name], left, right)
        if is_exact or any(isinstance(x, HostNumber) for x in (left, right)):
            return None if is_exact else NotImplemented
        if name in ("lshift", "rshift", "and", "pow"):
            dim = _as_dim(name, left, right)
            if dim is not None:
                return dim
        left, right = (int(x) if type(x) is bool else x for x in (left, right))
        if name in _OF_DIMS and all(map(self._is_size, (left, right))):
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
        if getattr(np, function.__name__, None) is not function:  # of which there may be several
            pattern = f"{function.__name__} at {id(function):x}"
        if options or method != "__call__":
            applied, pattern = functools.partial(applied, **options), f"{pattern}.{method}{options}"
        pattern = f"{escaped(pattern)}({', '.join('{}' for _ in operands)})"
        exact = _OF_DIMS_BY_UFUNC.get(function)
        if exact and method == "__call__" and not options and all(map(self._is_size, operands)):
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
        is_size = self._is_size(value) and all(map(self._is_size, elements))
        if exact is None or not is_size:
            return self._computed(expression)
        dim = exact([self._plain(x) for x in elements])
        return self._marked(dim, expression)

    def as_array(self, dim: Any, via: str) -> Any:
        """See `_compat.DimListener`."""
        _, expression = self.numpy_dims.get(id(dim), (None, None))
        if expression is None:
            if via == "argument":
                return None  # a size, which is data anyway
            expression = self._expression(dim)
        aval = _compat.aval_of_number(self._value(expression))
        return bind(HostOperand(expression, aval.dtype, (), via), weak_type=aval.weak_type)

    def is_of_numpy(self, dim: Any) -> bool:
        """See `_compat.DimListener`."""
        return id(dim) in self.numpy_dims

    def need_value(self, number: HostNumber, what: str) -> Any:
        """See `Computer`."""
        if self.has_ended:
            return _TOLD.get(what, lambda value: value)(number.value)
        if what in ("str", "repr", "format", "hash"):
            if not _compat.is_asked_by_user(3):
                return hash(number.expression) if what == "hash" else str(number.expression)
            self._pin(number.expression.symbols)
            return _TOLD.get(what, lambda value: value)(number.value)
        kind = "float" if what in ("float", "complex") else "int"
        self.needs.append(Need(number.expression.symbols, kind, _compat.user_place()))
        raise TypeError(f"the {what} of `{number.expression}` is not known while tracing")

    @functools.cached_property
    def _values(self) -> HostValues:
        if self.sizes is not None:
            return HostValues(self.sizes)
        return HostValues(_AnySize())

    def _value(self, expression: HostExpression) -> Any:
        """The value of an expression at the sizes of the call; how it ends is remembered."""
        try:
            value = self._values.of(expression)
        except Exception as error:
            if self.sizes is None:
                told = f"`{expression}` raises {type(error).__name__} at some sizes."
                raise _undecided(told, expression) from error
            place = _compat.user_place()
            self.guards.setdefault(HostGuard(expression, type(error), place))
            raise
        self.kinds.setdefault(expression, kind_of(value))
        return value

    def _computed(self, expression: HostExpression) -> Any:
        """What code gets that computes an expression."""
        value = self._value(expression)
        if isinstance(value, bool | np.bool_):
            if self.sizes is None:
                told = f"`{expression}` cannot be decided for all sizes."
                raise _undecided(told, expression)
            self.guards.setdefault(HostGuard(expression, bool(value), _compat.user_place()))
            return value
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            self._computed(HostExpression(np.array_equal, (expression, value), "{} is {}"))
            return value
        number = number_of(self, expression, value)
        if number is not None:
            return number
        if isinstance(value, tuple):
            return tuple(
                self._computed(HostExpression(operator.itemgetter(i), (expression,), f"{{}}[{i}]"))
                for i in range(len(value))
            )
        self._pin(expression.symbols)  # a text, or bytes: what it is tells sizes apart
        return value

    def _pin(self, symbols: frozenset[str]) -> None:
        if self.sizes is not None:
            self.pin(Need(symbols, "str", _compat.user_place()))

    def _as_operands(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(map(self._expression, operands))

    def _expression(self, operand: Any) -> Any:
        """The expression of a dim or a number; any other operand is a constant."""
        operand = _without_ended(operand)
        if isinstance(operand, HostNumber):
            return operand.expression
        if not export.is_symbolic_dim(operand):
            # User code may go on to change an array.
            return operand.copy() if isinstance(operand, np.ndarray) else operand
        if id(operand) in self.numpy_dims:
            return self.numpy_dims[id(operand)][1]
        return of_dim(self._outer(_dim.dim_text(operand)))

    # Dims that are numbers of NumPy's

    def _is_size(self, x: Any) -> bool:
        """Whether it is a dim or an integer, of Python or NumPy."""
        return type(x) is int or isinstance(x, np.integer) or export.is_symbolic_dim(x)

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
        """What NumPy's arithmetic makes of dims: a dim, for a shape, that is also its number."""
        dim = (exact or function)(*map(self._plain, operands))
        expression = HostExpression(function, self._as_operands(operands), pattern)
        if not isinstance(dim, tuple):
            return self._marked(dim, expression)
        return tuple(
            self._marked(one, HostExpression(operator.itemgetter(i), (expression,), f"{{}}[{i}]"))
            for i, one in enumerate(dim)
        )

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

    def _outer(self, text: str) -> str:
        return text if not self.substitution.outer else self.substitution.outward(text).text


_TOLD: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "repr": repr,
    "hash": hash,
    "int": int,
    "index": operator.index,
    "float": float,
    "complex": complex,
}
_SIZES = frozenset((int, _compat.JaxDim))
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "prod": math.prod,
    "sum": sum,
    **dict.fromkeys(("max", "amax"), max),
    **dict.fromkeys(("min", "amin"), min),
}


class _AnySize(dict[str, int]):
    """Some size for each symbol, where no call says which."""

    def __missing__(self, symbol: str) -> int:
        return _ASSUMED_SIZE

    def __contains__(self, symbol: object) -> bool:
        return True


def _without_ended(operand: Any) -> Any:
    """What an operand is to another trace than its own: code may have kept it since."""
    is_ended = isinstance(operand, HostNumber) and operand.has_ended
    return operand.value if is_ended else operand


def _undecided(told: str, expression: HostExpression) -> InconclusiveShapeError:
    where, symbols = _compat.describe_line(_compat.user_place()), expression.symbols
    return InconclusiveShapeError(told, symbols=symbols, where=where, fix=_as_ints(symbols))


def _as_ints(symbols: frozenset[str]) -> str:
    return f"give the size of {named(symbols)} as an int in the place of the symbol"


def _with_list(function: Any, args: Any, options: Mapping[str, Any], *elements: Any) -> Any:
    return function(elements, *args, **options)


def _as_dim(name: str, left: Any, right: Any) -> Any:
    """What an operator of integers makes of a dim and a constant, where that is a dim."""
    is_constant = type(right) is int and right >= 0 and export.is_symbolic_dim(left)
    if not is_constant:
        left, right = (right, left) if name == "and" else (left, right)
        if name != "and" or type(right) is not int or right < 0:
            return None
    if name == "and":
        return left % (right + 1) if right & (right + 1) == 0 else None
    if name == "pow":
        return math.prod([left] * right) if right <= _LARGEST_POWER else None
    if right > _MOST_SHIFTED:
        return None
    return left * 2**right if name == "lshift" else left // 2**right


def _is_known(difference: Any) -> bool:
    """Whether two dims with this difference are equal at all sizes, or at none."""
    if not export.is_symbolic_dim(difference):
        return True
    for bound, sign in ((_dim.minimum, 1), (_dim.maximum, -1)):
        try:
            if sign * bound(difference, {}) > 0:
                return True
        except UnboundedDimError:
            continue
    return False


def _as_int(value: Any) -> Any:
    """The int that `value` equals; NotImplemented if there is none.

    With NotImplemented a JAX array compares itself with the size, as it does with an int.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else NotImplemented
    if hasattr(value, "shape") or isinstance(value, HostNumber):
        return NotImplemented
    index: Any = getattr(value, "__index__", None)
    return NotImplemented if index is None else index()
