"""An Exec as a method of a class: its settings without `self`, which is taken apart as modules are.

`_runner` runs its calls.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution._options import POSITIONAL, name_of, parameters_of
from shapeexec.execution._settings import Settings


def without_self(settings: Settings) -> Settings:
    """The settings of a method for the arguments behind `self`.

    Positions count `self`, as those of `jax.jit` do. Its spec, None, may be left out.

    Raises:
        ConfigError: `self` is to be donated.
    """
    if 0 in settings.donate_argnums:
        raise ConfigError(
            "donate_argnums: 0 is `self`, whose arrays would be gone from the object.",
            option="donate_argnums",
            got=f"the method {name_of(settings.fn)}",
            fix="donate arrays that are arguments of the method, or write a function that takes "
            "the object's arrays as an argument and returns the new ones",
        )
    in_shapes = settings.in_shapes
    if in_shapes and in_shapes[0] is None and len(in_shapes) >= _least_arguments(settings.fn):
        in_shapes = in_shapes[1:]
    names = set(settings.static_argnames) - {_first_name(settings.fn)}
    return dataclasses.replace(
        settings,
        in_shapes=in_shapes,
        annotated={
            place - 1 if isinstance(place, int) else place: spec
            for place, spec in settings.annotated.items()
            if place != 0
        },
        static_argnums=_shifted(settings.static_argnums),
        static_argnames=tuple(sorted(names)),
        donate_argnums=_shifted(settings.donate_argnums),
    )


def method_of(fn: Callable[..., Any], args: Sequence[Any]) -> types.MethodType:
    """The method of the instance that is the first argument.

    Raises:
        ConfigError: There is none.
    """
    if not args:
        raise ConfigError(
            f"{name_of(fn)} is a method, and no instance is given.",
            option="self",
            fix="call it on an instance, or pass one as the first argument",
        )
    return types.MethodType(fn, args[0])


def _shifted(numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(number - 1 for number in numbers if number)


def _least_arguments(fn: Callable[..., Any]) -> int:
    """How many positional arguments a function has that must be given, `self` among them."""
    return sum(
        parameter.kind in POSITIONAL and parameter.default is inspect.Parameter.empty
        for parameter in parameters_of(fn)
    )


def _first_name(fn: Callable[..., Any]) -> str | None:
    return next((parameter.name for parameter in parameters_of(fn)), None)
