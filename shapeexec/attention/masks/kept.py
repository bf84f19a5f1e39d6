"""The mask of dropout: a random share of all pairs, by a hash of each pair's position.

`attention._dropout` computes dropout with it.
"""

import dataclasses
import numbers
from typing import ClassVar

import numpy as np

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles
from shapeexec.attention.masks._value import as_array, set_field

_OF_HEADS, _OF_QUERIES, _OF_KEYS = (
    np.uint32(odd).astype(np.int32) for odd in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
)
_STEPS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Kept(Mask):
    """Each pair is allowed with the probability 1 - rate, independently of other pairs.

    Attributes:
        rate: The probability that a pair is not allowed, 0 <= rate < 1.
        seeds: i32[B or 1]: equal seeds allow equal pairs.

    Source of the hash: `lowbias32` of Chris Wellons' hash-prospector,
    github.com/skeeto/hash-prospector.
    """

    axes: ClassVar = {"seeds": "B"}

    rate: float
    seeds: Array

    def __post_init__(self) -> None:
        if not isinstance(self.rate, numbers.Real) or not 0 <= self.rate < 1:
            raise ConfigError(
                f"rate={self.rate!r} is not a number in [0, 1).", option="rate", fix="rate=0.1"
            )
        fix = "pass int32[B]: one for each example"
        seeds = as_array(self.seeds, "seeds", fix=fix)
        if seeds.dtype != np.int32 or seeds.ndim != 1:
            raise ConfigError(
                f"seeds is {seeds.dtype}{list(seeds.shape)}, not int32[B].", option="seeds", fix=fix
            )
        set_field(self, "rate", float(self.rate))
        set_field(self, "seeds", seeds)

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        of_row = _mixed(at.of_batch(self.seeds) + at.head * _OF_HEADS + at.query * _OF_QUERIES)
        number = _mixed(of_row ^ (at.key * _OF_KEYS))
        least = round(self.rate * 2**32) - 2**31
        return number >= np.int32(min(least, 2**31 - 1))

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Nothing is known of any tile, unless all are kept."""
        some = tiles.xp.ones((1, 1, 1, 1), bool)
        return Bounds(some, some if self.rate == 0 else ~some, exact=self.rate == 0)


def _mixed(number: Array) -> Array:
    """Bits that depend on all bits of i32, each on about half of them."""
    for shift, factor in _STEPS:
        # A logical shift: the sign bits that an arithmetic shift brings in are cut off.
        number = number ^ ((number >> shift) & (2 ** (32 - shift) - 1))
        if factor is not None:
            number = number * np.uint32(factor).astype(np.int32)
    return number
