"""The options of an Exec as text, and read from text without running any of it.

The text is Python as users write it: `sx.Linear(32, maximum=128)`. Only constants, tuples, lists,
dicts and calls of the classes in `_KINDS` are read.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shapeexec import bucketing
from shapeexec._code import code, parsed
from shapeexec.costing import HardwareAware
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._compiling import Compiling
from shapeexec.execution._narrow import is_listed, is_mapping
from shapeexec.execution._settings import Settings

_KINDS: Mapping[str, Callable[..., Any]] = {
    "Adaptive": bucketing.Adaptive,
    "Aligned": bucketing.Aligned,
    "CacheLimits": CacheLimits,
    "Compiling": Compiling,
    "Exact": bucketing.Exact,
    "Geometric": bucketing.Geometric,
    "HardwareAware": HardwareAware,
    "Hybrid": bucketing.Hybrid,
    "Ladder": bucketing.Ladder,
    "Linear": bucketing.Linear,
    "MemoryOptimal": bucketing.MemoryOptimal,
    "Pow2": bucketing.Pow2,
}
_LONGEST = 1_000_000
"""The longest text that is read, in characters."""

_NAMES: Mapping[str, str] = {"strategies": "buckets"}
_PLAIN = (
    "in_shapes",
    "kwarg_shapes",
    "strategies",
    "on_unsupported",
    "poison",
    "static_argnums",
    "static_argnames",
    "donate_argnums",
    "examples",
    "check",
    "missing",
    "returns",
    "on_memory",
    "masking",
    "padding",
)

OPTIONS = frozenset(
    (*(_NAMES.get(name, name) for name in _PLAIN), "constraints", "compiling", "limits")
)
"""The options that are written."""


def written(settings: Settings, limits: CacheLimits) -> dict[str, str | None]:
    """Per option of `Exec` its text; None: it is not data, and has to be given at each load."""
    values = {_NAMES.get(name, name): getattr(settings, name) for name in _PLAIN}
    values["constraints"] = tuple(map(str, settings.constraints))
    texts: dict[str, str | None] = {name: _text(value) for name, value in values.items()}
    compiling = settings.compiling
    texts["compiling"] = _call("Compiling", first=compiling.first, options=dict(compiling.options))
    texts["limits"] = _call(
        "CacheLimits", graphs=limits.graphs, device_bytes=limits.device_bytes, pin=list(limits.pin)
    )
    return texts


def _call(name: str, **fields: Any) -> str:
    return f"sx.{name}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"


def _text(value: Any) -> str | None:
    """The source of a value; None if reading it gives another value or other types."""
    source = code(value)
    if source is None:
        return None
    try:
        own = read(source)
    except ValueError:
        return None
    return source if own == value and _types(own) == _types(value) else None


def _types(value: Any) -> Any:
    """The types of a value and its items, because a namedtuple equals a tuple."""
    held: Sequence[Any] = ()
    if is_mapping(value):
        held = [*value, *value.values()]
    elif is_listed(value):
        held = value
    return type(value), tuple(map(_types, held))


def read(source: str) -> Any:
    """The value of a string that `written` gave.

    Raises:
        ValueError: The text is not from `written`.
    """
    if len(source) > _LONGEST:
        raise ValueError("the text is too long")  # `_load` turns it into a warning
    try:
        return _value(parsed(source))
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{source[:80]!r} is not an option") from error  # `_load` warns


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            return -number
        case ast.Tuple(items):
            return tuple(map(_value, items))
        case ast.List(items):
            return list(map(_value, items))
        case ast.Dict(keys, values):
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True) if k}
        case ast.Call(ast.Attribute(ast.Name("sx"), name), args, named) if name in _KINDS:
            own = {str(keyword.arg): _value(keyword.value) for keyword in named}
            return _KINDS[name](*map(_value, args), **own)
        case _:
            raise ValueError(f"{ast.unparse(node)[:80]!r} is not an option")  # `_load` warns
