"""The names of functions and of their flat arguments, as users know them.

`_read` names the values in between.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shapeexec.shape import _trees


def argument_names(
    fn: Callable[..., Any], args: Sequence[Any], *, kwargs: Mapping[str, Any]
) -> list[str]:
    """The names of the flat arguments of a call: `x`, `params['w']`.

    Args:
        fn: The function; its signature, if it has one, names the positional arguments.
        args: The positional arguments; only their structure matters.
        kwargs: The keyword arguments.
    """
    names = _by_position(fn, len(args))
    return [
        *(f"{names[i]}{path}" for i, arg in enumerate(args) for path in _paths(arg)),
        *(f"{name}{path}" for name in sorted(kwargs) for path in _paths(kwargs[name])),
    ]


def function_name(fn: Any) -> str:
    """The name of a function; of any other callable, the name of its class."""
    if isinstance(fn, functools.partial):
        return function_name(fn.func)
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def _paths(tree: Any) -> list[str]:
    return [_trees.keystr(path) for path, _ in _trees.leaves_with_path(tree)]


def _by_position(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # it is written in C, or has no signature
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional][:count]
    return names + [f"args[{i}]" for i in range(len(names), count)]
