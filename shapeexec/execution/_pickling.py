"""Settings that travel between processes, or an error that says which of them cannot.

`Exec.__reduce__` decides what travels; graphs never do.
"""

import dataclasses
import inspect
import pickle
import sys
import types
from typing import Any, TypeGuard

from shapeexec._errors import ConfigError

_BY_VALUE = ("cloudpickle", "dill")  # these pickle functions that pickle itself cannot find


def is_global(ex: Any, fn: Any) -> bool:
    """Whether an Exec stands in its module under its function's name, as decorators put it."""
    value: Any = sys.modules.get(getattr(fn, "__module__", None) or "")
    for name in str(getattr(fn, "__qualname__", "<locals>")).split("."):
        value = getattr(value, name, None)
    return value is ex


def is_method_of_a_class(fn: Any, kind: type) -> TypeGuard[types.MethodType]:
    """Whether a function is the method of an instance whose class has a `kind` under its name."""
    if not isinstance(fn, types.MethodType):
        return False
    return isinstance(inspect.getattr_static(type(fn.__self__), fn.__name__, None), kind)


def check_settings(settings: Any) -> None:
    """Check that settings can be pickled.

    Raises:
        ConfigError: One cannot; it is named.
    """
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
                got=f"{name}={value!r:.100}",
                why=str(error),
                fix="define the function at the top level of a module, without lambda or closure; "
                "give it what it closes over as arguments, or by functools.partial",
            ) from error
