"""Strategies as a command line names them: `pow2,linear:128,fit:16`.

What `fit` is fitted to is up to the command; all other strings are those of `Exec(buckets=)`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Strategy, as_strategy

FIT = "fit"
"""Before a colon and a number of graphs: buckets that are fitted to the sizes at hand."""

Fitted = TypeVar("Fitted")


def split(texts: Iterable[str]) -> list[str]:
    """The strategies of strings that commas separate, but for the numbers of one: `hybrid:64,64`.

    Args:
        texts: Such as `["pow2,hybrid:64,64", "fit:16"]`.

    Raises:
        ConfigError: One is no strategy.
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
    """A strategy, or what was fitted.

    Args:
        given: A strategy, or its text.
        fitted: By kind, what makes it from a number of graphs: `{"fit": ...}`.

    Raises:
        ConfigError: It is none.
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
