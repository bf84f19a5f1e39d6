"""Poison: padding filled with the worst values, so that a missing mask shows in the result."""

from typing import Any

import numpy as np
from jax import Array, dtypes
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.masking._fill import Length, fill, highest, lowest, one
from shapeexec.masking._knowledge import FINITE, Known, Padding

POISONS = ("nan", "max", "min", "garbage")
"""`nan`: NaN and the greatest integers. `max`, `min`: the extremes of each dtype, infinities
included. `garbage`: large finite numbers, and negative integers far out of range."""

_GARBAGE = -123_456_789


def check_poison(poison: str | None) -> str | None:
    """The poison itself, if there is one of that name.

    Raises:
        ConfigError: There is none.
    """
    if poison in (None, "", *POISONS):
        return poison or None
    raise ConfigError(f"poison={poison!r} is not known.", fix=f"one of {', '.join(POISONS)}")


def poison_value(poison: str, dtype: Any, padding: Padding) -> Any:
    """The value that padding of this dtype is filled with; None if it is left alone.

    What is known of padding is part of the invariant: finite padding gets finite values.
    """
    if dtype == dtypes.float0 or _compat.is_extended(dtype):
        return None
    if dtype == np.bool_:
        return np.bool_(poison != "min")
    if jnp.issubdtype(dtype, np.integer):
        info = jnp.iinfo(dtype)
        garbage = info.max // 2 + 1 if info.min == 0 else max(int(info.min), _GARBAGE)
        return np.asarray({"min": info.min, "garbage": garbage}.get(poison, info.max), dtype)[()]
    if jnp.issubdtype(dtype, np.complexfloating):
        part = poison_value(poison, np.dtype(dtype).type(0).real.dtype, padding)
        return np.asarray(complex(part, part), dtype)[()]
    if padding == FINITE:
        return np.asarray(one(dtype) * (3 if poison == "min" else -3), dtype)[()]
    if poison == "nan":
        return np.asarray(np.nan, dtype)[()]
    if poison == "garbage":
        return np.asarray(jnp.finfo(dtype).max, dtype)[()]
    return highest(dtype) if poison == "max" else lowest(dtype)


def poison_padding(
    x: Array, lengths: tuple[Length, ...], known: Known, poison: str | None
) -> Array:
    """Fill the padding of `x` with poison wherever nothing is known of it."""
    if poison is None:
        return x
    # The best known axis last: where the paddings of two axes meet, what is known holds.
    for axis in sorted(range(x.ndim), key=lambda axis: _strength(known.axes[axis])):
        padding = known.axes[axis]
        value = poison_value(poison, x.dtype, padding) if padding.value is None else padding.value
        if value is not None:
            x = fill(x, lengths, value, (axis,))
    return x


def _strength(padding: Padding) -> int:
    return 2 if padding.value is not None else int(padding.finite)
