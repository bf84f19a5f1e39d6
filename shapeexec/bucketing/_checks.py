"""Checks of options and sizes: integers and histograms. Strategies are not known here."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

import numpy as np

from shapeexec._errors import ConfigError

Sizes = Iterable[int] | Mapping[int, float]
"""The sizes that occur, or a mapping from size to count."""


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer of Python or NumPy; a bool is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_int(value: object, name: str) -> int:
    """Check that an argument is an integer of at least 1.

    Args:
        value: What the caller passed.
        name: The name of the argument, for the error.

    Returns:
        The value as a Python int.

    Raises:
        ConfigError: `value` is not an integer, a bool, or below 1.
    """
    if not is_int(value) or value < 1:
        raise ConfigError(
            f"{name}={value!r} is not an integer of at least 1.",
            option=name,
            fix=f"pass {name} as an int, 1 or more",
        )
    return int(value)


def histogram(sizes: Sizes) -> dict[int, float]:
    """Count how often each size occurs.

    Args:
        sizes: The sizes themselves, or a mapping from size to count. A count may be any weight of
            at least 0.

    Returns:
        The count of each distinct size, by ascending size.

    Raises:
        ConfigError: There is no size, all counts are 0, a size is not an integer of at least 1, or
            a count is negative or not finite.
    """
    try:
        seen: dict[int, float] = {}
        if isinstance(sizes, Mapping):
            seen.update(cast(Mapping[int, float], sizes))
        else:
            for size in sizes:
                seen[size] = seen.get(size, 0) + 1
    except TypeError:
        raise ConfigError(
            f"sizes={sizes!r} is neither sizes nor counts by size.",
            option="sizes",
            fix="pass an iterable of ints, or a mapping from size to count",
        ) from None
    for size, count in seen.items():
        if not is_weight(count):
            raise ConfigError(
                f"sizes[{size!r}]={count!r} is not a count.",
                option="sizes",
                fix="pass each count as a finite number, 0 or more",
            )
    counts = {as_int(size, "size"): count for size, count in seen.items()}
    if not any(counts.values()):
        raise ConfigError(
            "sizes is empty: no size was seen.", option="sizes", fix="pass at least one size"
        )
    return dict(sorted(counts.items()))


def is_weight(count: Any) -> bool:
    """Whether a count is a finite number of at least 0."""
    return 0 <= as_float(count) < math.inf


def as_float(value: Any) -> float:
    """A number as a float; NaN if it is not a number, or too large for a float."""
    try:
        return math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
