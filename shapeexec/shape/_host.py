"""Expressions of sizes that are evaluated on the host, in Python and NumPy.

Plain code computes with sizes in Python's integers and floats and in NumPy's scalars, and only the
result becomes an array. So the computation is recorded as an expression, and evaluated again at the
true sizes of each call. JAX is not known here.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from shapeexec import _compat
from shapeexec._errors import beside
from shapeexec.shape import _dim

_LONGEST_TEXT = 80
_ATOM = re.compile(r"[\w.]+(\(.*\))?")


@dataclasses.dataclass(frozen=True, eq=False)
class HostExpression:
    """A computation on the host, whose operands are sizes, constants and other computations.

    Two expressions are equal if they do the same to the same operands.

    Attributes:
        function: The function of the operands; None: the only operand is the text of a dim.
        operands: `HostExpression`s and constants.
        pattern: Its source with places for the operands, `{} / {}`. It identifies the function.
    """

    function: Callable[..., Any] | None
    operands: tuple[Any, ...]
    pattern: str = "{}"
    digest: bytes = dataclasses.field(init=False, repr=False)
    symbols: frozenset[str] = dataclasses.field(init=False, repr=False)
    text: str = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(self.pattern.encode(), digest_size=16)
        for operand in self.operands:
            digest.update(_digest(operand))
        inner = [x for x in self.operands if isinstance(x, HostExpression)]
        symbols = frozenset(symbol for x in inner for symbol in x.symbols)
        if self.function is None:
            symbols = _dim.symbols_of(self.operands[0])
        object.__setattr__(self, "digest", digest.digest())
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "text", _written(self.pattern, self.operands))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostExpression) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.text


def of_dim(text: str) -> HostExpression:
    """The expression of a dim, given as text."""
    return HostExpression(None, (text,))


class HostValues:
    """The values of expressions at given sizes; each is computed once.

    Args:
        sizes: The size of each symbol, a Python integer.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._values: dict[HostExpression, Any] = {}

    def of(self, expression: HostExpression) -> Any:
        """The value of one expression.

        Raises:
            Exception: Whatever the computation raises, such as ZeroDivisionError.
        """
        pending = [expression]
        while pending:  # no recursion: a loop in user code makes long chains
            last = pending[-1]
            open_operands = [
                x for x in last.operands if isinstance(x, HostExpression) and x not in self._values
            ]
            if last in self._values or not open_operands:
                pending.pop()
                if last not in self._values:
                    self._values[last] = self._computed(last)
            else:
                pending += open_operands
        return self._values[expression]

    def _computed(self, expression: HostExpression) -> Any:
        if expression.function is None:
            return _dim.evaluate(expression.operands[0], self._sizes)
        values = self._values
        operands = [values[x] if isinstance(x, HostExpression) else x for x in expression.operands]
        with np.errstate(all="ignore"):  # plain code warns while it is traced, once
            return expression.function(*operands)


def escaped(value: Any) -> str:
    """The text of a value inside a pattern, where single braces are places for operands."""
    return str(value).replace("{", "{{").replace("}", "}}")


def kind_of(value: Any) -> tuple[Any, ...]:
    """The type, dtype and shape of a value. One trace serves all values that agree in these."""
    return (cast(Any, type(value)), getattr(value, "dtype", None), getattr(value, "shape", None))


@dataclasses.dataclass(frozen=True)
class HostOperand:
    """A host value as an operand of a graph.

    Attributes:
        expression: Computes the value.
        dtype: The dtype in the graph.
        shape: The shape.
        via: How the number was passed to JAX: as an `argument` of an operation, by `array`
            (`jnp.asarray`), by `convert` (`lax.convert_element_type`), or as the `length` of an
            axis. It decides what happens to an integer that does not fit the dtype.
    """

    expression: HostExpression
    dtype: Any
    shape: tuple[int, ...] = ()
    via: str = "argument"

    def at(self, values: HostValues) -> np.ndarray:
        """The operand at the sizes of `values`.

        Raises:
            OverflowError: An integer does not fit the dtype, as in plain JAX.
            Exception: Whatever the computation raises.
        """
        value = values.of(self.expression)
        with np.errstate(all="ignore"):  # a float too large for f32 becomes infinite
            return self._converted(value)

    def _converted(self, value: Any) -> np.ndarray:
        if self.via == "array":
            return np.asarray(value, self.dtype)
        if self.via == "length":  # no array is that long, so the exact value does not matter
            limits = np.iinfo(self.dtype)
            return np.asarray(min(max(value, limits.min), limits.max), self.dtype)
        if self.via == "argument" and type(value) is int and self.dtype.kind == "i":
            limits = np.iinfo(self.dtype)
            if not limits.min <= value <= limits.max:
                # The error that plain JAX raises.
                raise OverflowError(f"Python int {value} too large to convert to {self.dtype}")
        return np.asarray(value).astype(self.dtype)

    @property
    def words(self) -> int:
        """Its size in i32 words."""
        size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return -(-size // 4)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] {self.expression}"


def packed(operands: Sequence[HostOperand], sizes: Mapping[str, int]) -> np.ndarray:
    """i32[words]: the bits of all operands at `sizes`, concatenated."""
    values, parts = HostValues(sizes), [np.zeros(0, np.int32)]
    for operand in operands:
        data = operand.at(values).tobytes()
        parts.append(np.frombuffer(data.ljust(4 * operand.words, b"\0"), np.int32))
    return np.concatenate(parts)


@dataclasses.dataclass(frozen=True)
class HostGuard:
    """A guard on a host expression: it is true or false, or it raises.

    Attributes:
        expression: The expression.
        expected: True or False, or the type of the exception that evaluating it raises.
        place: `path/file.py:12` of the code that evaluated it.
    """

    expression: HostExpression
    expected: Any
    place: str | None = dataclasses.field(default=None, compare=False)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols it depends on."""
        return self.expression.symbols

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the expression has the expected outcome at `sizes`."""
        try:
            outcome = bool(HostValues(sizes).of(self.expression))
        except MemoryError:  # of the machine, not of the program
            raise
        except Exception as error:  # user code may raise anything; the type is the outcome
            outcome = type(error)
        return outcome == self.expected

    def described(self) -> str:
        """The guard and the code that evaluated the expression."""
        return beside(self, _compat.describe_line(self.place))

    def __str__(self) -> str:
        if isinstance(self.expected, bool):
            return str(self.expression) if self.expected else f"not ({self.expression})"
        return f"{self.expression} raises {self.expected.__name__}"


def are_alike(kinds: Iterable[tuple[HostExpression, Any]], sizes: Mapping[str, int]) -> bool:
    """Whether each expression has a value of the given kind (see `kind_of`) at `sizes`."""
    values = HostValues(sizes)
    try:
        return all(kind_of(values.of(expression)) == kind for expression, kind in kinds)
    except MemoryError:  # of the machine, not of the program
        raise
    except Exception:  # user code may raise anything; a new trace then raises in the user's line
        return False


def _digest(operand: Any) -> bytes:
    if isinstance(operand, HostExpression):
        return b"e" + operand.digest
    if isinstance(operand, np.ndarray):
        array = cast(Any, operand)  # of any dtype
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return f"{type(operand)}{operand!r};".encode()


def _written(pattern: str, operands: Sequence[Any]) -> str:
    def operand_text(operand: Any) -> str:
        text = operand.text if isinstance(operand, HostExpression) else str(operand)
        return text if _ATOM.fullmatch(text) or pattern == "{}" else f"({text})"

    text = pattern.format(*map(operand_text, operands))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
