"""What callers give to a tool, in Python and on the command line: names and numbers.

What the names mean is up to the tool.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import is_int

Names = Sequence[str] | None

Named = TypeVar("Named")

_MOST = 1_000_000
"""Minutes or seconds; a thread cannot wait as long as any float is."""


def names_of(text: str | None) -> tuple[str, ...] | None:
    """The names of an option, with commas between them; `none` is none of them.

    Args:
        text: Of the command line; None: the option was not given.
    """
    if text is None:
        return None
    return () if text == "none" else tuple(filter(None, map(str.strip, text.split(","))))


def listed(names: object, every: Iterable[str], *, option: str) -> tuple[str, ...]:
    """Names, each once.

    Args:
        names: The names; None: all.
        every: All.
        option: What the names were given for.

    Raises:
        ConfigError: It is no list of strings.
    """
    if names is None:
        return tuple(every)
    if not isinstance(names, str) and isinstance(names, Iterable):
        found = tuple(cast("Iterable[object]", names))
        if all(isinstance(name, str) for name in found):
            return tuple(dict.fromkeys(map(str, found)))
    raise ConfigError(
        f"{option}={names!r:.80} is no list of names.",
        option=option,
        fix=f"{option}=[{names!r:.80}]" if isinstance(names, str) else f'{option}=["name"]',
    )


def chosen(known: Mapping[str, Named], names: Names, *, option: str) -> tuple[Named, ...]:
    """What is called so.

    Args:
        known: By name.
        names: The names; None: all.
        option: What the names were given for.

    Raises:
        ConfigError: Nothing is called so.
    """
    asked = listed(names, known, option=option)
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"{option}: there is no {name!r}.", option=option, fix=", ".join(known)
            )
    return tuple(known[name] for name in asked)


def check_time(option: str, value: object, *, such_as: int) -> None:
    """Check minutes or seconds.

    Raises:
        ConfigError: It is no positive number, or an endless one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise ConfigError(
            f"{option}={value!r:.80} is no number above 0 and up to {_MOST:,}.",
            option=option,
            fix=f"{option}={such_as}",
        )


def check_count(option: str, value: object, *, least: int, such_as: int) -> None:
    """Check a whole number.

    Raises:
        ConfigError: It is none, or less than `least`.
    """
    if not (is_int(value) and value >= least):
        raise ConfigError(
            f"{option}={value!r:.80} is no whole number from {least} on.",
            option=option,
            fix=f"{option}={such_as}",
        )
