"""Padding modes for `masking=False`: the values behind the valid elements of an argument.

`_transfer` pads by them, and `_fillings` chooses one for each argument.
"""

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution._narrow import is_mapping

Mode = str | complex
"""How an array is padded: one of `CHOICES`, or the number that its padding holds."""

Paddings = Mode | Mapping[int | str, Mode]
"""Modes, or `"adaptive"`, of all arguments, or by position and name; those not named get zeros."""

Positions = Callable[[Any, Any], Any]

_POSITIONS: Mapping[Any, Positions] = {
    "edge": lambda at, size: at.clip(0, size - 1),
    "reflect": lambda at, size: size - 1 - abs(size - 1 - at % (2 * size - 2 + (size == 1))),
    "wrap": lambda at, size: at % size,
}
"""The valid element, of `size`, that each position of a padded axis repeats, as `numpy.pad`.

At size 1 `reflect` repeats the only element.
"""

CHOICES: tuple[Mode, ...] = ("zeros", *_POSITIONS)


def repeated(mode: Mode) -> Positions | None:
    """The positions of the elements that a mode repeats; None: padding holds one number.

    Returns:
        A function of the positions of a padded axis, ascending from 0, and of its number of valid
        elements, at least 1. It takes NumPy arrays and ints, or JAX arrays and i32[].
    """
    return _POSITIONS.get(mode)


def number_of(mode: Mode, dtype: Any) -> Any:
    """The number that padding holds in a mode that repeats no elements, as a NumPy scalar."""
    return np.asarray(0 if mode == "zeros" else mode).astype(dtype)[()]


def as_padding(given: Any) -> Paddings:
    """The option `padding` in its normal form.

    Raises:
        ConfigError: It is not a mode, or a mapping of something else.
    """
    if not is_mapping(given):
        return _as_mode(given, "padding")
    for place in given:
        is_place = isinstance(place, int | str) and not isinstance(place, bool)
        if not is_place or (isinstance(place, int) and place < 0):
            raise ConfigError(
                f"padding: {place!r} is not an argument.",
                option="padding",
                got=f"padding={given!r:.80}",
                fix='padding={0: "edge", "mask": "zeros"}, by position or by name',
            )
    return {place: _as_mode(mode, f"padding[{place!r}]") for place, mode in given.items()}


def _as_mode(given: Any, path: str) -> Any:
    is_text = isinstance(given, str)
    if is_text and given in (*CHOICES, "adaptive"):
        return given
    number = _as_number(given)
    if isinstance(number, int | float | complex):
        return number
    choices = ", ".join(f'"{name}"' for name in (*CHOICES, "adaptive"))
    raise ConfigError(
        f"{path}={given!r:.80} is not a padding mode.",
        option="padding",
        fix=f"{choices} or a number; buckets= says how far to pad",
    )


def _as_number(given: Any) -> Any:
    """A NumPy or JAX scalar as a Python number; other values unchanged."""
    return given.item() if hasattr(given, "item") and np.ndim(given) == 0 else given


def check_fits(number: complex, dtype: Any, *, path: str) -> None:
    """Check that a number is one of a dtype; floats may be rounded.

    Args:
        number: The number.
        dtype: The dtype of an argument.
        path: The argument.

    Raises:
        ConfigError: It is not.
    """
    if _FITS[_compat.kind_of_dtype(dtype)](number, dtype):
        return
    raise ConfigError(
        f"padding={number!r} does not fit {path}, which is {dtype}.",
        option="padding",
        fix=f"a number that {dtype} holds, or a mode by argument: padding={{0: ..., 1: ...}}",
    )


def _fits_int(number: complex, dtype: Any) -> bool:
    is_real = isinstance(number, numbers.Real) and math.isfinite(number)
    is_whole = is_real and number.real == int(number.real)
    info = jnp.iinfo(dtype)
    return is_whole and info.min <= number.real <= info.max


def _fits_float(number: complex, dtype: Any) -> bool:
    if not isinstance(number, numbers.Real):
        return False
    try:
        with np.errstate(over="ignore"):
            cast = float(np.asarray(float(number)).astype(dtype))
    except OverflowError:  # an integer that no float holds
        return False
    return math.isfinite(cast) == math.isfinite(number)


def _fits_complex(number: complex, dtype: Any) -> bool:
    part = np.dtype(dtype).type(0).real.dtype
    return _fits_float(number.real, part) and _fits_float(number.imag, part)


_FITS: Mapping[str, Callable[[complex, Any], bool]] = {
    "bool": lambda number, _: number in (0, 1),
    "int": _fits_int,
    "float": _fits_float,
    "complex": _fits_complex,
}
