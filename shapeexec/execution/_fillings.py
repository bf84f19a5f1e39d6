"""The padding of each argument if `masking` is False.

`_modes` defines the modes, and `_measured` measures which one suits an argument.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from shapeexec import _compat
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._modes import Mode, check_fits
from shapeexec.execution._narrow import is_mapping
from shapeexec.execution._options import parameters_of
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import Place
from shapeexec.masking._knowledge import UNSPECIFIED
from shapeexec.masking._poison import poison_value


@dataclasses.dataclass(frozen=True)
class Filling:
    """The padding of one array of the arguments.

    Attributes:
        path: The path of the array, `args[0]['tokens']`.
        mode: `"zeros"`, `"edge"`, `"reflect"`, `"wrap"` or a number.
        why: The reason for the mode; empty: the option `padding`.
        slot: The argument and kind of dtype for which the mode is measured; None: not measured.
    """

    path: str
    mode: Mode
    why: str = ""
    slot: tuple[Place, str] | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.mode}{self.why and f' ({self.why})'}"


Chosen = Callable[[tuple[Place, str]], tuple[Mode, str]]
"""The mode of a measured slot, and why."""


def fillings(settings: Settings, call: BoundCall, *, chosen: Chosen) -> tuple[Filling, ...]:
    """The padding of each leaf of a call.

    Args:
        settings: The modes, and the poison that replaces modes which were not given by name.
        call: The call.
        chosen: Looks up measured modes.

    Raises:
        ConfigError: A number does not fit an argument's dtype.
    """
    places = [place for place, tree in call.arguments for _ in range(tree.num_leaves)]
    ragged = call.ragged_dims
    found: list[Filling] = []
    for number, (place, path) in enumerate(zip(places, call.base.paths, strict=True)):
        dtype = call.dtypes[number][0]
        if number not in ragged or _compat.is_extended(dtype):
            found.append(Filling(path, "zeros"))
            continue
        given, is_named = _given(settings, place)
        found.append(_filling(path, place, dtype=dtype, given=given, chosen=chosen))
        poison = None if is_named else _poison(settings.poison, dtype)
        if poison is not None:
            found[-1] = Filling(path, poison, why=f"poison {settings.poison}")
    return tuple(found)


def _filling(path: str, place: Place, *, dtype: Any, given: Any, chosen: Chosen) -> Filling:
    if given == "adaptive":
        slot = (place, _compat.kind_of_dtype(dtype))
        mode, why = chosen(slot)
        return Filling(path, mode, why=why, slot=slot)
    if not isinstance(given, str):
        check_fits(given, dtype, path=path)
    return Filling(path, given)


def _given(settings: Settings, place: Place) -> tuple[Any, bool]:
    """The option of an argument, and whether it names the argument."""
    padding = settings.padding
    if not is_mapping(padding):
        return padding, False
    either = _either(settings.fn, place)
    named = next((name for name in either if name in padding), None)
    return ("zeros", False) if named is None else (padding[named], True)


def _either(fn: Callable[..., Any], place: Place) -> tuple[Place, ...]:
    """An argument by its position and by its name, as far as they are known."""
    names: Mapping[Any, Any] = dict(enumerate(p.name for p in parameters_of(fn)))
    if isinstance(place, int):
        return (place, names[place]) if place in names else (place,)
    return (place, *(number for number, name in names.items() if name == place))


def _poison(poison: str | None, dtype: Any) -> Any:
    """The number of a poison; None: there is none, or the array may be a mask itself."""
    if poison is None or _compat.kind_of_dtype(dtype) not in ("float", "complex"):
        return None
    return poison_value(poison, dtype, padding=UNSPECIFIED).item()
