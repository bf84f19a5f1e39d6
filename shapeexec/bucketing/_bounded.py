"""Ladders that begin and end where the caller says, and what the sizes past the end get.

It knows no particular ladder.
"""

import abc
import dataclasses
from typing import Any

from shapeexec._code import code
from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing._base import Strategy, overflow
from shapeexec.bucketing._checks import as_int
from shapeexec.bucketing._laws import checked_bucket


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Bounded(Strategy):
    """An endless ladder, cut to begin at `minimum` and to end at `maximum`.

    A subclass gives the endless ladder as `_raw_bucket`, which obeys the three laws; the cuts keep
    them: up to `minimum` all sizes share it, and the last bucket is cut down to `maximum`.

    Attributes:
        minimum: The smallest bucket, whether or not the endless ladder has it. None: the ladder's
            own first.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`, given as whatever `as_strategy` takes:
            `"exact"`, `"linear:30"`, a `Strategy`. None, or `"error"`: they are a
            `BucketOverflowError`.
    """

    minimum: int | None = None
    maximum: int | None = None
    beyond: Any = None  # any form of a strategy; a Strategy or None once it is read

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "beyond" and (value is not None or not field.kw_only):
                object.__setattr__(self, field.name, self._checked(field.name, value))
        object.__setattr__(self, "beyond", as_beyond(self.beyond))
        if self.maximum is None and self.beyond is not None:
            raise ConfigError(
                f"beyond={self.beyond!r} without maximum=: an endless ladder has nothing past it.",
                fix=f"maximum=1024{_written(self.beyond)}, say, or leave beyond= out",
            )
        if self.maximum is not None and self.maximum < (self.minimum or 1):
            raise ConfigError(
                f"minimum={self.minimum} exceeds maximum={self.maximum}: no bucket lies between.",
                fix=f"minimum={self.maximum}, maximum={self.minimum}, or leave one out",
            )

    def _checked(self, name: str, value: object) -> object:
        """Check one option. Each is an integer of at least 1, unless a subclass says otherwise."""
        return as_int(value, name)

    @abc.abstractmethod
    def _raw_bucket(self, size: int) -> int:
        """Map a size to its bucket on the endless ladder."""

    def bucket(self, size: int) -> int:
        """Map a size to its bucket; see `Strategy.bucket`."""
        size = as_int(size, "size")
        if self.maximum is not None and size > self.maximum:
            if self.beyond is not None:
                return bucket_beyond(self, size, self.beyond, self.maximum)
            raise overflow(
                self,
                size,
                self.maximum,
                fix=f'maximum={size} or more, maximum=None for no end, or beyond="exact"',
            )
        if self.minimum is not None and size <= self.minimum:
            return self.minimum
        bucket = self._raw_bucket(size)
        return bucket if self.maximum is None else min(bucket, self.maximum)

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        own = [repr(getattr(self, field.name)) for field in fields if not field.kw_only]
        cuts = [
            f"{field.name}={value!r}"
            for field in fields
            if field.kw_only and (value := getattr(self, field.name)) is not None
        ]
        return f"{type(self).__name__}({', '.join(own + cuts)})"


def _written(beyond: Any) -> str:
    source = code(beyond)
    return "" if source is None else f", beyond={source}"


def as_beyond(value: Any) -> Strategy | None:
    """Read the option `beyond`.

    Args:
        value: `"error"` or None; or whatever `as_strategy` takes.

    Returns:
        The strategy of the sizes past the last bucket; None: they are an error.

    Raises:
        ConfigError: `value` is no strategy.
    """
    from shapeexec.bucketing._custom import as_strategy  # noqa: PLC0415 - it knows ladders

    is_error = value is None or (isinstance(value, str) and value.strip() == "error")
    return None if is_error else as_strategy(value, "beyond")


def bucket_beyond(strategy: Strategy, size: int, beyond: Strategy, last: int) -> int:
    """Map a size past the last bucket of `strategy` by the strategy that goes on there.

    Its buckets are larger than `last`, for each is at least its size. So a lawful `beyond` keeps
    the laws of the whole.

    Raises:
        BucketOverflowError: That strategy ends as well, before the size.
        StrategyError: Its bucket breaks a law.
    """
    try:
        return checked_bucket(beyond, size)
    except BucketOverflowError as error:
        served = max(last, error.last)
        fix = f'give beyond= a strategy that holds {size}, such as beyond="exact", or refuse '
        fix += f"inputs larger than {served}"
        raise overflow(strategy, size, served, fix=fix) from None
