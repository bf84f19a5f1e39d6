"""The laws that every strategy must obey, and their checks.

The laws say whether buckets are consistent, not how good they are.
"""

import itertools
from collections.abc import Iterable
from typing import Protocol

from shapeexec._errors import BucketOverflowError, StrategyError
from shapeexec.bucketing._checks import as_int, is_int


class HasBucket(Protocol):
    """An object that maps a size to a bucket."""

    def bucket(self, size: int, /) -> int:
        """Map a size to its bucket."""
        ...


class HasLowerBound(HasBucket, Protocol):
    """An object that also gives the smallest size of a bucket."""

    def lower_bound(self, bucket: int, /) -> int:
        """Find the smallest size that falls in a bucket."""
        ...


_WAY_ON = '; past a last bucket go on with Ladder([30, 60, 90], beyond="exact"), say'
_SMALL = range(1, 65)
_AROUND_POWERS = (2**power + offset for power in range(7, 21) for offset in (-1, 0, 1))
SPREAD = (*_SMALL, *_AROUND_POWERS)
"""The sizes that `check_laws` checks: all small ones, and those around powers of two."""


def check_laws(strategy: HasBucket, sizes: Iterable[int] = SPREAD) -> None:
    """Check a strategy's laws on a spread of sizes.

    A bucket is an int; it is at least its size; it is its own bucket; and larger sizes never get
    smaller buckets. A finite ladder is checked up to its end. It calls `bucket` twice per size; the
    default sizes take well below 1 ms.

    Args:
        strategy: The strategy, or any object with a `bucket` method.
        sizes: The sizes to check, in any order.

    Raises:
        StrategyError: A law does not hold; the message names the law, the size and the values.
        BucketOverflowError: The smallest size has no bucket.
        ConfigError: A size is not an integer of at least 1.

    Example:
        >>> check_laws(Linear(8))
    """
    ascending = sorted(as_int(size, "size") for size in sizes)
    found: list[tuple[int, int]] = []
    for size in ascending:
        try:
            found.append((size, checked_bucket(strategy, size)))
        except BucketOverflowError:
            if not found:
                raise
            break
    for (smaller, bucket), (larger, next_bucket) in itertools.pairwise(found):
        if next_bucket < bucket:
            raise _not_monotone(strategy, smaller=(smaller, bucket), larger=(larger, next_bucket))


def checked_bucket(strategy: HasBucket, size: int) -> int:
    """Return the bucket of a size, and check the laws that concern one size.

    These are all laws but monotonicity, which concerns two sizes. It calls `bucket` twice.

    Args:
        strategy: The strategy, or any object with a `bucket` method.
        size: The size, at least 1.

    Returns:
        The bucket as a Python int: at least `size`, and its own bucket.

    Raises:
        StrategyError: The bucket breaks a law.
        BucketOverflowError: The size is past the strategy's last bucket.
        Exception: Whatever `bucket` raises, with a note that names the size.
    """
    bucket = _ask(strategy, size)
    if bucket < size:
        raise StrategyError(
            f"{strategy!r} returns a bucket below the size.",
            strategy=strategy,
            size=size,
            bucket=bucket,
            got=f"bucket({size}) = {bucket}",
            why="an input cannot be padded to fewer elements than it has",
            fix=f"return a bucket of at least {size} for size {size}{_WAY_ON}",
        )
    if bucket == size:
        return bucket
    try:
        again = _ask(strategy, bucket)
    except BucketOverflowError as error:
        raise _not_idempotent(
            strategy, size, bucket=bucket, again="past the last bucket"
        ) from error
    if again != bucket:
        raise _not_idempotent(strategy, size, bucket=bucket, again=str(again))
    return bucket


def buckets_of(strategy: HasBucket, sizes: Iterable[int]) -> tuple[int, ...]:
    """The buckets of sizes, ascending, each once.

    Raises:
        StrategyError: A bucket breaks a law.
        BucketOverflowError: A size is past the strategy's last bucket.
    """
    return tuple(sorted({checked_bucket(strategy, size) for size in set(sizes)}))


def checked_range(strategy: HasLowerBound, size: int) -> tuple[int, int]:
    """The smallest size in the bucket of a size, and the bucket.

    In a monotone strategy the size lies between the two. `check_laws` tests that at some sizes
    only, so it is tested here at each size that occurs.

    Raises:
        StrategyError: The strategy is not monotone, or the bucket breaks another law.
        BucketOverflowError: The size is past the strategy's last bucket.
    """
    bucket = checked_bucket(strategy, size)
    least = strategy.lower_bound(bucket)
    if least > size:
        between = least - 1  # has a smaller bucket, or it would be the smallest size
        larger = between, checked_bucket(strategy, between)
        raise _not_monotone(strategy, smaller=(size, bucket), larger=larger)
    return least, bucket


def _not_monotone(
    strategy: HasBucket, *, smaller: tuple[int, int], larger: tuple[int, int]
) -> StrategyError:
    return StrategyError(
        f"{strategy!r} is not monotone: a larger size gets a smaller bucket.",
        strategy=strategy,
        size=larger[0],
        bucket=larger[1],
        got=f"bucket({smaller[0]}) = {smaller[1]}, yet bucket({larger[0]}) = {larger[1]}",
        why="the sizes that share a bucket must be neighbours: warm-up and bounds on sizes rely "
        "on it",
        fix=f"let larger sizes never get smaller buckets{_WAY_ON}",
    )


def _ask(strategy: HasBucket, size: int) -> int:
    try:
        bucket = strategy.bucket(size)
    except BucketOverflowError:
        raise
    except Exception as error:  # a strategy of the user may raise anything; it gets a note
        error.add_note(f"  Where: {strategy!r}, asked by shapeexec for the bucket of size {size}")
        raise
    if not is_int(bucket):
        raise StrategyError(
            f"{strategy!r} returns something other than an int.",
            strategy=strategy,
            size=size,
            bucket=bucket,
            got=f"bucket({size}) = {bucket!r}, a {type(bucket).__name__}",
            fix="return an int, by // rather than / and by int() around math.ceil of floats",
        )
    return int(bucket)


def _not_idempotent(strategy: HasBucket, size: int, *, bucket: int, again: str) -> StrategyError:
    return StrategyError(
        f"{strategy!r} is not idempotent: a bucket is not its own bucket.",
        strategy=strategy,
        size=size,
        bucket=bucket,
        got=f"bucket({size}) = {bucket}, yet bucket({bucket}) is {again}",
        why="an input that fills its bucket would be padded once more, into another graph",
        fix=f"return {bucket} for size {bucket}",
    )
