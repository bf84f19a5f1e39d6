"""From the names on the command line to a soak.

The options themselves are those of `_command`.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from shapeexec._errors import ConfigError
from shapeexec.tools.soak._models import MODELS, Model
from shapeexec.tools.soak._outcome import Soak
from shapeexec.tools.soak._report import Report
from shapeexec.tools.soak._run import run
from shapeexec.tools.soak._services import WAYS, Way

__all__ = ["Report", "run", "soak_of"]

Named = TypeVar("Named", Model, Way)


def soak_of(*, models: str | None, ways: str | None, **numbers: Any) -> Soak:
    """The soak of a command line.

    Args:
        models: Names with commas between them; None: all.
        ways: Likewise.
        **numbers: The other fields of `Soak`.

    Raises:
        ConfigError: Nothing is called so, or a number is none that works.
    """
    return Soak(
        models=_chosen("model", MODELS, names=models),
        ways=_chosen("way", WAYS, names=ways),
        **numbers,
    )


def _chosen(what: str, known: Iterable[Named], *, names: str | None) -> tuple[Named, ...]:
    by_name = {one.name: one for one in known}
    if names is None:
        return tuple(by_name.values())
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in by_name:
            raise ConfigError(f"there is no {what} {name!r}.", fix=", ".join(by_name))
    return tuple(by_name[name] for name in asked)
