"""What of an Exec travels between processes, or an error that says which setting cannot.

Graphs never do: `_exec` makes an Exec anew from its settings.
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
    """What `Exec.__reduce__` returns: a method, a name in a module, or how it is made.

    Args:
        ex: The Exec.
        kind: Its class.
        made: What makes it, and from what.

    Raises:
        ConfigError: It would have to be made, and a setting cannot be pickled; it is named.
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
