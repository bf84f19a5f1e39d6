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
import warnings
from collections.abc import Callable, Sequence
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
    if _is_inexact(scalar.dtype):
        number = scalar.astype(np.complex128)
        if np.isnan(number):
            return UNSPECIFIED
        return Padding(finite=bool(np.isfinite(number)), value=scalar[()])
    return Padding(finite=True, value=scalar[()])


def by_dtype(dtype: Any) -> Padding:
    """What the dtype alone says: integers and booleans are finite."""
    if _compat.is_extended(dtype):
        return UNSPECIFIED
    return UNSPECIFIED if _is_inexact(dtype) else FINITE


def _is_inexact(dtype: Any) -> bool:
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


# Facts through pointwise primitives

_KEEPS_FINITE = frozenset(
    """
    abs and ceil clamp copy cos erf floor logistic max min name neg not optimization_barrier
    or round select_n sign sin stop_gradient tanh xor
    """.split()
)

# Each on NumPy scalars, exactly as XLA computes it at the points that `_is_exact` lets pass.
_ON_CONSTANTS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "copy": np.positive,
    "div": np.true_divide,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}
_IDENTITIES = frozenset(("copy", "name", "stop_gradient", "optimization_barrier", "copy_p"))


def through_pointwise(
    name: str,
    operands: Sequence[Known],
    params: dict[str, Any],
    *,
    rank: int,
    dtype: Any,
    operand_dtype: Any,
) -> Known:
    """What is known of a pointwise primitive's result.

    Args:
        name: The primitive's name.
        operands: Of each operand; those of rank 0 stand for every position.
        params: The primitive's parameters.
        rank: The result's rank.
        dtype: The result's dtype.
        operand_dtype: The first operand's dtype.
    """

    def result(paddings: Sequence[Padding]) -> Padding:
        return _meet(_through(name, paddings, params, dtype, operand_dtype), by_dtype(dtype))

    whole = result([known.whole for known in operands])
    axes = tuple(
        result([known.axes[axis] if known.axes else known.whole for known in operands])
        for axis in range(rank)
    )
    return Known(whole, axes)


def _meet(a: Padding, b: Padding) -> Padding:
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


def _through(
    name: str,
    paddings: Sequence[Padding],
    params: dict[str, Any],
    dtype: Any,
    operand_dtype: Any,
) -> Padding:
    values = [padding.value for padding in paddings]
    if name in _IDENTITIES:
        return paddings[0]
    if any(padding.unless is not None for padding in paddings):
        return UNSPECIFIED
    if name == "convert_element_type":
        return _converted(paddings[0], dtype, operand_dtype)
    if name == "select_n":
        which, *cases = paddings
        return join(cases) if which.value is None else cases[int(which.value)]
    if name in ("mul", "and") and all(padding.finite for padding in paddings):
        zero = np.zeros((), dtype)
        if any(padding.is_constant(zero[()]) for padding in paddings):
            return constant(zero)
    if name in _ON_CONSTANTS and all(value is not None for value in values):
        if name == "div" and not _is_inexact(dtype):
            return FINITE  # integers divide by rules of their own
        if name == "div" and values[1] == 0:
            return UNSPECIFIED  # the sign of the zero is not known, nor then of the infinity
        with np.errstate(all="ignore"):
            computed = np.asarray(_ON_CONSTANTS[name](*values)).astype(dtype)
        if _is_exact(computed):
            return constant(computed)
    if name == "integer_pow" and params["y"] > 0 and values[0] in (0, 1):
        return constant(values[0])
    is_finite = all(padding.finite for padding in paddings)
    if name in _KEEPS_FINITE and is_finite and _holds_all(dtype, dtype):
        return FINITE
    return UNSPECIFIED


def _is_exact(value: np.ndarray) -> bool:
    """Whether no rounding can have happened: values that every back end computes alike."""
    if not _is_inexact(value.dtype):
        return True
    number = value.astype(np.complex128)
    return bool(np.isinf(number) or number in (0, 1, -1, 2, -2))


def _converted(padding: Padding, dtype: Any, operand_dtype: Any) -> Padding:
    """What is known after a conversion, which may overflow to infinity.

    A constant is known to stay one only if it comes through unchanged: NumPy wraps or truncates
    where XLA saturates, for -1 as a uint8 or infinity as an int32.
    """
    if padding.value is None:
        return FINITE if padding.finite and _holds_all(dtype, operand_dtype) else UNSPECIFIED
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a complex number loses its imaginary part
        computed = np.asarray(padding.value).astype(dtype)
        returned = computed.astype(np.asarray(padding.value).dtype)
    return constant(computed) if returned == padding.value else UNSPECIFIED


def _holds_all(dtype: Any, operand_dtype: Any) -> bool:
    """Whether no finite number of `operand_dtype` becomes infinite or NaN as a `dtype`.

    Negative ones may: float8_e8m0fnu has no sign.
    """
    if not _is_inexact(dtype):
        return True
    if operand_dtype == np.bool_:
        extremes: list[Any] = [0, 1]
    elif _is_inexact(operand_dtype):
        greatest = float(jnp.finfo(operand_dtype).max)
        extremes = [greatest, 0, -greatest]
    else:
        extremes = [jnp.iinfo(operand_dtype).max, jnp.iinfo(operand_dtype).min]
    with np.errstate(all="ignore"):
        return all(np.isfinite(np.asarray(x).astype(dtype)) for x in extremes)
