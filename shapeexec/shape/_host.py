"""Expressions of sizes that Python evaluates: what code computes from sizes before JAX sees it.

Plain code computes with sizes in Python's integers and floats and in NumPy's scalars, and only the
result becomes an array. So the computation is kept as it was written, and done again in Python at
the true sizes of each call. JAX is not known here.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec.shape import _dim

_LONGEST_TEXT = 80
_ATOM = re.compile(r"[\w.]+(\(.*\))?")


@dataclasses.dataclass(frozen=True, eq=False)
class HostExpression:
    """A computation on the host, whose operands are sizes, constants and other computations.

    Two expressions are equal if they do the same to the same operands.

    Attributes:
        function: What computes it; None: it is the dim whose text is the only operand.
        operands: `HostExpression`s and constants.
        pattern: How it is written, `{} / {}`; it names the function.
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
    """The expression that is a dim, told by its text."""
    return HostExpression(None, (text,))


class HostValues:
    """The values of expressions at some sizes; each is computed once.

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
    """The text of a value within a pattern, where braces stand for operands."""
    return str(value).replace("{", "{{").replace("}", "}}")


def kind_of(value: Any) -> tuple[Any, ...]:
    """What of a value has to be alike for one trace to serve: its type, dtype and shape."""
    return (type(value), getattr(value, "dtype", None), getattr(value, "shape", None))


@dataclasses.dataclass(frozen=True)
class HostOperand:
    """A host value as an operand of a graph.

    Attributes:
        expression: What it is.
        dtype: Its dtype in the graph.
        shape: Its shape.
        via: How the number met JAX: as an `argument` of an operation, by `array` (`jnp.asarray`),
            by `convert` (`lax.convert_element_type`), or as the `length` of an axis. It decides
            what becomes of an integer that the dtype does not hold.
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
        with np.errstate(all="ignore"):  # a float that f32 does not hold is infinite
            return self._converted(value)

    def _converted(self, value: Any) -> np.ndarray:
        if self.via == "array":
            return np.asarray(value, self.dtype)
        if self.via == "length":  # no array is as long: whatever it is, nobody reads so far
            limits = np.iinfo(self.dtype)
            return np.asarray(min(max(value, limits.min), limits.max), self.dtype)
        if self.via == "argument" and type(value) is int and self.dtype.kind == "i":
            limits = np.iinfo(self.dtype)
            if not limits.min <= value <= limits.max:
                raise OverflowError(f"Python int {value} too large to convert to {self.dtype}")
        return np.asarray(value).astype(self.dtype)

    @property
    def words(self) -> int:
        """How many i32 hold it."""
        size = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return -(-size // 4)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] {self.expression}"


def packed(operands: Sequence[HostOperand], sizes: Mapping[str, int]) -> np.ndarray:
    """i32[words]: the bits of operands at `sizes`, one behind the other."""
    values, parts = HostValues(sizes), [np.zeros(0, np.int32)]
    for operand in operands:
        data = operand.at(values).tobytes()
        parts.append(np.frombuffer(data.ljust(4 * operand.words, b"\0"), np.int32))
    return np.concatenate(parts)


@dataclasses.dataclass(frozen=True)
class HostGuard:
    """What a trace took for granted of an expression: its truth, or that it raises.

    Attributes:
        expression: Of which it speaks.
        expected: True or False, or the type of the exception that evaluating it raises.
        place: `path/file.py:12` of the code that asked.
    """

    expression: HostExpression
    expected: Any
    place: str | None = dataclasses.field(default=None, compare=False)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols it speaks of."""
        return self.expression.symbols

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true at `sizes`."""
        try:
            outcome = bool(HostValues(sizes).of(self.expression))
        except Exception as error:  # whatever user code raises is an outcome
            outcome = type(error)
        return outcome == self.expected

    def described(self) -> str:
        """The guard and the code that asked for it."""
        line = _compat.describe_line(self.place)
        return f"{self}   <- {line}" if line else str(self)

    def __str__(self) -> str:
        if isinstance(self.expected, bool):
            return str(self.expression) if self.expected else f"not ({self.expression})"
        return f"{self.expression} raises {self.expected.__name__}"


def are_alike(kinds: Iterable[tuple[HostExpression, Any]], sizes: Mapping[str, int]) -> bool:
    """Whether each expression has a value at `sizes`, of the kind that a trace was made with."""
    values = HostValues(sizes)
    try:
        return all(kind_of(values.of(expression)) == kind for expression, kind in kinds)
    except Exception:  # it raises here: the trace made here will raise where the code does
        return False


def _digest(operand: Any) -> bytes:
    if isinstance(operand, HostExpression):
        return b"e" + operand.digest
    if isinstance(operand, np.ndarray):
        return f"{operand.dtype}{operand.shape}".encode() + operand.tobytes()
    return f"{type(operand)}{operand!r};".encode()


def _written(pattern: str, operands: Sequence[Any]) -> str:
    def told(operand: Any) -> str:
        text = operand.text if isinstance(operand, HostExpression) else str(operand)
        return text if _ATOM.fullmatch(text) or pattern == "{}" else f"({text})"

    text = pattern.format(*map(told, operands))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."
