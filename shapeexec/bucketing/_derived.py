"""Strategies by a requirement: multiples of a tile, or a greatest share of padding.

Ladders that are given by numbers are in `_fixed`, and the tiles of devices in `costing`.
"""

import bisect
import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing._bounded import Bounded
from shapeexec.bucketing._checks import as_float, as_int
from shapeexec.bucketing._custom import as_part
from shapeexec.bucketing._laws import checked_bucket


@dataclasses.dataclass(frozen=True, repr=False)
class Aligned(Bounded):
    """Buckets of another strategy, rounded up to multiples of a tile.

    A size gets the rounded bucket of the least size of its tile, so that the laws hold. Padding is
    at most the padding of the other strategy plus `to - 1` elements; there are at most as many
    graphs.

    Attributes:
        to: The number whose multiples the buckets are, such as 128.
        strategy: The other strategy, as `as_strategy` takes it. By default each multiple is a
            bucket.
        minimum: The smallest bucket, a multiple or not. None: the first multiple in use.
        maximum: The last bucket, a multiple or not. None: no end, but that of the other strategy.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> Aligned(128, "geometric:1.5").buckets_up_to(1000)
        (128, 256, 384, 512, 768, 1152)
    """

    to: int
    strategy: Any = "exact"  # as `as_strategy` takes it; a Strategy after __post_init__

    def _checked(self, name: str, value: object) -> object:
        return as_part(value, "strategy") if name == "strategy" else as_int(value, name)

    def _raw_bucket(self, size: int) -> int:
        first = (size - 1) // self.to * self.to + 1
        try:
            bucket = checked_bucket(self.strategy, first)
        except BucketOverflowError:
            bucket = checked_bucket(self.strategy, size)  # its error names the size
        return -(-bucket // self.to) * self.to


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryOptimal(Bounded):
    """The fewest buckets of which none is padded by more than a share.

    For each size up to `n` padding is at most `max_waste` of the bucket; that needs about
    `log(n) / -log(1 - max_waste)` graphs more than one per size up to `1 / max_waste`. The ladder
    is computed in exact arithmetic from the share as it is written.

    Attributes:
        max_waste: The greatest share of a bucket that is padding, above 0 and below 1.
        minimum: The first bucket, which all smaller sizes share, whatever their padding. None: the
            greatest bucket that size 1 may have: 1 if `max_waste` is below a half.
        maximum: The last bucket. None: no end.
        beyond: The strategy of sizes past `maximum`; see `Ladder`. None: they are an error.

    Example:
        >>> MemoryOptimal(max_waste=0.25).buckets_up_to(50)
        (1, 2, 4, 6, 9, 13, 18, 25, 34, 46, 62)
    """

    max_waste: float

    def _checked(self, name: str, value: object) -> object:
        if name != "max_waste":
            return as_int(value, name)
        share = as_float(value)
        if not 0 < share < 1:
            raise ConfigError(
                f"max_waste={value!r} is not a number above 0 and below 1.",
                option="max_waste",
                fix="max_waste=0.1, say; for no padding, Exact()",
            )
        return share

    def _raw_bucket(self, size: int) -> int:
        rungs = _rungs(self.minimum, self.max_waste, bits=size.bit_length())
        return rungs[bisect.bisect_left(rungs, size)]


@functools.lru_cache(maxsize=1024)
def _rungs(minimum: int | None, share: float, *, bits: int) -> tuple[int, ...]:
    """List the buckets for sizes of up to `bits` bits: each the greatest for the size after."""
    filled = 1 - Fraction(repr(share))
    rungs = [minimum or math.floor(1 / filled)]
    while rungs[-1] < 1 << bits:
        rungs.append(math.floor((rungs[-1] + 1) / filled))
    return tuple(rungs)
