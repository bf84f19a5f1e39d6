"""Pickling an Exec: its settings, or an error that names the setting that cannot be pickled.

Graphs are not pickled: an Exec is made again from its settings.
"""

import dataclasses
import inspect
import pickle
import sys
import types
from typing import Any, TypeGuard

from shapeexec._errors import ConfigError

_BY_VALUE = ("cloudpickle", "dill")  # these pickle functions that pickle itself cannot find


def reduced(ex: Any, kind: type, *, made: tuple[Any, Any]) -> Any:
    """The result of `Exec.__reduce__`: a method, a name in a module, or a constructor call.

    Args:
        ex: The Exec.
        kind: Its class.
        made: A function that makes the Exec, and its arguments.

    Raises:
        ConfigError: A setting would have to be pickled and cannot be; the error names it.
    """
    fn = ex.settings.fn
    if _is_method_of_a_class(fn, kind):
        return getattr, (fn.__self__, fn.__name__)
    if _is_global(ex, fn):
        return fn.__qualname__
    _check_settings(ex.settings)
    return made


def _is_global(ex: Any, fn: Any) -> bool:
    """Whether an Exec stands in its module under its function's name, as decorators put it."""
    value: Any = sys.modules.get(getattr(fn, "__module__", None) or "")
    for name in str(getattr(fn, "__qualname__", "<locals>")).split("."):
        value = getattr(value, name, None)
    return value is ex


def _is_method_of_a_class(fn: Any, kind: type) -> TypeGuard[types.MethodType]:
    """Whether a function is the method of an instance whose class has a `kind` under its name."""
    if not isinstance(fn, types.MethodType):
        return False
    return isinstance(inspect.getattr_static(type(fn.__self__), fn.__name__, None), kind)


def _check_settings(settings: Any) -> None:
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _BY_VALUE:
            return
        frame = frame.f_back
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        try:
            pickle.dumps(value)
        except Exception as error:  # of any kind: a value may raise its own while pickled
            name = "buckets" if field.name == "strategies" else field.name
            raise ConfigError(
                f"an Exec whose {name} cannot be pickled cannot be pickled.",
                option=name,
                got=f"{name}={value!r:.100}",
                why=str(error),
                fix="define the function at the top level of a module, without lambda or closure; "
                "give it what it closes over as arguments, or by functools.partial",
            ) from error
