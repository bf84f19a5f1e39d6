"""JAX's errors of values that are unknown while tracing, with the user's own arguments named.

Errors about sizes are not among them: `shape/_meanings` tells these.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

from shapeexec.execution._options import parameters_of
from shapeexec.shape import _trees


def add_names(
    error: Exception, fn: Callable[..., Any], *, tree: Any, apart: Collection[Any]
) -> None:
    """Say in a note which arguments JAX speaks of, and what to do.

    Args:
        error: It names arguments by their number among all arrays, `flat[9]`.
        fn: The function of the user.
        tree: The structure of the positional arguments' arrays, and of those by keyword.
        apart: The places of arguments that are taken apart.
    """
    numbers = dict.fromkeys(map(int, re.findall(r"flat\[(\d+)\]", str(error))))
    whole = _trees.unflatten(tree, range(tree.num_leaves))
    paths = {leaf: path for path, leaf in _trees.leaves_with_path(whole)}
    for number in numbers:
        is_named, place, *rest = paths[number]
        key = place.key if is_named.idx else place.idx
        path = f"kwargs[{key!r}]" if is_named.idx else f"args[{key}]"
        within = "" if key in apart else _trees.keystr(tuple(rest))
        name = key if is_named.idx else _parameter(fn, key)
        way_out = f"static_argnames={name!r}" if name else f"static_argnums={key}"
        error.add_note(
            f"shapeexec: flat[{number}] is {path}{within}"
            + (f" (`{name}`)" if name and not is_named.idx else "")
            + ". Numbers and arrays are data, whose values are not known while tracing. If it is a "
            f"setting, make it a constant: {way_out}"
            + (", and pass it by keyword" if name and not is_named.idx else "")
        )


def _parameter(fn: Callable[..., Any], position: int) -> str | None:
    parameters = parameters_of(fn)
    if position >= len(parameters):
        return None
    parameter = parameters[position]
    return parameter.name if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else None
