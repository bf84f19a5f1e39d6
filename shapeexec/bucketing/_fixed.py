"""The strategies of the library, each a ladder given by one or two numbers or by a list.

None of them adapts: `Ladder.fit` returns a plain `Ladder`.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Literal

from shapeexec._errors import ConfigError
from shapeexec.bucketing._base import Strategy, overflow
from shapeexec.bucketing._bounded import Bounded, as_beyond, bucket_beyond
from shapeexec.bucketing._checks import Sizes, as_float, as_int, histogram
from shapeexec.bucketing._fit import cheapest_buckets, costs_of


@dataclasses.dataclass(frozen=True, repr=False)
class Exact(Bounded):
    """Each size is its own bucket.

    No padding; a range up to `n` needs `n` graphs.

    Attributes:
        minimum: The smallest bucket, which all smaller sizes share. None: 1.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Exact().bucket(100)
        100
    """

    def _raw_bucket(self, size: int) -> int:
        return size


@dataclasses.dataclass(frozen=True, repr=False)
class Pow2(Bounded):
    """Buckets at the powers of two.

    Padding is less than the size itself; a range up to `n` needs `ceil(log2(n)) + 1` graphs. Of
    lengths uniform in 1 to `n`, the share of padding is from 1/4 (`n` a power of two) to 1/3 (`n`
    at 4/3 of one).

    Attributes:
        minimum: The smallest bucket, a power of two or not. None: 1.
        maximum: The last bucket, a power of two or not. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Pow2(minimum=16).buckets_up_to(100)
        (16, 32, 64, 128)
    """

    def _raw_bucket(self, size: int) -> int:
        return _pow2_from(size)


def _pow2_from(size: int) -> int:
    return 1 << (size - 1).bit_length()


@dataclasses.dataclass(frozen=True, repr=False)
class Linear(Bounded):
    """Buckets at the multiples of `step`.

    Padding is at most `step - 1` elements; a range up to `n` needs `ceil(n / step)` graphs.

    Attributes:
        step: The distance from bucket to bucket.
        minimum: The smallest bucket, a multiple or not. None: `step`.
        maximum: The last bucket, a multiple or not. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Linear(128).buckets_up_to(300)
        (128, 256, 384)
    """

    step: int

    def _raw_bucket(self, size: int) -> int:
        return _multiple_from(size, self.step)


def _multiple_from(size: int, step: int) -> int:
    return -(-size // step) * step


@dataclasses.dataclass(frozen=True, repr=False)
class Geometric(Bounded):
    """Buckets that each are `ratio` times the one before, rounded up to an integer.

    Padding is less than `(ratio - 1) * size`; a range up to `n` needs at most
    `ceil(log(n, ratio)) + 1` graphs. The ladder is computed in exact arithmetic from the ratio as
    it is written (1.1 is 11/10), so that it is the same on every machine.

    Attributes:
        ratio: The ratio of a bucket to the one before, above 1; kept as a float.
        minimum: The first bucket, from which the ladder grows. None: 1.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Geometric(1.5).buckets_up_to(30)
        (1, 2, 3, 5, 8, 12, 18, 27, 41)
    """

    ratio: float

    def _checked(self, name: str, value: object) -> object:
        if name != "ratio":
            return as_int(value, name)
        ratio = as_float(value)
        if not 1 < ratio < math.inf:
            raise ConfigError(
                f"ratio={value!r} is not a finite number above 1.",
                option="ratio",
                fix="ratio=1.5, say; for a bucket at each size, Exact()",
            )
        return ratio

    def _raw_bucket(self, size: int) -> int:
        rungs = _geometric_rungs(self.minimum or 1, self.ratio, bits=size.bit_length())
        return rungs[bisect.bisect_left(rungs, size)]


@functools.lru_cache(maxsize=1024)
def _geometric_rungs(first: int, ratio: float, *, bits: int) -> tuple[int, ...]:
    """List the buckets for sizes of up to `bits` bits, so that few lists are kept."""
    numerator, denominator = Fraction(repr(ratio)).as_integer_ratio()
    rungs = [first]
    while rungs[-1] < 1 << bits:
        rungs.append(-(-rungs[-1] * numerator // denominator))
    return tuple(rungs)


@dataclasses.dataclass(frozen=True, repr=False)
class Hybrid(Bounded):
    """Buckets at the powers of two up to `threshold`, and every `step` past it.

    Padding is less than the size up to the threshold, and at most `step - 1` elements past it. A
    range up to `n` needs `ceil(log2(threshold)) + 1` graphs up to the threshold and
    `ceil((n - threshold) / step)` past it.

    Attributes:
        threshold: The bucket at which doubling stops, a power of two or not.
        step: The distance from bucket to bucket past the threshold.
        minimum: The smallest bucket. None: 1.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Hybrid(256, 128).buckets_up_to(500)
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512)
    """

    threshold: int
    step: int

    def _raw_bucket(self, size: int) -> int:
        if size <= self.threshold:
            return min(_pow2_from(size), self.threshold)
        return self.threshold + _multiple_from(size - self.threshold, self.step)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Ladder(Strategy):
    """Buckets at the given values, and no others.

    Padding is less than the distance to the bucket before; a range up to the last bucket needs
    `len(buckets)` graphs.

    Attributes:
        buckets: The buckets, ascending. May be given as any iterable of ints, in any order and with
            duplicates.
        beyond: The strategy of sizes past the last bucket, as `as_strategy` takes it: `"exact"` (a
            graph per size), `"linear:30"`, a `Strategy`. None or `"error"`: such a size is a
            `BucketOverflowError`.

    Example:
        >>> Ladder([30, 60, 90]).bucket(31)
        60
        >>> Ladder([30, 60, 90], beyond="linear:30").bucket(91)
        120
    """

    buckets: tuple[int, ...]
    beyond: Strategy | None = None

    def __init__(self, buckets: Iterable[int], *, beyond: Any = None) -> None:
        try:
            values = list(buckets)
        except TypeError:
            raise ConfigError(
                f"buckets={buckets!r} is not a collection of ints.",
                option="buckets",
                fix="Ladder([30, 60, 90]), say",
            ) from None
        if not values:
            raise ConfigError(
                "buckets is empty: no size would have a bucket.",
                option="buckets",
                fix="pass at least one bucket",
            )
        checked = {as_int(value, f"buckets[{index}]") for index, value in enumerate(values)}
        object.__setattr__(self, "buckets", tuple(sorted(checked)))
        object.__setattr__(self, "beyond", as_beyond(beyond))

    def bucket(self, size: int) -> int:
        """Map a size to its bucket; see `Strategy.bucket`.

        Raises:
            ConfigError: `size` is not an integer of at least 1.
            BucketOverflowError: `size` is past the last bucket, and `beyond` is None.
        """
        size = as_int(size, "size")
        index = bisect.bisect_left(self.buckets, size)
        if index == len(self.buckets):
            if self.beyond is not None:
                return bucket_beyond(self, size, beyond=self.beyond, last=self.buckets[-1])
            fix = f'add a bucket of {size} or more, pass beyond="exact" or another strategy for '
            fix += f"larger sizes, or refuse inputs larger than {self.buckets[-1]}"
            raise overflow(self, size, last=self.buckets[-1], fix=fix)
        return self.buckets[index]

    @classmethod
    def fit(
        cls,
        sizes: Sizes,
        graphs: int = 16,
        *,
        cost: Literal["linear", "quadratic"] | Callable[[int], float] = "linear",
    ) -> "Ladder":
        """Fit the ladder that pads the given sizes at the lowest total cost.

        No ladder of at most `graphs` buckets is cheaper on these sizes. Dynamic programming over
        the `n` distinct sizes (see `_fit`) takes time `graphs * n * log(n)`. Of equally cheap
        ladders it returns one with the fewest buckets.

        Args:
            sizes: The sizes that occur, or a mapping from size to count. A size with count 0 costs
                nothing, but the ladder covers it: include the largest size that may occur.
            graphs: The maximum number of buckets, and so of graphs.
            cost: The cost of a call at a bucket: "linear" (in proportion to the bucket),
                "quadratic" (to its square, as attention does), or a function from bucket to cost
                that never falls as the bucket grows.

        Raises:
            ConfigError: There is no size, an argument is out of range, or the cost falls.

        Example:
            >>> Ladder.fit([10, 11, 12, 50, 51, 90], graphs=3)
            Ladder([12, 51, 90])
        """
        graphs, counts = as_int(graphs, "graphs"), histogram(sizes)
        return cls(cheapest_buckets(counts, costs_of(list(counts), cost), graphs=graphs))

    def __repr__(self) -> str:
        beyond = "" if self.beyond is None else f", beyond={self.beyond!r}"
        return f"Ladder({list(self.buckets)}{beyond})"


def runs_exact(strategy: Strategy, size: int) -> bool:
    """Whether a size runs without padding: it is 0, or `Exact()` applies to it, or is `beyond`."""
    if size == 0:
        return True
    last, beyond = _end(strategy)
    if beyond is not None and last is not None and size > last:
        return runs_exact(beyond, size)
    return strategy == Exact()


def last_bucket(strategy: Strategy) -> int | None:
    """The last bucket of a ladder, of `beyond` if that has one; None: there is no last one."""
    last, beyond = _end(strategy)
    further = None if beyond is None else last_bucket(beyond)
    return last if last is None or further is None else max(last, further)


def _end(strategy: Strategy) -> tuple[int | None, Strategy | None]:
    """The last bucket without `beyond`, and `beyond`."""
    if isinstance(strategy, Ladder):
        return strategy.buckets[-1], strategy.beyond
    return (strategy.maximum, strategy.beyond) if isinstance(strategy, Bounded) else (None, None)
