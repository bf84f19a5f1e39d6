"""Python source of values, as users write it with `import shapeexec as sx`, and its syntax tree.

Error messages print specs, strategies and options with it. Each package registers its own types;
arrays and JAX are not known here.
"""

import ast
import dataclasses
import functools
import json
import numbers
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

_OWN = "shapeexec"
_MOST_TRIES = 8


def parsed(text: str) -> ast.expr:
    """The syntax tree of an expression; safe to use from many threads.

    CPython 3.11 and 3.12 count the depth of a tree for all threads together (gh-106905): if two of
    them parse at once, one may meet a `SystemError`. Tracebacks and loggers parse, too, so a lock
    of ours would not do.

    Raises:
        SyntaxError: It is no expression.
    """
    for _ in range(_MOST_TRIES):
        try:
            return ast.parse(text, mode="eval").body
        except SystemError:
            continue
    return ast.parse(text, mode="eval").body


@functools.singledispatch
def code(value: Any) -> str | None:
    """The source of a value; None: it has none, such as a lambda.

    `code.register` adds types. A class or a function is shown by its name.
    """
    name = getattr(value, "__name__", None)
    if callable(value) and isinstance(name, str):
        return _of_name(name, value)
    if dataclasses.is_dataclass(value):
        return _of_dataclass(value)
    return None


def call(name: str, *args: Any, **kwargs: Any) -> str | None:
    """The source of a call: `sx.Pow2(minimum=8)`; None: an argument has none."""
    items = [code(value) for value in args]
    items += [_after(f"{key}=", code(value)) for key, value in kwargs.items()]
    return _joined(items, left=f"{name}(", right=")")


@code.register(type(None))
@code.register(bool)
@code.register(float)
def _(value: Any) -> str | None:
    return repr(value) if value in (None, True, False) or value - value == 0 else None


@code.register(numbers.Integral)
def _(value: Any) -> str | None:
    return str(int(value))  # NumPy integers would print their type


@code.register
def _(value: EllipsisType) -> str | None:
    return "..."


@code.register
def _(value: str) -> str | None:
    return json.dumps(value, ensure_ascii=False)


@code.register(list)
def _(value: list[Any]) -> str | None:
    return _joined(map(code, value), left="[", right="]")


@code.register(tuple)
def _(value: tuple[Any, ...]) -> str | None:
    return tuple_of(map(code, value))


@code.register(Mapping)
def _(value: Mapping[Any, Any]) -> str | None:
    items = [
        None if key is None else _after(f"{key}: ", code(held))
        for key, held in ((code(key), held) for key, held in value.items())
    ]
    return _joined(items, left="{", right="}")


def tuple_of(items: Any) -> str | None:
    """The source of a tuple of items with these sources; None: an item has none."""
    items = list(items)
    return _joined(items, left="(", right=",)" if len(items) == 1 else ")")


def _joined(items: Any, *, left: str, right: str) -> str | None:
    items = list(items)
    return None if None in items else f"{left}{', '.join(items)}{right}"


def _after(front: str, source: str | None) -> str | None:
    return None if source is None else front + source


def _of_name(name: str, value: Any) -> str | None:
    """The public name of a class or a function; None for methods."""
    seen = str(getattr(value, "__qualname__", name)).split("<locals>.")[-1]
    if seen != name or not name.isidentifier():
        return None
    is_own = str(getattr(value, "__module__", "")).split(".", maxsplit=1)[0] == _OWN
    return f"sx.{name}" if is_own else name


def _of_dataclass(value: Any) -> str | None:
    fields = [field for field in dataclasses.fields(value) if field.init]
    needed = [field for field in fields if field.default is dataclasses.MISSING]
    args = [getattr(value, field.name) for field in needed if not field.kw_only]
    named = {
        field.name: getattr(value, field.name)
        for field in fields
        if (field.kw_only or field not in needed)
        and getattr(value, field.name) is not field.default
    }
    name = _of_name(type(value).__name__, type(value))
    return None if name is None else call(name, *args, **named)
