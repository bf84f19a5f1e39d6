"""Host numbers: numbers that a traced function computes from sizes, in Python or NumPy.

They behave like Python's and NumPy's numbers. Each has an expression, and its value at the sizes of
the call that is traced. Arithmetic gives further host numbers, a comparison is answered and becomes
a guard, and JAX operations take one as a scalar, through the primitive `host_value`. A `Computer`
does the arithmetic.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import jax
import numpy as np

from shapeexec import _compat
from shapeexec.shape import _trees
from shapeexec.shape._host import HostExpression, HostOperand, escaped


class Computer(Protocol):
    """Computes with sizes during one attempt to trace."""

    has_ended: bool

    def compute(self, function: Callable[..., Any], pattern: str, *operands: Any) -> Any:
        """Apply `function` to numbers, sizes and constants: a `HostNumber`, or a bool."""
        ...

    def call_method(self, number: Any, name: str, args: Any, options: Any) -> Any:  # noqa: PLR0917 - Python passes them so
        """Call a method of a number."""
        ...

    def need_value(self, number: "HostNumber", what: str) -> Any:
        """Convert a number to a Python value: its `int`, `float`, `str` or `hash`."""
        ...

    def ufunc(self, function: np.ufunc, method: str, operands: Any, options: Any) -> Any:  # noqa: PLR0917 - Python passes them so
        """Apply a NumPy ufunc to numbers and sizes."""
        ...


class HostNumber:
    """A number that code computed from sizes.

    Args:
        computer: Does its arithmetic.
        expression: Computes the value from sizes.
        value: Its value at the sizes of the call that is traced.
    """

    __slots__ = ("_computer", "expression", "value")
    __array_priority__ = 1001  # more than JAX's dims have

    def __init__(self, computer: Computer, expression: HostExpression, *, value: Any) -> None:
        self._computer, self.expression, self.value = computer, expression, value

    @property
    def computer(self) -> Computer:
        """Does its arithmetic."""
        return self._computer

    @property
    def has_ended(self) -> bool:
        """Whether its trace has ended: then only its value counts, in another trace, too."""
        return self._computer.has_ended

    @property
    def aval(self) -> Any:
        """Its abstract value for JAX."""
        return _compat.aval_of_number(self.value)

    def as_array(self, via: str = "argument") -> Any:
        """The number as an array in the function that is traced."""
        if self.has_ended:
            return jax.numpy.asarray(self.value)
        aval = self.aval
        operand = HostOperand(self.expression, aval.dtype, tuple(aval.shape), via)
        return bind(operand, weak_type=aval.weak_type)

    def __jax_array__(self) -> Any:
        return self.as_array(_compat.conversion_asked())

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **options: Any) -> Any:
        return self._computer.ufunc(function, method, operands, options)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the number: `real`, or a method such as `is_integer`."""
        if name.startswith("__") or not hasattr(self.value, name):
            # As Python raises for a number without the attribute.
            raise AttributeError(f"{type(self.value).__name__!r} object has no attribute {name!r}")
        if not callable(getattr(self.value, name)):
            return self._computer.compute(operator.attrgetter(name), f"{{}}.{name}", self)

        def method(*args: Any, **options: Any) -> Any:
            return self._computer.call_method(self, name, args, options)

        return method

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__" and _compat.is_asked_by_user(2):
            value = object.__getattribute__(self, "value")
            return cast(Any, type(value))  # for `isinstance(n / 2, float)`
        return object.__getattribute__(self, name)

    def __bool__(self) -> bool:
        return self._computer.compute(bool, "bool({})", self)

    def __hash__(self) -> int:
        return self._computer.need_value(self, "hash")

    def __str__(self) -> str:
        return self._computer.need_value(self, "str")

    def __repr__(self) -> str:
        return self._computer.need_value(self, "repr")

    def __format__(self, spec: str) -> str:
        return format(self._computer.need_value(self, "format"), spec)

    def __int__(self) -> int:
        return self._computer.need_value(self, "int")

    def __index__(self) -> int:
        return self._computer.need_value(self, "index")

    def __float__(self) -> float:
        return self._computer.need_value(self, "float")

    def __complex__(self) -> complex:
        return self._computer.need_value(self, "complex")


class HostInt(HostNumber):
    """A host number that is a Python int."""


class HostFloat(HostNumber):
    """A host number that is a Python float."""


class HostComplex(HostNumber):
    """A host number that is a Python complex number."""


class HostArray(HostNumber):
    """A host number that is a NumPy scalar or array, whose dtype is not weak."""

    @property
    def dtype(self) -> Any:
        """Its dtype in JAX."""
        return self.aval.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, which no size changes."""
        return tuple(np.shape(self.value))

    @property
    def ndim(self) -> int:
        """Its rank."""
        return np.ndim(self.value)

    def __getitem__(self, index: Any) -> Any:
        if any(isinstance(part, HostNumber) or _compat.is_traced(part) for part in _parts(index)):
            # The type that Python raises for an index that it cannot use.
            raise TypeError(f"`{self.expression}` is indexed by a value that tracing does not know")
        return self._computer.compute(operator.itemgetter(index), f"{{}}[{escaped(index)}]", self)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.value)))

    def __array_function__(  # noqa: PLR0917 - NumPy passes them so
        self, function: Any, types: Any, args: Any, options: Any
    ) -> Any:
        """Apply a NumPy function to arrays, and to lists of them."""
        del types
        leaves, tree = _trees.flatten((args, options), is_leaf=_is_none)
        if any(map(_compat.is_traced, leaves)):
            return NotImplemented

        def applied(*values: Any) -> Any:
            given, named = _trees.unflatten(tree, values)
            return function(*given, **named)

        text = ", ".join("{}" for _ in leaves)
        pattern = f"{function.__module__}.{function.__name__}({text}) of {escaped(tree)}"
        return self._computer.compute(applied, pattern, *leaves)


def _parts(index: Any) -> tuple[Any, ...]:
    return cast(Any, index) if isinstance(index, tuple) else (index,)


def _is_none(value: Any) -> bool:
    return value is None


def number_of(computer: Computer, expression: HostExpression, *, value: Any) -> HostNumber | None:
    """The host number for a value; None: the value is not a number."""
    kinds: tuple[tuple[Any, type[HostNumber]], ...] = (
        (int, HostInt),
        (float, HostFloat),
        (complex, HostComplex),
    )
    for python_type, kind in kinds:
        if type(value) is python_type:
            return kind(computer, expression, value=value)
    if isinstance(value, np.ndarray | np.generic) and _is_numeric(value):
        return HostArray(computer, expression, value=value)
    return None


def _is_numeric(array: Any) -> bool:
    return array.dtype.kind in "biufc"


# Operators

BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (operator.add, "{} + {}"),
    "sub": (operator.sub, "{} - {}"),
    "mul": (operator.mul, "{} * {}"),
    "truediv": (operator.truediv, "{} / {}"),
    "floordiv": (operator.floordiv, "{} // {}"),
    "mod": (operator.mod, "{} % {}"),
    "divmod": (divmod, "divmod({}, {})"),
    "pow": (pow, "{}**{}"),
    "lshift": (operator.lshift, "{} << {}"),
    "rshift": (operator.rshift, "{} >> {}"),
    "and": (operator.and_, "{} & {}"),
    "or": (operator.or_, "{} | {}"),
    "xor": (operator.xor, "{} ^ {}"),
}
COMPARISONS: dict[str, tuple[Callable[..., Any], str]] = {
    "eq": (operator.eq, "{} == {}"),
    "ne": (operator.ne, "{} != {}"),
    "lt": (operator.lt, "{} < {}"),
    "le": (operator.le, "{} <= {}"),
    "gt": (operator.gt, "{} > {}"),
    "ge": (operator.ge, "{} >= {}"),
}
UNARY: dict[str, tuple[Callable[..., Any], str]] = {
    "neg": (operator.neg, "-{}"),
    "pos": (operator.pos, "{}"),
    "invert": (operator.invert, "~{}"),
    "abs": (abs, "abs({})"),
    "ceil": (math.ceil, "ceil({})"),
    "floor": (math.floor, "floor({})"),
    "trunc": (math.trunc, "trunc({})"),
}


def is_operand(x: Any) -> bool:
    """Whether host numbers compute with it. JAX arrays do such arithmetic themselves."""
    if isinstance(x, np.ndarray):
        return _is_numeric(x)
    return isinstance(x, HostNumber | int | float | complex | np.generic) or (
        jax.export.is_symbolic_dim(x)
    )


def _binary(function: Callable[..., Any], pattern: str, *, reflected: bool) -> Callable[..., Any]:
    def method(self: HostNumber, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        operands = (other, self) if reflected else (self, other)
        return self.computer.compute(function, pattern, *operands)

    return method


def _unary(function: Callable[..., Any], pattern: str) -> Callable[..., Any]:
    def method(self: HostNumber) -> Any:
        return self.computer.compute(function, pattern, self)

    return method


def _round(self: HostNumber, digits: Any = None) -> Any:
    return rounded(self, self.computer, digits=digits)


def rounded(self: Any, computer: Computer, *, digits: Any) -> Any:
    """`round(self)`, or `round(self, digits)`."""
    if digits is None:
        return computer.compute(round, "round({})", self)
    return computer.compute(round, "round({}, {})", self, digits)


for _name, _entry in (*BINARY.items(), *COMPARISONS.items()):
    setattr(HostNumber, f"__{_name}__", _binary(*_entry, reflected=False))
    if _name in BINARY:
        setattr(HostNumber, f"__r{_name}__", _binary(*_entry, reflected=True))
for _name, _entry in UNARY.items():
    setattr(HostNumber, f"__{_name}__", _unary(*_entry))
HostNumber.__round__ = _round  # pyright: ignore[reportAttributeAccessIssue] - set like the others

_compat.register_numbers(
    {HostInt: int, HostFloat: float, HostComplex: complex, HostArray: None},
    lambda number: number.aval,
)


# The primitive

host_value_p = _compat.Primitive("host_value")


def bind(operand: HostOperand, *, weak_type: bool) -> Any:
    """Add a host value to the function that is traced, as an array without symbolic dims."""
    return cast(Any, host_value_p.bind(operand=operand, weak_type=weak_type))


@host_value_p.def_abstract_eval
def _aval(*, operand: HostOperand, weak_type: bool) -> Any:
    return _compat.ShapedArray(operand.shape, operand.dtype, weak_type=weak_type)


def with_conversions(closed_jaxpr: Any) -> Any:
    """Fold conversions of host values into the host values of a closed jaxpr.

    So `jnp.float32(n**4)` converts the Python integer, of any size, and not an i32 of it.
    """
    if not any(eqn.primitive is host_value_p for eqn in _compat.equations(closed_jaxpr.jaxpr)):
        return closed_jaxpr
    return _compat.with_equations(closed_jaxpr, _converted)


def _converted(jaxpr: Any) -> list[Any]:
    values = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive is host_value_p}
    made = [_conversion(eqn, values) for eqn in jaxpr.eqns]
    read = {var for eqn in made for var in eqn.invars if not _compat.is_literal(var)}
    read |= {var for var in jaxpr.outvars if not _compat.is_literal(var)}
    # A host value that nothing reads any more may be too large for its dtype.
    return [e for e in made if e.primitive is not host_value_p or e.outvars[0] in read]


def _conversion(eqn: Any, values: dict[Any, Any]) -> Any:
    if eqn.primitive.name != "convert_element_type" or _compat.is_literal(eqn.invars[0]):
        return eqn
    source = values.get(eqn.invars[0])
    if source is None or source.params["operand"].via == "argument":
        return eqn
    aval, operand = eqn.outvars[0].aval, source.params["operand"]
    converted = HostOperand(operand.expression, np.dtype(aval.dtype), operand.shape, operand.via)
    return eqn.replace(
        primitive=host_value_p,
        invars=[],
        params={"operand": converted, "weak_type": aval.weak_type},
    )
