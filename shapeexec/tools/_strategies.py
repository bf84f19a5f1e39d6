"""Strategies as a command line names them: `pow2,linear:128,fit:16`.

The command decides what `fit` is fitted to; all other strings are as `Exec(buckets=)` takes them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Strategy, as_strategy

FIT = "fit"
"""Before a colon and a number of graphs: buckets that are fitted to the sizes at hand."""

Fitted = TypeVar("Fitted")


def split(texts: Iterable[str]) -> list[str]:
    """Split strings at commas into strategies; commas inside one strategy stay: `hybrid:64,64`.

    Args:
        texts: Strings such as `["pow2,hybrid:64,64", "fit:16"]`.

    Raises:
        ConfigError: A text does not name a strategy.
    """
    found: list[str] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if found and ":" in found[-1] and part.replace(".", "", 1).isdecimal():
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    for name in found:
        strategy_of(name, fitted={FIT: lambda graphs: graphs})
    return list(dict.fromkeys(found))


def strategy_of(
    given: str | Strategy, *, fitted: Mapping[str, Callable[[int], Fitted]]
) -> Strategy | Fitted:
    """The strategy that a text names, or one that is fitted.

    Args:
        given: A strategy, or its text.
        fitted: For each fitted kind a function from a number of graphs to a strategy:
            `{"fit": ...}`.

    Raises:
        ConfigError: `given` is not a strategy.
    """
    kind, _, number = given.partition(":") if isinstance(given, str) else ("", "", "")
    make = fitted.get(kind.strip())
    if make is None:
        return as_strategy(given, "compare")
    if not number.strip().isdecimal() or int(number) < 1:
        raise ConfigError(
            f"compare={given!r} is not a fitted ladder.",
            option="compare",
            fix=f'"{kind.strip()}:16", with the number of graphs',
        )
    return make(int(number))
