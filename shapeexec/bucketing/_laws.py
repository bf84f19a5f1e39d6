"""The laws that make a strategy safe to pad by, and the checks of them.

Which bucket is a good one is not known here: only whether the answers hang together.
"""

import itertools
from collections.abc import Iterable
from typing import Protocol

from shapeexec._errors import BucketOverflowError, StrategyError
from shapeexec.bucketing._checks import as_int, is_int


class HasBucket(Protocol):
    """Whatever maps a size to a bucket."""

    def bucket(self, size: int, /) -> int:
        """Map a size to its bucket."""
        ...


class HasLowerBound(HasBucket, Protocol):
    """Whatever tells the least size of a bucket, too."""

    def lower_bound(self, bucket: int, /) -> int:
        """Find the smallest size that falls in a bucket."""
        ...


_WAY_ON = '; past a last bucket go on with Ladder([30, 60, 90], beyond="exact"), say'
_SMALL = range(1, 65)
_AROUND_POWERS = (2**power + offset for power in range(7, 21) for offset in (-1, 0, 1))
SPREAD = (*_SMALL, *_AROUND_POWERS)
"""The sizes that `check_laws` tries: all small ones, and those where ladders tend to turn."""


def check_laws(strategy: HasBucket, sizes: Iterable[int] = SPREAD) -> None:
    """Check a strategy's laws on a spread of sizes.

    A bucket is an int; it is at least its size; it is its own bucket; and larger sizes never get
    smaller buckets. A finite ladder is checked up to its end. Two calls of `bucket` for each size:
    the spread takes well below 1 ms.

    Args:
        strategy: The strategy, or any object with a `bucket` method.
        sizes: The sizes to try, in any order.

    Raises:
        StrategyError: A law does not hold; the message names the law, the size and the values.
        BucketOverflowError: Not even the smallest size has a bucket.
        ConfigError: A size is no integer of at least 1.

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
            raise _not_monotone(strategy, (smaller, bucket), (larger, next_bucket))


def checked_bucket(strategy: HasBucket, size: int) -> int:
    """Ask a strategy for a bucket, and check of the answer what one size can show.

    That is each law but monotony, which takes two sizes to break. Two calls of `bucket`.

    Args:
        strategy: The strategy, or any object with a `bucket` method.
        size: The size, at least 1.

    Returns:
        The bucket as a Python int: at least `size`, and its own bucket.

    Raises:
        StrategyError: The answer breaks a law.
        BucketOverflowError: The size lies past the strategy's last bucket.
        Exception: Whatever `bucket` itself raises, with a note that says for which size.
    """
    bucket = _ask(strategy, size)
    if bucket < size:
        raise StrategyError(
            f"{strategy!r} returns a bucket below the size.",
            got=f"bucket({size}) = {bucket}",
            why="an input cannot be padded to fewer elements than it has",
            fix=f"return a bucket of at least {size} for size {size}{_WAY_ON}",
        )
    if bucket == size:
        return bucket
    try:
        again = _ask(strategy, bucket)
    except BucketOverflowError as error:
        raise _not_idempotent(strategy, size, bucket, "past the last bucket") from error
    if again != bucket:
        raise _not_idempotent(strategy, size, bucket, str(again))
    return bucket


def checked_range(strategy: HasLowerBound, size: int) -> tuple[int, int]:
    """The least size that shares a size's bucket, and the bucket.

    The size lies between them, as monotony has it. `check_laws` tries a spread of sizes only, so
    this is where it shows at others.

    Raises:
        StrategyError: It does not, or the bucket breaks another law.
        BucketOverflowError: The size lies past the strategy's last bucket.
    """
    bucket = checked_bucket(strategy, size)
    least = strategy.lower_bound(bucket)
    if least > size:
        between = least - 1  # has a smaller bucket, or it would be the least
        raise _not_monotone(strategy, (size, bucket), (between, checked_bucket(strategy, between)))
    return least, bucket


def _not_monotone(
    strategy: HasBucket, smaller: tuple[int, int], larger: tuple[int, int]
) -> StrategyError:
    return StrategyError(
        f"{strategy!r} is not monotone: a larger size gets a smaller bucket.",
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
    except Exception as error:
        error.add_note(f"  Where: {strategy!r}, asked by shapeexec for the bucket of size {size}")
        raise
    if not is_int(bucket):
        raise StrategyError(
            f"{strategy!r} returns something other than an int.",
            got=f"bucket({size}) = {bucket!r}, a {type(bucket).__name__}",
            fix="return an int, by // rather than / and by int() around math.ceil of floats",
        )
    return int(bucket)


def _not_idempotent(strategy: HasBucket, size: int, bucket: int, again: str) -> StrategyError:
    return StrategyError(
        f"{strategy!r} is not idempotent: a bucket is not its own bucket.",
        got=f"bucket({size}) = {bucket}, yet bucket({bucket}) is {again}",
        why="an input that fills its bucket would be padded once more, into another graph",
        fix=f"return {bucket} for size {bucket}",
    )
