"""`isinstance` of containers, whose items are then `Any` to type checkers, and not unknown.

No item is looked at; what a container must hold is checked where it is used.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a mapping."""
    return isinstance(value, Mapping)


def is_listed(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is a tuple."""
    return isinstance(value, tuple)


def is_frozenset(value: object) -> TypeGuard[frozenset[Any]]:
    """Whether a value is a frozen set."""
    return isinstance(value, frozenset)


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether a value is an iterable."""
    return isinstance(value, Iterable)
