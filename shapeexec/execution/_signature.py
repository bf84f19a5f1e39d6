"""The signature of a call, read in microseconds: the key of its plan.

For arrays without ragged axes it has only shardings, and only if there are several devices: JAX's
fast path checks their shapes and dtypes at each run.
"""

from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec.execution._exactness import known_rules
from shapeexec.execution._options import POSITIONAL, parameters_of
from shapeexec.execution._placement import may_stand_elsewhere
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import FUNCTION, Call
from shapeexec.shape import _trees


def by_position(
    settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Arguments that have a spec by position, put there where they were passed by name.

    One that was left out and is None by default is None there. One that was passed by position, and
    has its spec by name, goes among the others.
    """
    in_shapes = settings.in_shapes
    if in_shapes is None or len(args) == len(in_shapes):
        return args, kwargs
    if len(args) > len(in_shapes):
        return _by_name(settings, args, kwargs=kwargs)
    args, kwargs = list(args), dict(kwargs)
    for parameter in parameters_of(settings.fn)[len(args) : len(in_shapes)]:
        if parameter.name in kwargs and parameter.kind is not parameter.POSITIONAL_ONLY:
            args.append(kwargs.pop(parameter.name))
        elif parameter.default is None and parameter.kind in POSITIONAL:
            args.append(None)
        else:
            break
    return args, kwargs


def _by_name(
    settings: Settings, args: Sequence[Any], *, kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    count, specs = len(settings.in_shapes or ()), settings.kwarg_shapes or {}
    rest = parameters_of(settings.fn)[count : len(args)] if specs else []
    names = [p.name for p in rest if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in specs]
    if len(names) < len(args) - count or not kwargs.keys().isdisjoint(names):
        return args, kwargs
    return args[:count], {**kwargs, **dict(zip(names, args[count:], strict=True))}


def signature(settings: Settings, call: Call, *, trees: Container[int] = frozenset()) -> Hashable:
    """The shapes, dtypes and shardings of arguments that may be ragged, and all that is constant.

    It also has the form of results and the number of rules, because a new rule may make fewer
    symbols exact. None if an argument does not fit its spec: planning raises the error.

    Args:
        settings: The settings of the Exec.
        call: The call.
        trees: Without specs, the positions of trees of arrays that may be ragged.
    """
    static, specs = settings.static_argnums, settings.in_shapes
    parts: list[Hashable] = [call.static, settings.returns, len(call.arrays), known_rules()]
    try:
        if may_stand_elsewhere():
            parts += map(_sharding, _trees.leaves((call.arrays, call.named)))
        for number, arg in enumerate(call.arrays):  # each hit comes here: no call per argument
            if (specs is not None and specs[number] is None) or number in static:
                continue
            if type(arg) is np.ndarray:
                parts.append((arg.shape, arg.dtype, False, None))
            elif hasattr(arg, "shape"):
                sharding = arg.sharding if getattr(arg, "committed", False) else None
                parts.append((arg.shape, arg.dtype, getattr(arg, "weak_type", False), sharding))
            else:
                is_fixed = specs is None and number not in trees
                parts.append(None if is_fixed else _of_tree(arg))
        parts += [(name, _of_name(settings, name, arg=arg)) for name, arg in call.named.items()]
        known_as = tuple(parts)
        hash(known_as)
    except (AttributeError, IndexError, TypeError):
        return None
    return known_as


def _of_name(settings: Settings, name: str, *, arg: Any) -> Hashable:
    if name == FUNCTION:
        return None
    has_spec = settings.in_shapes is None or name in (settings.kwarg_shapes or {})
    return _of_tree(arg) if has_spec else None


def of_array(arg: Any) -> Hashable:
    """The signature of an array: shape, dtype, weak type, and sharding if committed."""
    return (arg.shape, arg.dtype, getattr(arg, "weak_type", False), _sharding(arg))


def _sharding(leaf: Any) -> Any:
    return leaf.sharding if getattr(leaf, "committed", False) else None


def _of_tree(arg: Any) -> Hashable:
    if hasattr(arg, "shape"):
        return of_array(arg)
    leaves, tree = _trees.flatten(arg)
    return (tree, tuple(map(of_array, leaves)))
