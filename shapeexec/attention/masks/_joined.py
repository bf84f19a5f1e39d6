"""Masks made of masks by `&`, `|` and `~`.

Bounds are three-valued: a tile is empty, full or unknown. The bounds of a joined mask are safe:
they state only what follows from the operands' bounds (for `&`: all full is full, any empty is
empty).
"""

# The leaves of masks may be of any type.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
import operator
from typing import Any, cast

from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles, joins
from shapeexec.attention.masks.dense import Dense
from shapeexec.attention.masks.lengths import Lengths
from shapeexec.attention.masks.positions import Band, Full


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class And(Mask):
    """Pairs that every one of `masks` allows."""

    masks: tuple[Mask, ...]

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return functools.reduce(operator.and_, (mask.allows(at) for mask in self.masks))

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact for bands."""
        known = [mask.bounds(tiles) for mask in self.masks]
        some = functools.reduce(operator.and_, (bound.some for bound in known))
        bands = [mask for mask in self.masks if isinstance(mask, Band)]
        # The tiles account for the call's own lengths already.
        others = [mask for mask in self.masks if not isinstance(mask, Band) and mask != Lengths()]
        if len(bands) > 1:
            some = some & _meet(bands, tiles)
        return Bounds(
            some,
            functools.reduce(operator.and_, (bound.all for bound in known)),
            exact=len(others) + bool(bands) < 2 and all(bound.exact for bound in known),
        )

    def __repr__(self) -> str:
        return " & ".join(_operand(mask, Or) for mask in self.masks)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Or(Mask):
    """Pairs that at least one of `masks` allows."""

    masks: tuple[Mask, ...]

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return functools.reduce(operator.or_, (mask.allows(at) for mask in self.masks))

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. A tile is unknown if several masks fill it only together."""
        known = [mask.bounds(tiles) for mask in self.masks]
        return Bounds(
            functools.reduce(operator.or_, (bound.some for bound in known)),
            functools.reduce(operator.or_, (bound.all for bound in known)),
        )

    def __repr__(self) -> str:
        return " | ".join(_operand(mask, And) for mask in self.masks)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """Pairs that `mask` does not allow."""

    mask: Mask

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        return ~self.mask.allows(at)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. As exact as the bounds of `mask`."""
        known = self.mask.bounds(tiles)
        return Bounds(~known.all, ~known.some, known.exact)

    def __repr__(self) -> str:
        return f"~{_operand(self.mask, (And, Or))}"


@joins("&")
def conjunction(left: Any, right: Any) -> Mask:
    """`left & right`, with nested ones flattened and `Full()` left out."""
    operands = _operands(left, right, kind=And)
    if operands is None:
        return NotImplemented
    operands = tuple(mask for mask in operands if not isinstance(mask, Full))
    return And(operands) if len(operands) > 1 else operands[0] if operands else Full()


@joins("|")
def disjunction(left: Any, right: Any) -> Mask:
    """`left | right`, with nested ones flattened; `Full()` if one of them is."""
    operands = _operands(left, right, kind=Or)
    if operands is None:
        return NotImplemented
    return Full() if any(isinstance(mask, Full) for mask in operands) else Or(operands)


@joins("~")
def negation(mask: Mask) -> Mask:
    """`~mask`; `~~mask` is `mask`."""
    return mask.mask if isinstance(mask, Not) else Not(mask)


def _operands(left: Any, right: Any, *, kind: type[And | Or]) -> tuple[Mask, ...] | None:
    operands: list[Mask] = []
    for side in (left, right):
        if isinstance(side, kind):
            operands.extend(side.masks)
        elif isinstance(side, Mask):
            operands.append(side)
        elif hasattr(side, "shape") or isinstance(side, (bool, list)):
            operands.append(Dense(cast(Any, side)))
        else:
            return None
    return tuple(operands)


def _meet(bands: list[Band], tiles: Tiles) -> Array:
    # Each band may cross a tile although no distance lies within all of them.
    lows, highs = zip(*(band.limits(tiles) for band in bands), strict=True)
    low = [limit for limit in lows if limit is not None]
    high = [limit for limit in highs if limit is not None]
    if not low or not high:
        return tiles.xp.ones((1, 1, 1, 1), bool)
    widest = functools.reduce(tiles.xp.maximum, low)
    return tiles.xp.asarray(widest <= functools.reduce(tiles.xp.minimum, high))


def _operand(mask: Mask, in_brackets: type | tuple[type, ...]) -> str:
    return f"({mask!r})" if isinstance(mask, in_brackets) else repr(mask)
