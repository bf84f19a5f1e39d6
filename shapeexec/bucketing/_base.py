"""The base class of strategies, whose methods all follow from `bucket`.

It knows no particular ladder and nothing of JAX: sizes and buckets are Python ints.
"""

import abc
import bisect
from typing import ClassVar

from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing._checks import Sizes, as_int, histogram
from shapeexec.bucketing._laws import checked_bucket


class Strategy(abc.ABC):
    """Maps a size to its bucket: the value it is padded to, for which one graph is compiled.

    A subclass is a frozen dataclass (a value that hashes and compares) with one method, `bucket`,
    that obeys three laws for sizes of 1 and more:

    - a bucket is at least its size;
    - larger sizes never get smaller buckets (monotone);
    - a bucket is its own bucket (idempotent).

    `check_laws` checks them. The other methods follow from `bucket`.

    Attributes:
        learns: Whether an `Exec` changes its buckets. It learns for a symbol, so such a strategy is
            no part of another one.

    Example:
        >>> Pow2().bucket(100)
        128
    """

    learns: ClassVar[bool] = False

    @abc.abstractmethod
    def bucket(self, size: int) -> int:
        """Map a size to its bucket.

        Args:
            size: The true size, at least 1.

        Returns:
            The bucket, at least `size`.

        Raises:
            BucketOverflowError: The ladder is finite, and `size` is past its last bucket.
        """

    def buckets_up_to(self, n: int) -> tuple[int, ...]:
        """List the buckets that the sizes 1 to `n` use, ascending: one graph each.

        Args:
            n: The largest size, at least 1.

        Returns:
            The buckets, without repetition.

        Raises:
            ShapeExecError: As for `ladder`.

        Example:
            >>> Pow2().buckets_up_to(100)
            (1, 2, 4, 8, 16, 32, 64, 128)
        """
        return self.ladder(1, as_int(n, "n"))

    def ladder(self, lo: int, hi: int) -> tuple[int, ...]:
        """List the buckets that the sizes `lo` to `hi`, both included, use, ascending.

        It jumps from bucket to bucket, so it costs a call or two for each bucket, not for each
        size.

        Args:
            lo: The smallest size, at least 1.
            hi: The largest size.

        Returns:
            The buckets, without repetition.

        Raises:
            ConfigError: `lo` or `hi` is not an integer of at least 1, or `lo` exceeds `hi`.
            BucketOverflowError: `hi` is past the last bucket.
            StrategyError: A bucket breaks a law.

        Example:
            >>> Linear(128).ladder(100, 300)
            (128, 256, 384)
        """
        lo, hi = as_int(lo, "lo"), as_int(hi, "hi")
        if lo > hi:
            raise ConfigError(
                f"lo={lo} exceeds hi={hi}: no size lies between.",
                option="lo",
                fix=f"ladder({hi}, {lo})",
            )
        buckets = [checked_bucket(self, lo)]
        while buckets[-1] < hi:
            buckets.append(checked_bucket(self, buckets[-1] + 1))
        return tuple(buckets)

    def expected_waste(self, sizes: Sizes) -> float:
        """Compute the share of padding for given sizes.

        Args:
            sizes: The sizes that occur, or a mapping from size to count.

        Returns:
            The share of the padded elements that are padding, from 0 to just below 1.

        Raises:
            ConfigError: There is no size, or one is not an integer of at least 1.
            BucketOverflowError: A size is past the last bucket.

        Example:
            >>> Pow2().expected_waste([3, 4, 5])
            0.25
        """
        counts = {size: count for size, count in histogram(sizes).items() if count}
        valid = sum(size * count for size, count in counts.items())
        padded = sum(checked_bucket(self, size) * count for size, count in counts.items())
        return (padded - valid) / padded

    def lower_bound(self, bucket: int) -> int:
        """Find the smallest size that falls in a bucket; the largest is the bucket itself.

        Args:
            bucket: A bucket of this strategy.

        Returns:
            The size, at least 1.

        Raises:
            ConfigError: `bucket` is not a bucket of this strategy.

        Example:
            >>> Pow2().lower_bound(128)
            65
        """
        bucket = as_int(bucket, "bucket")
        own = checked_bucket(self, bucket)
        if own != bucket:
            raise ConfigError(
                f"bucket={bucket} is not a bucket of {self!r}.",
                option="bucket",
                fix=f"pass {own}, the bucket that size {bucket} falls in",
            )
        return 1 + bisect.bisect_left(range(1, bucket), bucket, key=self.bucket)


_MOST_SHOWN, _FIRST, _LAST = 12, 6, 3


def overflow(strategy: Strategy, size: int, *, last: int, fix: str) -> BucketOverflowError:
    """Make the error for a size past the last bucket; it lists both ends of the ladder."""
    return BucketOverflowError(
        f"size={size} is past the last bucket of {type(strategy).__name__}: "
        f"{', '.join(_ends(strategy, last))}.",
        size=size,
        ladder=lambda: strategy.buckets_up_to(last),
        last=last,
        fix=fix,
    )


def _ends(strategy: Strategy, last: int) -> list[str]:
    """The buckets up to the last. Of a long ladder only the first and last ones are computed."""
    buckets = [checked_bucket(strategy, 1)]
    while buckets[-1] < last and len(buckets) <= _MOST_SHOWN:
        buckets.append(checked_bucket(strategy, buckets[-1] + 1))
    if buckets[-1] >= last and len(buckets) <= _MOST_SHOWN:
        return list(map(str, buckets))
    back = [last]
    while len(back) < _LAST:
        back.insert(0, checked_bucket(strategy, strategy.lower_bound(back[0]) - 1))
    return [*map(str, buckets[:_FIRST]), "...", *map(str, back)]
