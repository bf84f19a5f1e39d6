"""Poison: padding filled with the worst values, so that a missing mask shows in the result.

Which padding is poisoned, and when, is decided in `_masked` and `_interpret`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.masking._fill import Length, fill, highest, is_padded, lowest, one, valid_mask
from shapeexec.masking._knowledge import FINITE, Known, Padding

POISONS = ("nan", "max", "min", "garbage")
"""`nan`: NaN and the greatest integers. `max`, `min`: the extremes of each dtype, infinities
included. `garbage`: large finite numbers, and negative integers far out of range."""

_FAR_OUT_OF_RANGE = -123_456_789


def check_poison(poison: str | None) -> str | None:
    """The name of a poison; None for None and the empty text.

    Raises:
        ConfigError: There is no such poison.
    """
    if poison in (None, "", *POISONS):
        return poison or None
    raise ConfigError(
        f"poison={poison!r} is not known.", option="poison", fix=f"one of {', '.join(POISONS)}"
    )


def poison_value(poison: str, dtype: Any, *, padding: Padding) -> Any:
    """The value that padding of this dtype is filled with; None if it is left alone.

    Rules rely on the facts about padding: finite padding gets finite values.
    """
    make = _VALUES.get(_compat.kind_of_dtype(dtype))
    return None if make is None else np.asarray(make(poison, dtype, padding), dtype)[()]


def _integer(poison: str, dtype: Any, _: Padding) -> Any:
    info = jnp.iinfo(dtype)
    far = info.max // 2 + 1 if info.min == 0 else max(int(info.min), _FAR_OUT_OF_RANGE)
    return {"min": info.min, "garbage": far}.get(poison, info.max)


def _float(poison: str, dtype: Any, padding: Padding) -> Any:  # noqa: PLR0917 - `_VALUES` calls it
    if padding == FINITE:
        return one(dtype) * (3 if poison == "min" else -3)
    largest = _compat.finfo(dtype).max
    return {"nan": np.nan, "garbage": largest, "max": highest(dtype), "min": lowest(dtype)}[poison]


def _complex(poison: str, dtype: Any, padding: Padding) -> Any:  # noqa: PLR0917 - `_VALUES` calls it
    part = _float(poison, np.dtype(dtype).type(0).real.dtype, padding)
    return complex(part, part)


_VALUES: dict[str, Callable[[str, Any, Padding], Any]] = {
    "bool": lambda poison, _dtype, _padding: poison != "min",
    "int": _integer,
    "float": _float,
    "complex": _complex,
}
"""By the kind of a dtype; padding of other dtypes is left alone."""


def poison_padding(
    x: Array, lengths: tuple[Length, ...], *, known: Known, poison: str | None
) -> Array:
    """Fill the padding of `x` with poison wherever nothing is known of it.

    Where it is known to be constant the padding stays, so that a false fact shows in the result.
    """
    if poison is None:
        return x
    padded = [axis for axis in range(x.ndim) if is_padded(lengths[axis])]
    constants = [axis for axis in padded if known.axes[axis].value is not None]
    finite = [axis for axis in padded if known.axes[axis] == FINITE]
    for axis in padded:
        if axis in constants:
            continue
        value = poison_value(poison, x.dtype, padding=known.axes[axis])
        # A fact about another axis holds in the corner too, where both have padding.
        kept = constants if axis in finite else constants + finite
        if value is not None:
            poisoned = fill(x, lengths, value=value, axes=(axis,))
            mask = valid_mask(x.shape, lengths, axes=kept)
            x = poisoned if mask is None else lax.select(mask, poisoned, x)
    return x
