"""Checks of the names and numbers given to a tool, in Python or on the command line.

The tool decides what the names mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import is_int

Names = Sequence[str] | None

Named = TypeVar("Named")

_MOST = 1_000_000
"""The largest number of minutes or seconds: a thread cannot wait for an arbitrary float."""


def names_of(text: str | None) -> tuple[str, ...] | None:
    """Split an option at its commas; the text `none` gives no names.

    Args:
        text: The option's text; None: the option was not given.
    """
    if text is None:
        return None
    return () if text == "none" else tuple(filter(None, map(str.strip, text.split(","))))


def listed(names: object, every: Iterable[str], *, option: str) -> tuple[str, ...]:
    """Check a list of names, and drop repeated ones.

    Args:
        names: The names; None: all.
        every: All known names.
        option: The option that the names were given for.

    Raises:
        ConfigError: `names` is not a list of strings.
    """
    if names is None:
        return tuple(every)
    if not isinstance(names, str) and isinstance(names, Iterable):
        found = tuple(cast("Iterable[object]", names))
        if all(isinstance(name, str) for name in found):
            return tuple(dict.fromkeys(map(str, found)))
    raise ConfigError(
        f"{option}={names!r:.80} is not a list of names.",
        option=option,
        fix=f"{option}=[{names!r:.80}]" if isinstance(names, str) else f'{option}=["name"]',
    )


def chosen(known: Mapping[str, Named], names: Names, *, option: str) -> tuple[Named, ...]:
    """The values with the given names.

    Args:
        known: All values, by name.
        names: The names; None: all.
        option: The option that the names were given for.

    Raises:
        ConfigError: A name is unknown.
    """
    asked = listed(names, known, option=option)
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"{option}: there is no {name!r}.",
                option=option,
                fix=f"choose from {', '.join(known)}",
            )
    return tuple(known[name] for name in asked)


def check_time(option: str, value: object, *, such_as: int) -> None:
    """Check a number of minutes or seconds.

    Raises:
        ConfigError: `value` is not a positive number, or is too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise ConfigError(
            f"{option}={value!r:.80} is not a number above 0 and up to {_MOST:,}.",
            option=option,
            fix=f"{option}={such_as}",
        )


def check_count(option: str, value: object, *, least: int, such_as: int) -> None:
    """Check an integer.

    Raises:
        ConfigError: `value` is not an integer, or is less than `least`.
    """
    if not (is_int(value) and value >= least):
        raise ConfigError(
            f"{option}={value!r:.80} is not an integer >= {least}.",
            option=option,
            fix=f"{option}={such_as}",
        )
