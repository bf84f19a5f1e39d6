"""Overwriting and adding padding, and the identities to overwrite it with.

Whether padding needs to be overwritten is not known here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec import _compat
from shapeexec._errors import ConfigError

Length = int | Array
"""A valid length: an int where the axis is static, else i32[]."""


def is_padded(length: Length) -> bool:
    """Whether an axis of this valid length may have padding behind it."""
    return not isinstance(length, int)


def valid_mask(
    shape: Sequence[int], lengths: Sequence[Length], *, axes: Sequence[int]
) -> Array | None:
    """bool[shape]: whether a position is valid along each of `axes`; None if all are static."""
    mask = None
    for axis in axes:
        if not is_padded(lengths[axis]):
            continue
        position = lax.iota(np.int32, shape[axis])
        along = _compat.broadcast_in_dim(position < lengths[axis], tuple(shape), (axis,))
        mask = along if mask is None else mask & along
    return mask


def fill(x: Array, lengths: Sequence[Length], *, value: Any, axes: Sequence[int]) -> Array:
    """Overwrite the padding of `x` along `axes`.

    Args:
        x: [c0, ..., cn], at capacity; valid elements first.
        lengths: One per axis: an int (static, not padded) or i32[].
        value: The scalar that overwrites padding, cast to `x.dtype`.
        axes: The axes to overwrite along; others keep their padding.

    Returns:
        An array shaped as `x`; `x` itself if no axis in `axes` is padded.
    """
    return overwritten(x, valid_mask(x.shape, lengths, axes=axes), value=value)


def overwritten(x: Array, mask: Array | None, *, value: Any) -> Array:
    """`x` where a mask, bool[shape], holds, and `value` elsewhere; None: it holds everywhere."""
    if mask is None:
        return x
    if _compat.is_extended(x.dtype):
        return jnp.where(mask, x, value)
    return lax.select(mask, x, lax.full_like(x, value))


def conform(array: Array, shape: tuple[int, ...]) -> Array:
    """Cut or widen `array` to `shape`; padding is added behind."""
    if not hasattr(array, "shape") or tuple(array.shape) == shape:
        return array
    array = lax.slice(array, [0] * array.ndim, list(map(min, array.shape, shape)))
    missing = [want - have for want, have in zip(shape, array.shape, strict=True)]
    if not any(missing):
        return array
    if _compat.is_extended(array.dtype):
        return _compat.numpy_pad(array, [(0, more) for more in missing], mode="edge")
    return lax.pad(array, np.zeros((), array.dtype), [(0, more, 0) for more in missing])


class NoZeroError(ConfigError, TypeError):
    """A dtype cannot hold 0; the interpreter refuses the equation because of it."""

    def __init__(self, dtype: Any) -> None:
        name = np.dtype(dtype).name
        self.reason = f"{name} holds powers of two, and no 0 to fill with"
        super().__init__(
            f"{name} has no 0.",
            option="dtype",
            why=self.reason,
            fix="cast to float32 in front of it: the powers of two are exact there",
        )


def zero(dtype: Any) -> Any:
    """Give the identity of a sum: 0.

    Args:
        dtype: A NumPy or JAX dtype.

    Returns:
        A NumPy scalar of it.

    Raises:
        ConfigError: The dtype has no 0. In a rule, this refuses the equation.
    """
    if dtype == _POWERS:
        raise NoZeroError(dtype)
    return np.zeros((), dtype)[()]


def one(dtype: Any) -> Any:
    """Give the identity of a product: 1.

    Args:
        dtype: A NumPy or JAX dtype.

    Returns:
        A NumPy scalar of it.
    """
    return np.ones((), dtype)[()]


def lowest(dtype: Any) -> Any:
    """Give the identity of a maximum: -inf (in both parts), the least integer, or False.

    Args:
        dtype: A NumPy or JAX dtype.

    Returns:
        A NumPy scalar of it.
    """
    return _extreme(dtype, "min")


def highest(dtype: Any) -> Any:
    """Give the identity of a minimum: inf (in both parts), the greatest integer, or True.

    Args:
        dtype: A NumPy or JAX dtype.

    Returns:
        A NumPy scalar of it.
    """
    return _extreme(dtype, "max")


_POWERS = np.dtype(jnp.float8_e8m0fnu)  # its 0 is 2**-127 in NumPy, and NaN in XLA
_Which = Literal["min", "max"]

_INFINITE = {"min": -np.inf, "max": np.inf}


def _float_extreme(dtype: Any, which: _Which) -> Any:
    return _INFINITE[which] if _has_infinity(dtype) else getattr(_compat.finfo(dtype), which)


_EXTREMES: dict[str, Callable[[Any, _Which], Any]] = {
    "bool": lambda _, which: which == "max",
    "int": lambda dtype, which: getattr(jnp.iinfo(dtype), which),
    "float": _float_extreme,
    "complex": lambda _, which: complex(_INFINITE[which], _INFINITE[which]),
}
"""By the kind of a dtype."""


def _extreme(dtype: Any, which: _Which) -> Any:
    return np.asarray(_EXTREMES[_compat.kind_of_dtype(dtype)](dtype, which), dtype)[()]


def all_ones(dtype: Any) -> Any:
    """The identity of a bitwise `and`."""
    return np.invert(np.zeros((), dtype))[()]


def _has_infinity(dtype: Any) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.asarray(np.inf).astype(dtype).astype(np.float64)))
