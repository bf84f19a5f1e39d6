"""Hashable keys of equation parameters: two parameters with equal keys mean the same.

Objects of unknown types are compared by their own `==`. One without `==` is unequal to any other,
which is the safe side. A dataclass marks a field that affects no value, such as a hint to the
compiler, by `metadata={"is_hint": True}`.
"""

# It inspects values of any type, so the types inside containers are unknown.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from shapeexec import _compat

# Names, hints to the compiler and weak types: no value depends on them.
_SILENT = frozenset(
    """name debug_info unroll _split_transpose indices_are_sorted unique_indices weak_type
    ctx_mesh inline keep_unused donated_invars compiler_options_kvs""".split()
)
# Variables of functions, by module: they hold the call stack, for the text of an error.
_OF_ERRORS = {"equinox._errors": frozenset({"stack"})}
_DEEPEST = 32

Number = Callable[[Any], Hashable]
"""The key of a closed jaxpr."""


def params_key(params: Mapping[str, Any], number: Number) -> Hashable:
    """The key of an equation's parameters, sorted by name."""
    return tuple(
        (name, key(value, number)) for name, value in sorted(params.items()) if name not in _SILENT
    )


def are_alike(mine: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether parameters surely have equal keys, by a look; False: they may have."""
    return mine.keys() == others.keys() and all(
        name in _SILENT or _is_same(value, others[name]) for name, value in mine.items()
    )


def _is_same(mine: Any, other: Any) -> bool:
    if mine is other:
        return True
    if isinstance(mine, np.dtype):
        return isinstance(other, np.dtype) and bool(mine == other)
    if type(mine) is not type(other):
        return False
    if isinstance(mine, bool | int | np.integer | str | enum.Enum):
        return bool(mine == other)
    if isinstance(mine, tuple):
        return len(mine) == len(other) and all(map(_is_same, mine, other))
    return False


def key(value: Any, number: Number, *, depth: int = 0) -> Hashable:
    """A hashable that equals another's only if the values mean the same."""
    if value is None or isinstance(value, str | bytes | enum.Enum):
        return value
    if isinstance(value, bool | np.bool_):
        return bool, bool(value)
    if isinstance(value, int | np.integer):
        return int, int(value)
    if isinstance(value, float | complex | np.generic | np.ndarray) or _is_array(value):
        return _array_key(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return "dtype", np.dtype(value)
    if isinstance(value, _compat.ShapedArray):
        return "aval", tuple(value.shape), value.dtype
    if isinstance(value, _compat.ClosedJaxpr | _compat.Jaxpr):
        return "jaxpr", number(_compat.closed(value))
    if depth > _DEEPEST:
        return id(value), _Same(value)
    into = functools.partial(key, number=number, depth=depth + 1)
    if isinstance(value, tuple | list):
        return type(value).__name__, *map(into, value)
    if isinstance(value, dict):
        return dict, tuple((into(name), into(held)) for name, held in value.items())
    return _object_key(value, into)


def _object_key(value: Any, into: Callable[[Any], Hashable]) -> Hashable:
    if isinstance(value, types.FunctionType):
        silent = _OF_ERRORS.get(value.__module__, ())
        names = value.__code__.co_freevars
        held = zip(names, value.__closure__ or (), strict=True)
        cells = tuple(_content(cell) for name, cell in held if name not in silent)
        return "function", value.__code__, *map(into, (value.__defaults__, cells))
    if isinstance(value, types.MethodType):
        return "method", *map(into, (value.__self__, value.__func__))
    if isinstance(value, jax.tree_util.PyTreeDef):
        return "tree", value.num_leaves, *map(into, (value.node_data(), value.children()))
    if isinstance(value, functools.partial):
        return "partial", *map(into, (value.func, value.args, value.keywords))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if not f.metadata.get("is_hint")]
        kind: Any = type(value)
        return kind, into({name: getattr(value, name) for name in names})
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return type(value), value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape")


def _array_key(value: Any) -> Hashable:
    if _compat.is_extended(getattr(value, "dtype", np.float32)) or isinstance(value, Tracer):
        return _Same(value)
    array = np.asarray(value)
    return "array", array.dtype, array.shape, array.tobytes()


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """Equal only for the same object, which it keeps alive so that its id is not reused."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def params_text(left: Hashable, right: Hashable) -> str | None:
    """The first parameter that differs between two operations, as text; None: unknown."""
    if not (isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right)):
        return None
    for pair in zip(left, right, strict=True):
        mine, others = pair
        if mine == others or not all(isinstance(one, tuple) and len(one) == 2 for one in pair):
            continue
        texts = [_text(one[1]) for one in pair]
        if mine[0] == others[0] and all(len(text) < _LONGEST_TEXT for text in texts):
            return f"{mine[0]}={texts[0]} instead of {texts[1]}"
        return f"another {mine[0]}"
    return None


_LONGEST_TEXT = 60


def _text(keyed: Any) -> str:
    """The text of the value with this key."""
    match keyed:
        case ("tuple" | "list", *items):
            return f"({', '.join(map(_text, items))})"
        case (kind, value) if isinstance(kind, type | str):
            return str(value)
        case _:
            return str(keyed)
