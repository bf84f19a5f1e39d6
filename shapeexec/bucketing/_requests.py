"""Requests: how often each combination of sizes occurs, as people write them.

`_fit_joint` fits ladders to them.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from shapeexec._errors import ConfigError, named
from shapeexec.bucketing._checks import as_float, as_int, is_int, is_weight
from shapeexec.bucketing._fit import Floats, Ints

GREATEST_SIZE = 1 << 53
"""Sizes up to here are exact as floats, and multiples just above it fit an int64."""
_GREATEST_COUNT = 1e290  # times a size it is a float

Request = int | Sequence[int] | Mapping[str, int]
"""The sizes of one request: by symbol; in the order of the symbols; or of the only symbol."""


@dataclasses.dataclass(frozen=True, eq=False)
class Requests:
    """How often each combination of sizes occurs.

    Attributes:
        symbols: Sorted.
        sizes: int[n, symbols], the distinct combinations.
        counts: f64[n], how often each occurs; some may be 0.
    """

    symbols: tuple[str, ...]
    sizes: Ints
    counts: Floats


def read_requests(given: Any, symbols: Sequence[str]) -> Requests:
    """Count requests.

    Args:
        given: An iterable of requests, or a mapping from request to count.
        symbols: The symbols of their sizes, sorted.

    Raises:
        ConfigError: There is no request, or one has other symbols, a size that is not an integer
            from 1 to 2**53, or a count that is negative or not finite; or the counts are too great.
    """
    counts = _counted(given, symbols)
    if not any(counts.values()):
        raise ConfigError(
            "sizes is empty: no request was seen.",
            option="sizes",
            fix="pass at least one request",
        )
    if (total := sum(counts.values())) > _GREATEST_COUNT:
        raise ConfigError(
            f"sizes: the counts add up to {total:g}, more than {_GREATEST_COUNT:g}.",
            option="sizes",
            fix="divide the counts by the greatest: only their ratios matter",
        )
    sizes = np.array(list(counts), np.intp).reshape(len(counts), len(symbols))
    return Requests(tuple(symbols), sizes, np.array(list(counts.values()), float))


def _counted(given: Any, symbols: Sequence[str]) -> dict[tuple[int, ...], float]:
    counts: dict[tuple[int, ...], float] = {}
    if isinstance(given, Mapping):
        for request, count in cast(Mapping[Any, Any], given).items():
            place = f"sizes[{request!r:.40}]"
            key = _sizes(request, symbols, place=place)
            if not is_weight(count):
                raise ConfigError(
                    f"{place}={count!r:.40} is not a count.",
                    option="sizes",
                    fix="pass each count as a finite number, 0 or more",
                )
            counts[key] = counts.get(key, 0.0) + as_float(count)
        return counts
    try:
        requests = iter(cast(Iterable[Any], given))
    except TypeError:
        raise ConfigError(
            f"sizes={given!r:.80} is not a collection of requests.",
            option="sizes",
            fix=_forms(symbols),
        ) from None
    for number, request in enumerate(requests):
        key = _sizes(request, symbols, place=f"sizes[{number}]")
        counts[key] = counts.get(key, 0.0) + 1.0
    return counts


def _sizes(request: Any, symbols: Sequence[str], *, place: str) -> tuple[int, ...]:
    """One request as sizes in the order of the symbols."""
    if isinstance(request, Mapping):
        by_symbol = cast(Mapping[str, Any], request)
        values = [by_symbol[symbol] for symbol in symbols if symbol in by_symbol]
        fits = len(values) == len(symbols) == len(by_symbol)
    elif is_int(request):
        values, fits = [request], len(symbols) == 1
    else:
        values = list(cast(Any, request)) if isinstance(request, Sequence | np.ndarray) else []
        fits = len(values) == len(symbols) and not isinstance(request, str)
    if not fits:
        raise ConfigError(
            f"{place}={request!r:.60} does not have one size for each symbol: {named(symbols)}.",
            option="sizes",
            fix=_forms(symbols),
        )
    names = [f"{place}['{symbol}']" for symbol in symbols]
    return tuple(as_size(value, name) for value, name in zip(values, names, strict=True))


def as_size(value: object, name: str) -> int:
    """Check that a size is an integer from 1 to `GREATEST_SIZE`.

    Raises:
        ConfigError: It is not.
    """
    if (size := as_int(value, name)) > GREATEST_SIZE:
        raise ConfigError(
            f"{name}={size!r:.40} is more than 2**53.",
            option=name,
            fix="a size that an array can have",
        )
    return size


def _forms(symbols: Sequence[str]) -> str:
    mapping = ", ".join(f'"{symbol}": 8' for symbol in symbols)
    sizes = ", ".join("8" for _ in symbols)
    pair = f"({sizes})" if len(symbols) > 1 else sizes
    return f"pass a list of requests, each {{{mapping}}} or {pair}, or their counts: {{{pair}: 3}}"
