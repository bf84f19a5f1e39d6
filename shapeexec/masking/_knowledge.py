"""Facts about padding: a small lattice, carried with each value.

    UNSPECIFIED         nothing: NaN, infinities, any number
    FINITE              no NaN, no infinity
    constant(c)         each element is c
    constant(c, unless="nan")        ... or NaN where all valid elements of its row are NaN
    constant(c, unless="nonfinite")  ... or anything where these are all NaN or infinite

The row of an element is all elements at its position on the other axes. The last two arise in
softmax, which turns -inf into 0 or NaN, and in a product of rows of zeros with data that may be
infinite: a sum over such a row is NaN with or without its padding.

Facts save masks. A fact is kept only if it holds for all valid elements, NaN and infinities
included. Which facts follow from an operation is known in `_facts` and in the rules.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jax import numpy as jnp

from shapeexec import _compat

Scalar = Any
Unless = Literal["nan", "nonfinite"] | None
_WEAKER: tuple[Unless, ...] = (None, "nan", "nonfinite")
_EXCEPTIONS: dict[Unless, str] = {
    None: "",
    "nan": ", or NaN in rows whose valid elements are all NaN",
    "nonfinite": ", except in rows whose valid elements are all NaN or inf",
}


@dataclasses.dataclass(frozen=True)
class Padding:
    """The facts about a set of elements.

    Attributes:
        finite: None of them is NaN or infinite.
        value: Each of them is this NumPy scalar; None if they are not known to be equal.
        unless: Exceptions to `value`. `nan`: may be NaN where the whole valid row is. `nonfinite`:
            may be anything where the whole valid row is NaN or infinite.
    """

    finite: bool = False
    value: Scalar | None = None
    unless: Unless = None

    def is_constant(self, value: Scalar, *, unless: Unless = None) -> bool:
        """Whether each element is known to be `value`, a zero of either sign.

        Args:
            value: A scalar.
            unless: The exceptions that do not matter. `nan` is right for a reader whose result is
                NaN if one element of the row is.
        """
        is_value = self.value is not None and bool(self.value == value)
        return is_value and _WEAKER.index(self.unless) <= _WEAKER.index(unless)

    def __str__(self) -> str:
        if self.value is None:
            return "finite" if self.finite else "unspecified"
        return f"{self.value}{_EXCEPTIONS[self.unless]}"


UNSPECIFIED = Padding()
FINITE = Padding(finite=True)


def constant(value: Scalar, *, unless: Unless = None) -> Padding:
    """Each element is `value`, a NumPy scalar of the operand's dtype, with exceptions `unless`.

    A subnormal number is finite and no more: XLA takes it for zero on some back ends.
    """
    scalar = np.asarray(value)
    return _constant(scalar.dtype, scalar.tobytes(), unless=unless)


@functools.lru_cache(maxsize=1024)  # of bytes, for -0.0 is equal to 0.0
def _constant(dtype: Any, data: bytes, *, unless: Unless) -> Padding:
    scalar = np.frombuffer(data, dtype).reshape(()) if data else np.zeros((), dtype)  # float0
    if unless is not None:
        return Padding(value=scalar[()], unless=unless)
    if is_inexact(scalar.dtype):
        number = scalar.astype(np.complex128)
        if np.isnan(number):
            return UNSPECIFIED
        least = float(_compat.finfo(scalar.dtype).smallest_normal)
        if any(0 < abs(part) < least for part in (number.real, number.imag)):
            return FINITE
        return Padding(finite=bool(np.isfinite(number)), value=scalar[()])
    return Padding(finite=True, value=scalar[()])


@functools.cache
def by_dtype(dtype: Any) -> Padding:
    """The fact that follows from the dtype alone: integers and booleans are finite."""
    if _compat.is_extended(dtype):
        return UNSPECIFIED
    return UNSPECIFIED if is_inexact(dtype) else FINITE


@functools.cache
def is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))


@dataclasses.dataclass(frozen=True)
class Role:
    """The part that a value plays in a softmax.

    Attributes:
        kind: `max`: the maxima of `source` along `axes`. `shifted`: x - max x. `weights`:
            exp(x - max x) along `axes`, where some valid element is 1 or NaN. `total`: the sums of
            `source`, which are weights, along `axes`: at least 1, or NaN. `scale`: a negative
            power of the total of `source`. `scaled`: the product of `source` and a factor that is
            not negative, the weights `of` or their scale.
        source: The number of the value that it was computed from.
        axes: Axes of the source.
        is_aligned: Whether it has the rank of the source, with size 1 along `axes` that are padded.
        of: The number of the softmax's weights.
    """

    kind: Literal["max", "shifted", "weights", "total", "scale", "scaled"]
    source: int
    axes: tuple[int, ...]
    is_aligned: bool
    of: int | None = None


@dataclasses.dataclass(frozen=True)
class Known:
    """The facts about one value.

    Attributes:
        whole: About all its elements, valid ones too.
        axes: Per axis, about the elements behind the valid length of that axis, at all positions
            of the other axes. Never weaker than `whole`.
        role: Its part in a softmax; None: it has none.
    """

    whole: Padding
    axes: tuple[Padding, ...]
    role: Role | None = None

    def filled(self, axes: Sequence[int], padding: Padding) -> "Known":
        """The facts after the padding along `axes` was overwritten.

        That includes its corners with the padding of other axes.
        """
        changed = [
            padding if axis in axes else join((old, padding)) for axis, old in enumerate(self.axes)
        ]
        return Known(join((self.whole, padding)), tuple(changed), self.role)

    def joined(self, other: "Known") -> "Known":
        """The facts about a value that is one or the other."""
        axes = [join(pair) for pair in zip(self.axes, other.axes, strict=True)]
        return Known(join((self.whole, other.whole)), tuple(axes))


@functools.cache
def nothing_known(rank: int, dtype: Any) -> Known:
    """The facts about any array of this dtype."""
    return uniform(rank, by_dtype(dtype))


def nothing_known_of(aval: Any) -> Known:
    """The facts about any array like `aval`."""
    return nothing_known(len(aval.shape), aval.dtype)


def uniform(rank: int, padding: Padding) -> Known:
    """The same fact about all elements."""
    return Known(padding, (padding,) * rank)


def meet(a: Padding, b: Padding) -> Padding:
    """Both of two facts about the same elements."""
    return a if a.value is not None else Padding(finite=a.finite or b.finite, value=b.value)


def join(paddings: Sequence[Padding]) -> Padding:
    """The fact that holds of several sets of elements."""
    first = paddings[0]
    weakest = max(paddings, key=lambda padding: _WEAKER.index(padding.unless)).unless
    if first.value is not None and all(
        p.is_constant(first.value, unless=weakest) for p in paddings
    ):
        return dataclasses.replace(first, finite=all(p.finite for p in paddings), unless=weakest)
    return Padding(finite=all(padding.finite for padding in paddings))
