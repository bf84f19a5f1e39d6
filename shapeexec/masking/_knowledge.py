"""What is known of padding: a small lattice, carried with each value.

    UNSPECIFIED         nothing: NaN, infinities, garbage
    FINITE              no NaN, no infinity
    constant(c)         each element is c
    constant(c, unless="nan")        ... or NaN where all valid elements of its row are NaN too
    constant(c, unless="nonfinite")  ... or anything where those are all NaN or infinite

The row of an element is what differs from it in position along the padded axis alone. Such
constants are what softmax makes of -inf, since a sum over such a row is NaN with or without its
padding, and what a product with rows of zeros makes of data that may hold an infinity.

Knowledge saves masks. It never licenses a guess: a fact is kept only where it holds whatever the
valid elements are, NaN and infinities included.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jax import numpy as jnp

from shapeexec import _compat

Scalar = Any
Unless = Literal["nan", "nonfinite"] | None
_WEAKER: tuple[Unless, ...] = (None, "nan", "nonfinite")


@dataclasses.dataclass(frozen=True)
class Padding:
    """What is known of a set of elements.

    Attributes:
        finite: None of them is NaN or infinite.
        value: Each of them is this NumPy scalar; None if they are not known to be equal.
        unless: The rows of valid elements behind which another one may stand: `nan`, NaN behind
            those of NaN alone; `nonfinite`, anything behind those of NaN and infinities alone.
    """

    finite: bool = False
    value: Scalar | None = None
    unless: Unless = None

    def is_constant(self, value: Scalar, *, unless: Unless = None) -> bool:
        """Whether each element is known to be `value`; the sign of a zero is not told.

        Args:
            value: A scalar.
            unless: The rows of which the reader does not care what is behind them. `nan` is right
                for a reader of which one NaN in the row decides the result.
        """
        is_value = self.value is not None and bool(self.value == value)
        return is_value and _WEAKER.index(self.unless) <= _WEAKER.index(unless)

    def __str__(self) -> str:
        if self.value is None:
            return "finite" if self.finite else "unspecified"
        rows = {None: "", "nan": " or NaN with its row", "nonfinite": " but behind a row of NaN"}
        return f"{self.value}{rows[self.unless]}"


UNSPECIFIED = Padding()
FINITE = Padding(finite=True)


def constant(value: Scalar, *, unless: Unless = None) -> Padding:
    """Each element is `value`, a NumPy scalar of the operand's dtype, but behind some rows."""
    scalar = np.asarray(value)
    if unless is not None:
        return Padding(value=scalar[()], unless=unless)
    if is_inexact(scalar.dtype):
        number = scalar.astype(np.complex128)
        if np.isnan(number):
            return UNSPECIFIED
        return Padding(finite=bool(np.isfinite(number)), value=scalar[()])
    return Padding(finite=True, value=scalar[()])


def by_dtype(dtype: Any) -> Padding:
    """What the dtype alone says: integers and booleans are finite."""
    if _compat.is_extended(dtype):
        return UNSPECIFIED
    return UNSPECIFIED if is_inexact(dtype) else FINITE


def is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))


@dataclasses.dataclass(frozen=True)
class Role:
    """What a value is to another one, in the course of a softmax.

    Attributes:
        kind: `max`: the maxima of `source` along `axes`. `weights`: exp(x - max x) along `axes`,
            where some valid element is 1 or NaN. `total`: the sums of `source`, which are
            weights, along `axes`: at least 1, or NaN. `shifted`: x - max x. `scale`: a negative
            power of the total of `source`. `scaled`: `source` times what is not negative, weights
            or their scale, of the softmax whose weights are `of`.
        source: The value that it was made of, by its number.
        axes: Axes of the source.
        is_aligned: Whether it has the rank of the source, with size 1 along `axes` that are padded.
        of: The weights of the softmax, by their number.
    """

    kind: Literal["max", "shifted", "weights", "total", "scale", "scaled"]
    source: int
    axes: tuple[int, ...]
    is_aligned: bool
    of: int | None = None


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of one value.

    Attributes:
        whole: Of all its elements, valid ones too.
        axes: Per axis, of the elements behind the valid length of that axis, whatever their
            position on the other axes. Never less than `whole`.
        role: What it is in a softmax; None: nothing special.
    """

    whole: Padding
    axes: tuple[Padding, ...]
    role: Role | None = None

    def filled(self, axes: Sequence[int], padding: Padding) -> "Known":
        """What is known after the padding along `axes` was overwritten.

        Where it meets the padding of another axis it was overwritten too.
        """
        changed = [
            padding if axis in axes else join((old, padding)) for axis, old in enumerate(self.axes)
        ]
        return Known(join((self.whole, padding)), tuple(changed), self.role)

    def joined(self, other: "Known") -> "Known":
        """What is known of a value that is one or the other."""
        axes = [join(pair) for pair in zip(self.axes, other.axes, strict=True)]
        return Known(join((self.whole, other.whole)), tuple(axes))


def nothing_known(rank: int, dtype: Any) -> Known:
    """What holds of any array of this dtype."""
    return uniform(rank, by_dtype(dtype))


def nothing_known_of(aval: Any) -> Known:
    """What holds of any array like `aval`."""
    return nothing_known(len(aval.shape), aval.dtype)


def uniform(rank: int, padding: Padding) -> Known:
    """The same fact of all elements."""
    return Known(padding, (padding,) * rank)


def meet(a: Padding, b: Padding) -> Padding:
    """What two facts say together."""
    return a if a.value is not None else Padding(finite=a.finite or b.finite, value=b.value)


def join(paddings: Sequence[Padding]) -> Padding:
    """What holds of elements from any of several sets."""
    first = paddings[0]
    weakest = max(paddings, key=lambda padding: _WEAKER.index(padding.unless)).unless
    if first.value is not None and all(
        p.is_constant(first.value, unless=weakest) for p in paddings
    ):
        return dataclasses.replace(first, finite=all(p.finite for p in paddings), unless=weakest)
    return Padding(finite=all(padding.finite for padding in paddings))
