"""Dimensions: the size of an axis, an integer or an expression of symbols.

JAX owns the algebra: a `Dim` is the canonical text that JAX prints after simplifying it. Dims are
evaluated and bounded through that text, whose grammar is public, so no private name of JAX is
needed. Specs and arguments are not known here.
"""

import contextlib
import dataclasses
import functools
import itertools
import operator
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from shapeexec._code import code
from shapeexec._errors import SpecError
from shapeexec.shape import _bounds, _expression, _unknown
from shapeexec.shape._unknown import Unknown

_GRID_LIMIT = 1_000_000

DIMLESS_TYPES = frozenset((bool, int, float, str, type(None)))
"""Types whose values neither are nor hold a symbolic dim; asked by `type(x) in DIMLESS_TYPES`."""


@dataclasses.dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Dim:
    """The size of an axis: an integer, a symbol, or an expression of symbols.

    Two dims are equal if JAX prints them alike; a dim that is an integer equals that integer.
    Every symbol stands for a size of at least 1.

    Attributes:
        text: The dimension as JAX prints it.

    Args:
        dim: An integer; a string such as `"2*s + 1"` or `"s // 2"`; a `Dim`; a JAX dim; or
            `UNKNOWN`, for a new symbol.

    Raises:
        SpecError: It is none of these, the text is not a dimension, or it is -1, which other
            libraries use for a size that changes.

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
        """The integer, of a static dimension.

        Raises:
            SpecError: The dimension is symbolic.
        """
        if not self.is_static:
            raise SpecError(
                f"`{self}` has no value: it is symbolic.",
                fix=f"dim.evaluate({', '.join(f'{name}=...' for name in sorted(self.symbols))})",
            )
        return int(self.text)

    @property
    def name(self) -> str | None:
        """The symbol, if the dimension is a single symbol; else None."""
        return self.text if self.text.isidentifier() else None

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of the dimension."""
        return symbols_of(self)

    def evaluate(self, **sizes: int) -> int:
        """Return the dimension at these sizes.

        Args:
            sizes: By symbol; symbols that do not occur in the dimension are ignored.

        Returns:
            Its value, an int.

        Raises:
            SpecError: A symbol of the dimension has no size.
        """
        return evaluate(self, sizes)

    def upper_bound(self, **buckets: int) -> int:
        """Return the largest value of the dimension for sizes from 1 up to the buckets.

        Args:
            buckets: By symbol.

        Returns:
            That value, an int.

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


_unknown_numbers = itertools.count(1)  # next() on it is atomic


def is_unknown(dim: Any) -> bool:
    """Whether a dim is `UNKNOWN` or a string for it."""
    return isinstance(dim, Unknown) or (isinstance(dim, str) and dim.strip() in _unknown.MARKS)


def negative(what: str, *ways_out: str) -> SpecError:
    """Make the error for a size below 0, which other libraries use for a size that changes.

    Args:
        what: The first line.
        ways_out: Other fixes, if the caller may have meant something else.
    """
    way_out = 'for a size that changes write sx.BATCH, sx.SEQ_LEN, sx.Dim("n") or sx.UNKNOWN'
    return SpecError(
        what, why="a size that changes has a name here", fix="; ".join([way_out, *ways_out])
    )


def dim_text(dim: DimLike | Any) -> str:
    """Return the text of a dimension: an integer, a string, a `Dim` or a JAX dim.

    Raises:
        SpecError: It is none of these.
    """
    held = _texts.get(id(dim))
    if held is not None and held[0] is dim:
        return held[1]
    if isinstance(dim, Dim):
        return dim.text
    if isinstance(dim, str):
        return dim
    if jax.export.is_symbolic_dim(dim):
        return _text_of(dim)
    with contextlib.suppress(TypeError):
        if not isinstance(dim, bool):
            return str(operator.index(dim))
    raise SpecError(
        f"{dim!r} is not a dimension.",
        got=type(dim).__name__,
        fix='an integer, a string such as "2*s + 1", a Dim, or UNKNOWN for a size that changes',
    )


_MOST_TEXTS = 4096
_texts: dict[int, tuple[Any, str]] = {}
"""By identity, JAX dims and their strings. A trace asks for the strings of a few dims very often,
and JAX writes them anew each time. The dims are held, so that no identity is reused."""
_texts_lock = threading.Lock()  # for writing


def _text_of(dim: Any) -> str:
    """The text of a JAX dim, which is kept."""
    text = str(dim)
    with _texts_lock:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        _texts[id(dim)] = dim, text
    return text


def symbols_of(dim: DimLike | Any) -> frozenset[str]:
    """Return the symbols of a dimension: an integer, a string, a `Dim` or a JAX dim."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(_expression.parse(dim_text(dim)).symbols)


def evaluate(dim: DimLike | Any, env: Mapping[str, Any]) -> Any:
    """Return the value of a dimension with operands in place of its symbols.

    Args:
        dim: An integer, a string, a `Dim` or a JAX dim.
        env: By symbol: Python integers, NumPy integer arrays, JAX i32 arrays or tracers, or JAX
            dims (which substitutes them). Integers may be mixed with any of the others.

    Returns:
        A value of the operands' kind; a Python integer where the dimension is static.

    Raises:
        SpecError: A symbol of the dimension is not in `env`.
    """
    if isinstance(dim, int):
        return dim
    return _expression.parse(dim_text(dim))(env)


def maximum(
    dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]], *, limit: int = _GRID_LIMIT
) -> int:
    """Return the largest value of a dimension while its symbols range over integer intervals.

    Args:
        dim: An integer, a string, a `Dim` or a JAX dim.
        ranges: By symbol, the least and the greatest size, both included. A symbol without a
            range is at least 1.
        limit: The most combinations of sizes to evaluate, of the symbols in which the dimension is
            not monotone. If there are more, the result is an upper bound by interval arithmetic.

    Raises:
        UnboundedDimError: No finite bound was found.
        SpecError: A range is empty.
    """
    if isinstance(dim, int):
        return dim
    return _bounds.extreme(dim_text(dim), ranges, sign=1, limit=limit)


def minimum(
    dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]], *, limit: int = _GRID_LIMIT
) -> int:
    """Return the smallest value of a dimension while its symbols range over integer intervals.

    Parameters and errors are as in `maximum`; above `limit` the result is a lower bound.
    """
    if isinstance(dim, int):
        return dim
    return _bounds.extreme(dim_text(dim), ranges, sign=-1, limit=limit)


def fits_i32(dim: DimLike | Any, ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether i32 arithmetic computes a dimension exactly, at all sizes in `ranges`.

    No intermediate result may overflow i32 either, and no divisor may be 0.
    """
    return isinstance(dim, int) or _bounds.fits(dim_text(dim), ranges, limit=2**31 - 1)


def to_jax(dim: DimLike, scope: jax.export.SymbolicScope) -> Any:
    """Return a dimension as a JAX dim of `scope`, or as an integer where it is one there.

    A symbol that the constraints of the scope fix (`s == 5`) is an integer there.
    """
    names = symbols_of(dim)
    return evaluate(dim, {name: jax.export.symbolic_shape(name, scope=scope)[0] for name in names})


def any_symbolic(shapes: Iterable[Iterable[Any] | None]) -> bool:
    """Whether any of the shapes has a symbolic dim."""
    return any(jax.export.is_symbolic_dim(dim) for shape in shapes for dim in shape or ())


def shapes_text(shapes: Iterable[Iterable[Any] | None]) -> str:
    """Shapes as JAX prints them, `[b,s], [4]`; values without a shape are left out."""
    return ", ".join(f"[{','.join(map(str, shape))}]" for shape in shapes if shape is not None)


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
    """Return the `Dim` of an integer, which may be negative, or of a JAX dim of any scope."""
    return Dim(dim_text(dim))


@functools.lru_cache(maxsize=16384)
def _canonical(text: str) -> str:
    # A new scope for each text, so that threads share no state and no constraints leak.
    try:
        simplified = to_jax(_static(text), jax.export.SymbolicScope())
    except (ZeroDivisionError, jax.errors.InconclusiveDimensionOperation) as error:
        raise SpecError(
            f"`{text}` is not a dimension.",
            path=text,
            why=str(error).splitlines()[0],
            fix='an expression that has a value at every size, such as "s // 2"',
        ) from None
    return str(simplified)


def _static(text: str) -> str | int:
    _unknown.check_known(text)
    expression = _expression.parse(text)
    return text if expression.symbols else expression({})


def _combine(left: Dim | int, sign: str, right: Dim | int) -> Dim:  # noqa: PLR0917 - as it is written: left, sign, right
    for side in (left, right):
        if isinstance(side, bool) or not (isinstance(side, Dim) or hasattr(side, "__index__")):
            return NotImplemented
    return Dim(f"({dim_text(left)}) {sign} ({dim_text(right)})")


BATCH = Dim("b")
SEQ_LEN = Dim("s")
