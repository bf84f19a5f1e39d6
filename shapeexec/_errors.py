"""The exceptions of the library, and the layout of their messages.

The first line says what went wrong; further lines give the place, the offending value, the reason,
and always a fix. Callers read the fields and never parse the text.
"""

# The values that errors hold may be of any type.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict, Unpack


def named(symbols: Iterable[str]) -> str:
    """Symbols as text: "`b` and `s`"."""
    return " and ".join(f"`{symbol}`" for symbol in sorted(set(symbols)))


def sizes_text(sizes: Mapping[str, object]) -> str:
    """Sizes as text: "b=3, s=100"."""
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())


def beside(value: object, line: str | None) -> str:
    """The text of a value, and beside it the user's line that it comes from, if that is known."""
    return f"{value}   <- {line}" if line else str(value)


def made_exact(symbols: Iterable[str]) -> str:
    """The fix that always works: no padding of these symbols, and a graph for each size.

    Args:
        symbols: Their names; empty: unknown.
    """
    symbols = set(symbols)
    names, strategies = named(symbols) or "the symbol", exact_strategies(symbols)
    return f'make {names} exact: on_unsupported="exact", or {strategies} in buckets='


def exact_strategies(symbols: Iterable[str]) -> str:
    """The items of `buckets=` that make symbols exact: `"s": sx.Exact()`."""
    return ", ".join(f'"{symbol}": sx.Exact()' for symbol in sorted(symbols)) or "sx.Exact()"


class ShapeExecError(Exception):
    """The base of every error that shapeexec raises on purpose.

    Attributes:
        what: The first line: what went wrong, with the value.
        where: The user's source line or the argument's path; None: unknown.
        got: The offending shapes or values.
        why: The reason, if it is not obvious.
        fix: How to fix it.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        where: str | None = None,
        got: str | None = None,
        why: str | None = None,
    ) -> None:
        self.what, self.where, self.got, self.why, self.fix = what, where, got, why, fix
        super().__init__(_laid_out(self))


def _laid_out(error: ShapeExecError) -> str:
    lines = (("Where", error.where), ("Got", error.got), ("Why", error.why), ("Fix", error.fix))
    shown = [f"  {name + ':':<6} {text}" for name, text in lines if text]
    return "\n".join([error.what, *shown])


class _Lines(TypedDict, total=False):
    """The lines behind the first that an error may lack."""

    where: str | None
    got: str | None
    why: str | None


def tell_fix(error: ShapeExecError, fix: str) -> None:
    """Replace the fix of an error that has been raised."""
    error.fix = fix
    error.args = (_laid_out(error),)


class ConfigError(ShapeExecError, ValueError):
    """An option has an invalid value, or contradicts another one.

    Attributes:
        option: The name of the option or argument, or its path such as `args[1]`; None: no single
            one is at fault.
    """

    def __init__(
        self, what: str, *, fix: str, option: str | None = None, **lines: Unpack[_Lines]
    ) -> None:
        self.option = option
        super().__init__(what, fix=fix, **lines)


class GraphIndexError(ShapeExecError, IndexError):
    """There is no graph of this number.

    Attributes:
        index: The number.
        count: How many graphs there are.
    """

    def __init__(
        self, what: str, *, index: int, count: int, fix: str, **lines: Unpack[_Lines]
    ) -> None:
        self.index, self.count = index, count
        super().__init__(what, fix=fix, **lines)


class SpecError(ShapeExecError, ValueError):
    """A shape spec is malformed, or an argument contradicts it.

    Attributes:
        path: The argument or spec at fault, such as `args[1]['tokens']`; None: unknown.
    """

    def __init__(
        self, what: str, *, fix: str, path: str | None = None, **lines: Unpack[_Lines]
    ) -> None:
        self.path = path
        super().__init__(what, fix=fix, **lines)


class StrategyError(ShapeExecError, ValueError):
    """A bucketing strategy breaks one of its laws.

    Attributes:
        strategy: The strategy, as it was given.
        size: The size that it was asked for; of two that contradict each other, the larger one.
            None: it raised an exception while its laws were checked, see `where`.
        bucket: What it returned for that size; None: it raised an exception.
    """

    def __init__(
        self,
        what: str,
        *,
        strategy: object,
        size: int | None,
        bucket: object,
        fix: str,
        **lines: Unpack[_Lines],
    ) -> None:
        self.strategy, self.size, self.bucket = strategy, size, bucket
        super().__init__(what, fix=fix, **lines)


class BucketOverflowError(ShapeExecError, ValueError):
    """A size is past the last bucket of a finite ladder.

    Attributes:
        size: The size that has no bucket.
        symbol: The symbol of that size; None: unknown.
    """

    def __init__(
        self,
        what: str,
        *,
        size: int,
        ladder: tuple[int, ...] | Callable[[], tuple[int, ...]],
        fix: str,
        last: int | None = None,
        symbol: str | None = None,
    ) -> None:
        self.size, self.symbol = size, symbol
        self._ladder, self._last = ladder, last
        super().__init__(what if symbol is None else f"`{symbol}`: {what}", fix=fix)

    @property
    def ladder(self) -> tuple[int, ...]:
        """All buckets, ascending."""
        if not isinstance(self._ladder, tuple):
            self._ladder = self._ladder()  # there may be a million, and few callers need them
        return self._ladder

    @property
    def last(self) -> int:
        """The last bucket."""
        return self.ladder[-1] if self._last is None else self._last

    def of(self, symbol: str) -> "BucketOverflowError":
        """Make the same error with the symbol of the size.

        Args:
            symbol: Its name.

        Returns:
            A new error, whose first line begins with the symbol.
        """
        return BucketOverflowError(
            self.what,
            size=self.size,
            ladder=self._ladder,
            fix=self.fix,
            last=self._last,
            symbol=symbol,
        )


class ConstraintError(ShapeExecError, ValueError):
    """A call's sizes violate a constraint of its `Exec`.

    Attributes:
        constraint: The text of the constraint, such as `s >= 2`.
        sizes: The sizes of the call, by symbol.
    """

    def __init__(self, what: str, *, constraint: str, sizes: dict[str, int], fix: str) -> None:
        self.constraint, self.sizes = constraint, sizes
        super().__init__(what, fix=fix)


class UnboundedDimError(ShapeExecError, ValueError):
    """A dimension has no finite capacity.

    Attributes:
        symbols: The symbols without a bound.
    """

    def __init__(
        self, what: str, *, symbols: frozenset[str], fix: str, **lines: Unpack[_Lines]
    ) -> None:
        self.symbols = symbols
        super().__init__(what, fix=fix, **lines)


class UnsupportedPrimitiveError(ShapeExecError, NotImplementedError):
    """A primitive cannot be made exact under padding.

    Attributes:
        primitive: The primitive's name.
        symbols: The symbols whose padding is the cause.
    """

    def __init__(
        self,
        what: str,
        *,
        primitive: str,
        symbols: frozenset[str],
        fix: str,
        **lines: Unpack[_Lines],
    ) -> None:
        self.primitive, self.symbols = primitive, symbols
        super().__init__(what, fix=fix, **lines)


class InconclusiveShapeError(ShapeExecError, TypeError):
    """User code needs to know a size that is symbolic.

    Attributes:
        symbols: The symbols whose size would have to be known; empty: unknown.
    """

    def __init__(
        self,
        what: str,
        *,
        symbols: frozenset[str] = frozenset(),
        fix: str,
        **lines: Unpack[_Lines],
    ) -> None:
        self.symbols = symbols
        super().__init__(what, fix=fix, **lines)


class ValidationError(ShapeExecError, AssertionError):
    """Padding changes a result: `validate` has found a defect.

    Attributes:
        primitive: The primitive of the first equation whose valid part differs. None: each equation
            is right, but the function traces differently at symbolic sizes.
        sizes: The sizes of the call, by symbol.
        poison: The value that filled the padding; None: zeros.
    """

    def __init__(
        self,
        what: str,
        *,
        primitive: str | None,
        sizes: dict[str, int],
        poison: str | None,
        fix: str,
        **lines: Unpack[_Lines],
    ) -> None:
        self.primitive, self.sizes, self.poison = primitive, sizes, poison
        super().__init__(what, fix=fix, **lines)


class FrozenError(ShapeExecError, RuntimeError):
    """A frozen `Exec` needs a graph that is not compiled.

    Attributes:
        graph: The plan of the call, or the buckets of the graph that JAX has forgotten: a string.
    """

    def __init__(self, what: str, *, graph: str, fix: str, **lines: Unpack[_Lines]) -> None:
        self.graph = graph
        super().__init__(what, fix=fix, **lines)


class OutOfMemoryError(ShapeExecError, MemoryError):
    """A graph does not fit into the memory of its devices.

    Attributes:
        sizes: The sizes of the call, by symbol.
        buckets: The bucket of each symbol that was padded.
        bytes: The memory of the graph in bytes: inputs, outputs, temporaries and code. None: it
            could not be compiled, or the back end does not tell.
    """

    def __init__(
        self,
        what: str,
        *,
        sizes: dict[str, int],
        buckets: dict[str, int],
        bytes: int | None,
        got: str,
        fix: str,
    ) -> None:
        self.sizes, self.buckets, self.bytes = sizes, buckets, bytes
        super().__init__(what, fix=fix, got=got)


class BackendError(ShapeExecError, NotImplementedError):
    """No back end can run an attention call, or the requested one cannot.

    Attributes:
        reasons: By the name of each back end that was asked why it refuses; empty: none was.
    """

    def __init__(
        self,
        what: str,
        *,
        reasons: Mapping[str, str] | None = None,
        fix: str,
        **lines: Unpack[_Lines],
    ) -> None:
        self.reasons = dict(reasons or {})
        super().__init__(what, fix=fix, **lines)
