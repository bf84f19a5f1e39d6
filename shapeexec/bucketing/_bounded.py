"""Ladders with a smallest bucket, a last bucket, and a strategy for the sizes past it.

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
    """An infinite ladder, limited to `minimum` and `maximum`.

    A subclass defines the infinite ladder by `_raw_bucket`, which obeys the three laws. The limits
    keep them: all sizes up to `minimum` share it, and the last bucket is reduced to `maximum`.

    Attributes:
        minimum: The smallest bucket, whether or not the infinite ladder has it. None: the ladder's
            own first bucket.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`, as `as_strategy` takes it: `"exact"`,
            `"linear:30"`, a `Strategy`. None or `"error"`: such a size is a `BucketOverflowError`.
    """

    minimum: int | None = None
    maximum: int | None = None
    beyond: Any = None  # as `as_strategy` takes it; a Strategy or None after __post_init__

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "beyond" and (value is not None or not field.kw_only):
                object.__setattr__(self, field.name, self._checked(field.name, value))
        object.__setattr__(self, "beyond", as_beyond(self.beyond))
        if self.maximum is None and self.beyond is not None:
            raise ConfigError(
                f"beyond={self.beyond!r} without maximum=: an endless ladder has no sizes past it.",
                option="beyond",
                fix=f"maximum=1024{_written(self.beyond)}, say, or leave beyond= out",
            )
        if self.maximum is not None and self.maximum < (self.minimum or 1):
            raise ConfigError(
                f"minimum={self.minimum} exceeds maximum={self.maximum}: no bucket lies between.",
                option="minimum",
                fix=f"minimum={self.maximum}, maximum={self.minimum}, or leave one out",
            )

    def _checked(self, name: str, value: object) -> object:
        """Check one option: an integer of at least 1, unless a subclass overrides this."""
        return as_int(value, name)

    @abc.abstractmethod
    def _raw_bucket(self, size: int) -> int:
        """Map a size to its bucket on the infinite ladder."""

    def bucket(self, size: int) -> int:
        """Map a size to its bucket; see `Strategy.bucket`."""
        size = as_int(size, "size")
        if self.maximum is not None and size > self.maximum:
            if self.beyond is not None:
                return bucket_beyond(self, size, beyond=self.beyond, last=self.maximum)
            raise overflow(
                self,
                size,
                last=self.maximum,
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
        value: `"error"`, None, or a strategy as `as_strategy` takes it.

    Returns:
        The strategy of the sizes past the last bucket; None: they are an error.

    Raises:
        ConfigError: `value` is not a strategy, or one that learns.
    """
    from shapeexec.bucketing._custom import as_part  # noqa: PLC0415 - it knows ladders

    is_error = value is None or (isinstance(value, str) and value.strip() == "error")
    return None if is_error else as_part(value, "beyond")


def bucket_beyond(strategy: Strategy, size: int, *, beyond: Strategy, last: int) -> int:
    """Map a size past the last bucket of `strategy` by the strategy `beyond`.

    Its buckets are larger than `last`, because each is at least its size. So if `beyond` obeys the
    laws, both together do.

    Raises:
        BucketOverflowError: The size is past the last bucket of `beyond`, too.
        StrategyError: The bucket breaks a law.
    """
    try:
        return checked_bucket(beyond, size)
    except BucketOverflowError as error:
        served = max(last, error.last)
        fix = f'give beyond= a strategy that holds {size}, such as beyond="exact", or refuse '
        fix += f"inputs larger than {served}"
        raise overflow(strategy, size, last=served, fix=fix) from None
