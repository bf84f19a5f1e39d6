"""Dimensions: the size of an axis, known or an expression of symbols.

JAX owns the algebra: a `Dim` is the canonical text that JAX prints, and is built by letting JAX
simplify. Evaluating and bounding one goes through that text alone, whose grammar is public, so no
JAX-private name is needed. Specs and arguments are not known here.
"""

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, Never

import jax

from shapeexec._code import code
from shapeexec._errors import SpecError
from shapeexec.shape import _bounds, _expression, _unknown

_GRID_LIMIT = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Dim:
    """The size of an axis: an integer, a symbol, or an expression of symbols.

    Two dims are equal if JAX prints them alike; a dim that is an integer equals that integer.
    Every symbol stands for a size of at least 1.

    Attributes:
        text: The dimension as JAX prints it.

    Args:
        dim: An integer; a text such as `"2*s + 1"` or `"s // 2"`; a dim; a dim of JAX's; or
            `UNKNOWN`, for a symbol of its own.

    Raises:
        SpecError: It is none of these, the text is not a dimension, or it is -1, by which others
            mean a size that changes.

    Example:
        >>> Dim("s") * 2 + 1
        Dim('2*s + 1')
    """

    text: str

    def __init__(self, dim: "DimLike | Unknown | Any") -> None:
        if isinstance(dim, Unknown):
            text = f"unknown{next(_unknown_numbers)}"
        elif isinstance(dim, Dim):
            text = dim.text
        else:
            text = _canonical(dim_text(dim))
            if text == "-1" and not isinstance(dim, str):
                raise negative("-1 is not a dimension.")
        object.__setattr__(self, "text", text)

    @property
    def is_static(self) -> bool:
        """Whether the dimension is an integer."""
        return not self.symbols

    @property
    def value(self) -> int:
        """The integer that a static dimension is."""
        if not self.is_static:
            raise SpecError(
                f"`{self}` has no value: it is symbolic.",
                fix=f"dim.evaluate({', '.join(f'{name}=...' for name in sorted(self.symbols))})",
            )
        return int(self.text)

    @property
    def name(self) -> str | None:
        """The symbol, if the dimension is one symbol and nothing else; otherwise None."""
        return self.text if self.text.isidentifier() else None

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of the dimension."""
        return symbols_of(self)

    def evaluate(self, **sizes: int) -> int:
        """Return the dimension at these sizes.

        Args:
            sizes: By symbol; symbols that the dimension does not hold are ignored.

        Raises:
            SpecError: A symbol of the dimension has no size.
        """
        return evaluate(self, sizes)

    def upper_bound(self, **buckets: int) -> int:
        """Return the most that the dimension is for sizes from 1 up to the buckets.

        Args:
            buckets: By symbol.

        Raises:
            UnboundedDimError: A symbol has no bucket, and the dimension grows with it.
        """
        return maximum(self, {symbol: (1, bucket) for symbol, bucket in buckets.items()})

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Dim({self.text})" if self.is_static else f"Dim({self.text!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim):
            return self.text == other.text
        if isinstance(other, int):
            return self.is_static and self.value == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.value) if self.is_static else hash(self.text)

    def __neg__(self) -> "Dim":
        return Dim(f"-({self})")

    def __add__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "+", other)

    def __radd__(self, other: int) -> "Dim":
        return _combine(other, "+", self)

    def __sub__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "-", other)

    def __rsub__(self, other: int) -> "Dim":
        return _combine(other, "-", self)

    def __mul__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "*", other)

    def __rmul__(self, other: int) -> "Dim":
        return _combine(other, "*", self)

    def __floordiv__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "//", other)

    def __rfloordiv__(self, other: int) -> "Dim":
        return _combine(other, "//", self)

    def __mod__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "%", other)

    def __rmod__(self, other: int) -> "Dim":
        return _combine(other, "%", self)

    def __pow__(self, other: "Dim | int") -> "Dim":
        return _combine(self, "**", other)

    def __rpow__(self, other: int) -> "Dim":
        return _combine(other, "**", self)


DimLike = int | str | Dim


@code.register
def _(value: Dim) -> str | None:
    return f"sx.{value!r}"


class Unknown:
    """The type of `UNKNOWN`, which stands for a dimension of which nothing is known.

    Each place of it is a symbol of its own, so two unknown dimensions are never taken for the same
    size. In a spec the symbol tells the argument and the axis (`unknown_0_1`), in a `Shape` the
    axis (`unknown_1`); `Dim(UNKNOWN)` is another one each time (`unknown1`, `unknown2`, ...). As a
    key of `buckets` it names them all. In texts it is `?` or `UNKNOWN`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The word that means it in a text; the symbol's name follows from its place."""
        return _unknown.WORD

    @property
    def is_static(self) -> bool:
        """Whether the dimension is an integer: it is not."""
        return False

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols: none, until it has a place."""
        return frozenset()

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __reduce__(self) -> str:
        return "UNKNOWN"  # pickled and copied by name: there is one

    def _refuse(self, *_: object) -> Never:
        raise _unknown_in_arithmetic()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse


def _unknown_in_arithmetic() -> SpecError:
    return SpecError(
        "UNKNOWN takes no part in arithmetic.",
        why="each occurrence is a size of its own, so UNKNOWN + 1 would say nothing",
        fix='name the size: sx.Dim("n") + 1',
    )


@code.register
def _(value: Unknown) -> str | None:
    return f"sx.{value!r}"


UNKNOWN = Unknown()
_unknown_numbers = itertools.count(1)  # next() on it is atomic


def is_unknown(dim: Any) -> bool:
    """Whether a dim is `UNKNOWN`, or a text that means it."""
    return isinstance(dim, Unknown) or (isinstance(dim, str) and dim.strip() in _unknown.MARKS)


_MENTIONS_UNKNOWN = re.compile(rf"[?]|\b{_unknown.WORD}\b")


def check_known(text: str) -> None:
    """Check that the text of a dim computes nothing of an unknown size.

    Raises:
        SpecError: It does, or names one.
    """
    if not _MENTIONS_UNKNOWN.search(text):
        return
    if is_named_unknown(text):
        raise SpecError(
            f'"{text}" is not a dimension.',
            why="an unknown size has no name",
            fix='`?` for a size without a name, or its name alone, such as "n"',
        )
    raise _unknown_in_arithmetic()


def is_named_unknown(text: str) -> bool:
    """Whether a text is `?` beside a name, such as `?b` or `b ?`: nothing is computed."""
    return bool(_MENTIONS_UNKNOWN.search(text) and re.fullmatch(r"[\w\s?]+", text))


def negative(what: str, *ways_out: str) -> SpecError:
    """Make the error for a size below 0, by which others mean one that changes.

    Args:
        what: The first line.
        ways_out: What else the caller can have meant.
    """
    way_out = 'for a size that changes write sx.BATCH, sx.SEQ_LEN, sx.Dim("n") or sx.UNKNOWN'
    return SpecError(
        what, why="a size that changes has a name here", fix="; ".join([way_out, *ways_out])
    )


def dim_text(dim: DimLike | Any) -> str:
    """Return the text of a dimension: an integer, a text, a `Dim` or a dim of JAX's.

    Raises:
        SpecError: It is none of these.
    """
    if isinstance(dim, Dim):
        return dim.text
    if isinstance(dim, str):
        return dim
    if jax.export.is_symbolic_dim(dim):
        return str(dim)
    try:
        if isinstance(dim, bool):
            raise TypeError
        return str(operator.index(dim))
    except TypeError:
        raise SpecError(
            f"{dim!r} is not a dimension.",
            got=type(dim).__name__,
            fix='an integer, a text such as "2*s + 1", a Dim, or UNKNOWN for a size that changes',
        ) from None


def symbols_of(dim: DimLike | Any) -> frozenset[str]:
    """Return the symbols of a dimension: an integer, a text, a `Dim` or a dim of JAX's."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(_expression.parse(dim_text(dim)).symbols)


def evaluate(dim: DimLike | Any, env: Mapping[str, Any]) -> Any:
    """Return the value of a dimension at the operands that `env` names.

    Args:
        dim: An integer, a text, a `Dim` or a dim of JAX's.
        env: By symbol: Python integers, NumPy integer arrays, i32 arrays or tracers of JAX's, or
            JAX's symbolic dims (which substitutes them); integers mix with any of the others.

    Returns:
        A value of the operands' kind; a Python integer where the dimension is static.

    Raises:
        SpecError: A symbol of the dimension is not in `env`.
    """
    if isinstance(dim, int):
        return dim
    return _expression.parse(dim_text(dim))(env)


def maximum(
    dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]], limit: int = _GRID_LIMIT
) -> int:
    """Return the most that a dimension is while its symbols range over integer intervals.

    Args:
        dim: An integer, a text, a `Dim` or a dim of JAX's.
        ranges: By symbol, the least and the greatest size, both included. A symbol without a
            range is at least 1.
        limit: Most sizes to try. With more than that, in symbols in which the dimension is not
            monotone, the result is an upper bound by interval arithmetic.

    Raises:
        UnboundedDimError: No finite bound was found.
        SpecError: A range is empty.
    """
    return dim if isinstance(dim, int) else _bounds.extreme(dim_text(dim), ranges, 1, limit)


def minimum(
    dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]], limit: int = _GRID_LIMIT
) -> int:
    """Return the least that a dimension is while its symbols range over integer intervals.

    Parameters and errors are those of `maximum`; above `limit` the result is a lower bound.
    """
    return dim if isinstance(dim, int) else _bounds.extreme(dim_text(dim), ranges, -1, limit)


def fits_i32(dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether i32 arithmetic gives a dimension exactly, at all sizes in `ranges`.

    No step on the way may leave i32 either, and no divisor may be 0.
    """
    return isinstance(dim, int) or _bounds.fits(dim_text(dim), ranges, 2**31 - 1)


def to_jax(dim: DimLike, scope: jax.export.SymbolicScope) -> Any:
    """Return a dimension as JAX's dim of `scope`, or as an integer where it is one there.

    A scope whose constraints fix a symbol (`s == 5`) gives integers for it.
    """
    names = symbols_of(dim)
    return evaluate(dim, {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in names})


def any_symbolic(shapes: Iterable[Iterable[Any] | None]) -> bool:
    """Whether a shape has a symbolic dim, as in a trace at symbolic sizes."""
    return any(jax.export.is_symbolic_dim(dim) for shape in shapes for dim in shape or ())


def substitute(dim: DimLike, values: Mapping[str, DimLike]) -> "Dim | int":
    """Return a dimension with some of its symbols replaced by dims, or by sizes, which may be 0."""
    names = symbols_of(dim)
    if not names & values.keys():
        return dim if isinstance(dim, int) else from_jax(dim)
    scope = jax.export.SymbolicScope()
    env = {name: to_jax(values.get(name, name), scope) for name in names}
    result = evaluate(dim, env)
    return result if isinstance(result, int) else Dim(result)


def from_jax(dim: Any) -> Dim:
    """Return the `Dim` of an integer, also a negative one, or of a dim of JAX's, of any scope."""
    return Dim(dim_text(dim))


@functools.lru_cache(maxsize=16384)
def _canonical(text: str) -> str:
    # A scope of its own for each text: no state that threads share, and no constraints to leak.
    try:
        simplified = to_jax(_static(text), jax.export.SymbolicScope())
    except (ZeroDivisionError, jax.errors.InconclusiveDimensionOperation) as error:
        raise SpecError(
            f"`{text}` is not a dimension.",
            why=str(error).splitlines()[0],
            fix='an expression that has a value at every size, such as "s // 2"',
        ) from None
    return str(simplified)


def _static(text: str) -> str | int:
    check_known(text)
    expression = _expression.parse(text)
    return text if expression.symbols else expression({})


def _combine(left: Dim | int, sign: str, right: Dim | int) -> Dim:
    for side in (left, right):
        if isinstance(side, bool) or not (isinstance(side, Dim) or hasattr(side, "__index__")):
            return NotImplemented
    return Dim(f"({dim_text(left)}) {sign} ({dim_text(right)})")


BATCH = Dim("b")
SEQ_LEN = Dim("s")
