"""The methods of JAX's dims while a listener is active.

Functions that take dims are in `functions`.
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dis
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from jax._src.export import shape_poly as _shape_poly
from jax._src.export.shape_poly import _DimExpr
from jax.errors import InconclusiveDimensionOperation

from shapeexec._compat.dims.listening import (
    DimListener,
    Patches,
    listener_of,
    listening_to,
    memo_key,
    remembered,
    terms_of,
)
from shapeexec._compat.places import asked_by, conversion_asked

_COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_BOUNDS = {"max": "max", "rmax": "max", "min": "min", "rmin": "min"}
# By operator of a division of JAX's dims the operator that listeners hear.
_DIVISIONS = {"floordiv": "//", "mod": "%", "divmod": "//"}
_ARITHMETIC = "add sub mul truediv floordiv mod divmod pow lshift rshift and or xor".split()
ORIGINAL: dict[str, Any] = {
    name: getattr(_DimExpr, name, None)
    for name in (
        *("__eq__", "__ne__", "__hash__", "__str__", "__repr__", "__int__"),
        *("__jax_array__", "dimension_as_value"),
        *_COMPARISONS,
        *_BOUNDS,
        *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")),
    )
}


def _is_calling(frame: Any) -> bool:
    """Whether a frame is at a call, and at no comparison.

    JAX's caches compare shapes and static arguments, now and then with a key of another hash, in
    C++ code: then the frame is that of the call of a cached function. Nothing is asked there.
    """
    code = frame.f_code.co_code
    return dis.opname[code[frame.f_lasti]].startswith(("CALL", "PRECALL"))


def _asked_equal(left: Any, right: Any) -> Any:
    listener = listener_of(left, right)
    if listener is None:
        return None
    origin, place = asked_by(3)
    if origin != "user" and _is_calling(sys._getframe(2)):
        return None
    if origin == "internal":
        listener.hear(left, "==", right)
        return None
    return listener.decide(left, "==", right, place)


def _is_equal(left: Any, right: Any) -> bool:
    """The answer of JAX to `==`."""
    if left is right:
        return True
    return remembered(listening_to(left, right), "==", left, right, function=ORIGINAL["__eq__"])


def _eq(self: Any, other: Any) -> Any:
    if _is_equal(self, other):
        return True
    answer = _asked_equal(self, other)
    return False if answer is None else answer


def _ne(self: Any, other: Any) -> Any:
    if _is_equal(self, other):
        return False
    answer = _asked_equal(self, other)
    return answer if answer is NotImplemented else not answer


def _bool(self: Any) -> bool:
    is_zero = _asked_equal(self, 0)
    return True if is_zero is None else not is_zero


def _ordered(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, int | np.integer | _DimExpr):
            listener = listener_of(self)
            return NotImplemented if listener is None else listener.compare(name, self, other)
        try:
            listening = listening_to(self, other)
            return remembered(listening, name, self, other, function=ORIGINAL[name])
        except InconclusiveDimensionOperation:
            listener = listener_of(self, other)
            if listener is None:
                raise
            origin, place = asked_by(2)
            if origin == "internal":  # JAX's core may have an answer to the exception
                listener.hear(self, _COMPARISONS[name], other)
                raise
            answer = listener.decide(self, _COMPARISONS[name], other, place)
            if answer is None:
                raise
            return answer

    return compare


def _bounded(name: str) -> Callable[[Any, Any], Any]:
    def bound(self: Any, other: Any) -> Any:
        listening = listening_to(self, other)
        if listening is not None:
            listening.listener.hear(self, _BOUNDS[name], other)
        return remembered(listening, name, self, other, function=ORIGINAL[name])

    return bound


def _arithmetic(name: str, side: str) -> Callable[..., Any]:
    original = ORIGINAL[f"__{side}{name}__"]
    question = f"__{side}{name}__"

    def operate(self: Any, other: Any) -> Any:
        listening = listening_to(self, other)
        if listening is None:
            return NotImplemented if original is None else original(self, other)
        key = memo_key(question, self, other)
        if key in listening.memo:
            return listening.memo[key][2]
        left, right = (other, self) if side else (self, other)
        if name in _DIVISIONS:
            _heard_division(listening.listener, left, _DIVISIONS[name], right)
        result = listening.listener.calculate(name, left, right)
        if result is not None or original is None:
            return NotImplemented if result is None else result
        if key is None and isinstance(other, np.integer):
            other = int(other)  # JAX makes the same of it
            key = memo_key(question, self, other)
            if key in listening.memo:
                return listening.memo[key][2]
        if name == "floordiv" and not side and isinstance(other, int) and other != 0:
            result = _quotient(-self, -other) if other < 0 else _quotient(self, other)
        else:
            result = original(self, other)
        # Whether a divisor is 0 is for user code to ask each time.
        if key is None or (name in _DIVISIONS and type(right) is _DimExpr):
            return result
        return listening.remember(key, self, other, result)

    return operate


def _heard_division(listener: DimListener, left: Any, op: str, right: Any) -> None:
    if isinstance(left, _DimExpr):
        listener.hear(left, op, right)
    if isinstance(right, _DimExpr):
        origin, place = asked_by(3)
        if origin != "internal" and listener.decide(right, "==", 0, place):
            # As the plain call does, whose size is an int.
            raise ZeroDivisionError("integer division or modulo by zero")


def _quotient(dim: Any, divisor: int) -> Any:
    """`dim // divisor` in one form, however it is written, so that JAX finds equal quotients equal.

    `-(-s // 2)`, `(s - 1) // 2 + 1` and `(s + 1) // 2` are all the last one, and a quotient of a
    quotient is one, so that strided layers do not nest.
    """
    if not isinstance(dim, _DimExpr):
        return dim // divisor
    if divisor == 1:
        return dim
    (term, count), *others = terms_of(dim)
    if count < 0:
        return -_quotient(divisor - 1 - dim, divisor)
    constant = next((n for other, n in others if other.is_constant), 0)
    factor = term.to_factor()
    if count == 1 and factor is not None and factor.operation == _FLOORDIV:
        inner, by = factor.operands
        by = _DimExpr._to_constant(by)
        if len(others) == (constant != 0) and by is not None and by > 0:
            return _quotient(inner + constant * by, divisor * by)
    whole = constant // divisor
    return ORIGINAL["__floordiv__"](dim - whole * divisor, divisor) + whole


_FLOORDIV = _shape_poly._DimFactor.FLOORDIV


def _method_of_int(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        listener = listener_of(self)
        if listener is None:
            # Nobody listens: a dim has this attribute no more than without shapeexec.
            raise AttributeError(f"'_DimExpr' object has no attribute {name!r}")
        return listener.call_method(self, name, args, options)

    return method


def _astype(self: Any) -> Any:
    """In JAX's own code `np.max` of a shape is a number of NumPy's, which an int is not."""
    listener = listener_of(self)
    if listener is None or asked_by(3)[0] == "user":  # beneath `_getattribute`
        # An int has none: `hasattr` of user code must say so.
        raise AttributeError("'_DimExpr' object has no attribute 'astype'")

    def astype(dtype: Any) -> Any:
        kind = np.dtype(dtype)
        return listener.compute(kind.type, f"np.{kind}({{}})", self)

    return astype


def _round(self: Any, digits: int | None = None) -> Any:
    listener = listener_of(self)
    if listener is None or digits is None or digits >= 0:
        return self
    return listener.compute(round, "round({}, {})", self, digits)


def _jax_array(self: Any) -> Any:
    listener = listener_of(self)
    value = None if listener is None else listener.as_array(self, conversion_asked())
    return ORIGINAL["__jax_array__"](self) if value is None else value


def _dimension_as_value(self: Any) -> Any:
    listener = listener_of(self)
    value = None if listener is None else listener.as_array(self, "argument")
    return ORIGINAL["dimension_as_value"](self) if value is None else value


def _array_ufunc(self: Any, function: Any, method: str, *operands: Any, **options: Any) -> Any:
    listener = listener_of(self)
    if listener is None or asked_by(2)[0] == "internal":
        boxed = [_boxed(x) if isinstance(x, _DimExpr) else x for x in operands]
        return getattr(function, method)(*boxed, **options)
    return listener.ufunc(function, method, operands, options)


def _boxed(dim: Any) -> np.ndarray:
    box = np.empty((), object)
    box[()] = dim
    return box


def _needed(dim: Any, what: str) -> Any:
    listener = listener_of(dim)
    if listener is None:
        return None
    origin, place = asked_by(3)
    return listener.need(dim, what, place) if origin == "user" else None


_hash_of = vars(_DimExpr)["_hash"].__get__


def _hash(self: Any) -> int:
    listener = listener_of(self)
    if listener is not None:
        origin, place = asked_by(2)
        if origin == "user":
            listener.need(self, "hash", place)
        frame = sys._getframe(1)
        if frame.f_code.co_code[frame.f_lasti] == _SET_ADD:
            for other in _dims_beside(frame):
                listener.hear(self, "==", other)
    return _hash_of(self) or ORIGINAL["__hash__"](self)


_SET_ADD = dis.opmap["SET_ADD"]


def _dims_beside(frame: Any) -> list[Any]:
    """The dims of the arrays in a frame that puts shapes in a set: so JAX compares them, too."""
    known = [*frame.f_locals.values()]
    if frame.f_code.co_name == "<setcomp>":
        known += frame.f_back.f_locals.values()
    arrays = [x for value in known if isinstance(value, list | tuple) for x in value]
    return [dim for x in (*known, *arrays) for dim in getattr(x, "shape", ())]


def _str(self: Any) -> str:
    text = _needed(self, "str")
    return text_of(self) if text is None else text


def text_of(dim: Any) -> str:
    """How JAX prints a dim."""
    return remembered(
        listening_to(dim), "str", dim, 0, function=lambda dim, _: ORIGINAL["__str__"](dim)
    )


def _format(self: Any, spec: str) -> str:
    text = _needed(self, "str")
    if text is None:
        return format(text_of(self), spec)
    return format(int(text), spec)


def _int(self: Any) -> int:
    _needed(self, "int")
    return ORIGINAL["__int__"](self)


def _index(self: Any) -> int:
    _needed(self, "int")
    # As Python raises for an object without `__index__`.
    raise TypeError("'_DimExpr' object cannot be interpreted as an integer")


def _float(self: Any) -> float:
    _needed(self, "float")
    # As `float` raises for an object without `__float__`.
    raise TypeError("float() argument must be a real number, not '_DimExpr'")


def _getattribute(self: Any, name: str) -> Any:
    if name == "__class__" and asked_by(2)[0] == "user":
        return int  # `isinstance(size, int)` is True in the plain call
    return object.__getattribute__(self, name)


# What an int can do and JAX's dims cannot.


def _abs(self: Any) -> Any:
    return self if self >= 0 else -self


_DIM_METHODS: dict[str, Any] = {
    "__eq__": _eq,
    "__ne__": _ne,
    "__hash__": _hash,
    "__bool__": _bool,
    "__str__": _str,
    "__repr__": _str,
    "__format__": _format,
    "__int__": _int,
    "__index__": _index,
    "__float__": _float,
    "__getattribute__": _getattribute,
    **{f"__{s}{name}__": _arithmetic(name, s) for name in _ARITHMETIC for s in ("", "r")},
    "__abs__": _abs,
    "__pos__": lambda self: self,
    "__invert__": lambda self: -self - 1,
    "__round__": _round,
    **{f"__{name}__": lambda self: self for name in ("ceil", "floor", "trunc")},
    "__array_ufunc__": _array_ufunc,
    "__jax_array__": _jax_array,
    "dimension_as_value": _dimension_as_value,
    **{name: _ordered(name) for name in _COMPARISONS},
    **{name: _bounded(name) for name in _BOUNDS},
    "real": property(lambda self: self),
    "imag": property(lambda self: 0),
    "numerator": property(lambda self: self),
    "denominator": property(lambda self: 1),
    "conjugate": lambda self: self,
    "astype": property(_astype),
    **{
        name: _method_of_int(name)
        for name in "as_integer_ratio bit_count bit_length is_integer to_bytes".split()
        if hasattr(int, name)
    },
}
PATCHES: Patches = {
    (_DimExpr, name): (new, ORIGINAL.get(name)) for name, new in _DIM_METHODS.items()
}
