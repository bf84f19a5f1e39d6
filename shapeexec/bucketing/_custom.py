"""Strategies from strings, numbers, lists, functions and other objects: `as_strategy`.

The laws are not checked here; `check_laws` and `checked_bucket` do that.
"""

import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterable
from typing import cast

from shapeexec._code import code
from shapeexec._errors import ConfigError
from shapeexec.bucketing._base import Strategy
from shapeexec.bucketing._checks import as_int, is_int
from shapeexec.bucketing._fixed import Exact, Geometric, Hybrid, Ladder, Linear, Pow2


@dataclasses.dataclass(frozen=True, repr=False)
class Custom(Strategy):
    """Buckets by a function.

    Padding and the number of graphs depend on the function. Two are equal if their functions are.

    Attributes:
        fn: Maps a size to its bucket, by the laws of `Strategy`.

    Example:
        >>> Custom(lambda size: size + size % 2).bucket(7)
        8
    """

    fn: Callable[[int], int]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ConfigError(
                f"fn={self.fn!r} cannot be called.",
                option="fn",
                fix="pass a function from size to bucket",
            )

    def bucket(self, size: int) -> int:
        """Map a size to its bucket; see `Strategy.bucket`."""
        return self.fn(size)

    def __repr__(self) -> str:
        code = getattr(self.fn, "__code__", None)
        if code is None:
            return f"Custom({self.fn!r})"
        place = f"{pathlib.PurePath(code.co_filename).name}:{code.co_firstlineno}"
        return f"Custom({self.fn.__qualname__} at {place})"


@code.register
def _(value: Custom) -> str | None:
    return code(value.fn)  # a function is accepted wherever a strategy is


def as_part(value: object, name: str) -> Strategy:
    """As `as_strategy`, for the option `name` of another strategy.

    Raises:
        ConfigError: `value` is not a strategy, or learns: a part does not get the sizes of calls.
    """
    strategy = as_strategy(value, name)
    if strategy.learns:
        raise ConfigError(
            f"{name}={strategy!r} learns its buckets, which a part of a strategy cannot.",
            option=name,
            fix=f'{name}="pow2", or another strategy that does not learn',
        )
    return strategy


def as_strategy(value: object, name: str = "buckets") -> Strategy:
    """Convert a string, a number, a list or a function to a strategy.

    Args:
        value: A `Strategy`, which is returned unchanged; a string: `"exact"`, `"pow2"`,
            `"linear:8"`, `"geometric:1.5"`, `"hybrid:64,64"` or `"ladder:30,60,90"`; an int `n`,
            for `Linear(n)`; a list or tuple of ints, the buckets of a `Ladder`; any other object
            with a method `bucket(size)`; or a function from size to bucket.
        name: The option that it was given for.

    Returns:
        The strategy.

    Raises:
        ConfigError: `value` is none of these, such as a class in place of its instance.

    Example:
        >>> as_strategy("linear:8")
        Linear(8)
    """
    if isinstance(value, Strategy):
        return value
    if isinstance(value, str):
        return _of_text(value, name)
    if is_int(value):
        return Linear(as_int(value, name))
    if isinstance(value, (list, tuple, range)):
        return Ladder(cast(Iterable[int], value))
    if isinstance(value, type):
        raise ConfigError(
            f"{name}={value.__name__} is a class, not a strategy.",
            option=name,
            fix=f"{_made(value)}, an instance of it",
        )
    function = getattr(value, "bucket", value)
    if not callable(function):
        raise ConfigError(
            f"{name}={value!r} is not a strategy.",
            option=name,
            got=type(value).__name__,
            fix='a strategy such as Pow2(), its name "pow2", 32 for multiples of 32, [8, 16] for '
            "these buckets, an object with a method bucket(size), or a function of the size",
        )
    return Custom(function)  # pyright: ignore[reportArgumentType] - `checked_bucket` sees its answers


def _made(kind: type) -> str:
    """The source of an instance, with `...` for the arguments that a class needs."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:  # some builtin classes have no signature
        return f"{code(kind)}(...)"
    is_needed = any(one.default is one.empty and one.kind not in _MANY for one in parameters)
    return f"{code(kind)}({'...' if is_needed else ''})"


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


_TEXTS: dict[str, Callable[..., Strategy]] = {
    "exact": Exact,
    "pow2": Pow2,
    "linear": Linear,
    "geometric": Geometric,
    "hybrid": Hybrid,
    "ladder": lambda *buckets: Ladder(buckets),
}


def _of_text(text: str, name: str) -> Strategy:
    kind, colon, numbers = text.strip().partition(":")
    try:
        return _TEXTS[kind.strip()](*map(_number, numbers.split(","))) if colon else _TEXTS[kind]()
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{name}={text!r} is not a strategy.",
            option=name,
            why=error.what if isinstance(error, ConfigError) else None,
            fix='"exact", "pow2", "linear:8", "geometric:1.5", "hybrid:64,64", "ladder:30,60,90", '
            "or a strategy, which has options: Pow2(minimum=16)",
        ) from None


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
