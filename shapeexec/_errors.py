"""Every exception of the library, and how its message is laid out.

A message says what went wrong in its first line, then where, what was got, why, and always how to
fix it. Callers read the fields; they never parse the text.
"""

from collections.abc import Callable, Iterable


def named(symbols: Iterable[str]) -> str:
    """Symbols as messages name them: "`b` and `s`"."""
    return " and ".join(f"`{symbol}`" for symbol in sorted(set(symbols)))


def made_exact(symbols: Iterable[str]) -> str:
    """The way out that always is: no padding of these symbols, and a graph for each size.

    Args:
        symbols: Their names; none: those that are the matter are not known.
    """
    symbols = set(symbols)
    told, strategies = named(symbols) or "the symbol", exact_strategies(symbols)
    return f'make {told} exact: on_unsupported="exact", or {strategies} in buckets='


def exact_strategies(symbols: Iterable[str]) -> str:
    """What makes symbols exact in `buckets=`, as the items of a dict: `"s": sx.Exact()`."""
    return ", ".join(f'"{symbol}": sx.Exact()' for symbol in sorted(symbols)) or "sx.Exact()"


class ShapeExecError(Exception):
    """The base of every error that shapeexec raises on purpose.

    Attributes:
        what: The first line: what went wrong, with the value.
        where: The user's source line or the argument's path; None if there is none to tell.
        got: The offending shapes or values.
        why: The reason, where it is not obvious.
        fix: The way out.
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
    told = [f"  {name + ':':<6} {text}" for name, text in lines if text]
    return "\n".join([error.what, *told])


def tell_fix(error: ShapeExecError, fix: str) -> None:
    """Let an error that is on its way tell another way out."""
    error.fix = fix
    error.args = (_laid_out(error),)


class ConfigError(ShapeExecError, ValueError):
    """An option has a value that cannot work."""


class SpecError(ShapeExecError, ValueError):
    """A shape spec is malformed, or an argument contradicts it."""


class StrategyError(ShapeExecError, ValueError):
    """A bucketing strategy breaks one of its laws."""


class BucketOverflowError(ShapeExecError, ValueError):
    """A size lies past the last bucket of a finite ladder.

    Attributes:
        size: The size that has no bucket.
        symbol: The symbol whose size it is, where that is known.
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
        """The buckets there are, ascending."""
        if not isinstance(self._ladder, tuple):
            self._ladder = self._ladder()  # a million of them, maybe, of which few are asked for
        return self._ladder

    @property
    def last(self) -> int:
        """The last bucket."""
        return self.ladder[-1] if self._last is None else self._last

    def of(self, symbol: str) -> "BucketOverflowError":
        """The error for the size of a symbol."""
        return BucketOverflowError(
            self.what,
            size=self.size,
            ladder=self._ladder,
            fix=self.fix,
            last=self._last,
            symbol=symbol,
        )


class ConstraintError(ShapeExecError, ValueError):
    """A call's sizes break a constraint that its `Exec` was given.

    Attributes:
        constraint: The text of the constraint, such as `s >= 2`.
        sizes: The sizes of the call, by symbol.
    """

    def __init__(self, what: str, *, constraint: str, sizes: dict[str, int], fix: str) -> None:
        self.constraint, self.sizes = constraint, sizes
        super().__init__(what, fix=fix)


class UnboundedDimError(ShapeExecError, ValueError):
    """No finite capacity is known for a dimension."""


class UnsupportedPrimitiveError(ShapeExecError, NotImplementedError):
    """A primitive cannot be made exact under padding.

    Attributes:
        primitive: The primitive's name.
        symbols: The symbols whose padding is the matter.
    """

    def __init__(
        self,
        what: str,
        *,
        primitive: str,
        symbols: frozenset[str],
        fix: str,
        where: str | None = None,
        got: str | None = None,
        why: str | None = None,
    ) -> None:
        self.primitive, self.symbols = primitive, symbols
        super().__init__(what, fix=fix, where=where, got=got, why=why)


class InconclusiveShapeError(ShapeExecError, TypeError):
    """User code asks of a symbolic size what only a known size can answer.

    Attributes:
        symbols: The symbols whose size would have to be known; empty if JAX did not tell.
    """

    def __init__(
        self,
        what: str,
        *,
        symbols: frozenset[str] = frozenset(),
        fix: str,
        where: str | None = None,
        got: str | None = None,
        why: str | None = None,
    ) -> None:
        self.symbols = symbols
        super().__init__(what, fix=fix, where=where, got=got, why=why)


class ValidationError(ShapeExecError, AssertionError):
    """Padding changes a result: `validate` has found a defect.

    Attributes:
        primitive: The primitive of the first equation whose valid part differs; None if each
            equation is right, and the function traces differently at symbolic sizes.
        sizes: The sizes of the call, by symbol.
        poison: What the padding held; None: zeros.
    """

    def __init__(
        self,
        what: str,
        *,
        primitive: str | None,
        sizes: dict[str, int],
        poison: str | None,
        fix: str,
        where: str | None = None,
        got: str | None = None,
        why: str | None = None,
    ) -> None:
        self.primitive, self.sizes, self.poison = primitive, sizes, poison
        super().__init__(what, fix=fix, where=where, got=got, why=why)


class FrozenError(ShapeExecError, RuntimeError):
    """A frozen `Exec` was asked for a graph that it does not hold."""


class BackendError(ShapeExecError, NotImplementedError):
    """No back end, or not the one that was asked for, can run a call of attention."""
