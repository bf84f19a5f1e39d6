"""Frozen dataclasses that are pytrees, and what their fields may hold.

A field's arrays are leaves; all else in it is static. Which of the two a field holds is asked of
its value: a number that the caller knows is a constant of the graph, a traced one is an operand.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from shapeexec._errors import ConfigError

Array = Any

_LEAF = "leaf"  # stands in the static part where a leaf goes


class Value:
    """Base of masks and score modifiers: a frozen dataclass (`eq=False`) and a pytree.

    Two are equal, and hash alike, if they have the same structure and equal arrays; a traced
    array is equal to itself alone.

    Attributes:
        axes: Of each field that may hold an array its axes, one letter each, such as `"BNTS"`.
            B and N may be 1 and then count for every example or head. The first axis of every
            array is B, so that who merges or pads the batch need not know the masks.
    """

    axes: ClassVar[Mapping[str, str]] = {}
    __array_ufunc__: ClassVar[None] = None  # `array & mask` asks the mask, not NumPy

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_with_keys(
            cls,
            _flatten_with_keys,
            lambda static, leaves: _unflatten(cls, static, leaves),
            _flatten,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or type(self) is not type(other):
            return NotImplemented
        mine, structure = jax.tree.flatten(self)
        theirs, other_structure = jax.tree.flatten(other)
        return structure == other_structure and all(map(_is_same, mine, theirs))

    def __hash__(self) -> int:
        leaves, structure = jax.tree.flatten(self)
        return hash((structure, *((np.shape(leaf), leaf.dtype) for leaf in leaves)))

    def __repr__(self) -> str:
        told = ", ".join(
            f"{name}={_told(value)}"
            for name, value, field in _fields(self)
            if not (_is_static(value) and value == field.default)
        )
        return f"{type(self).__name__}({told})"

    def check_axes(self, lengths: Mapping[str, int]) -> None:
        """Check that the arrays fit a call.

        Args:
            lengths: Of the axes B, N, T and S. One that is no int is not checked.

        Raises:
            ConfigError: An array has another length than the call, and it is not a 1 that
                broadcasts.
        """
        for name, value, _ in _fields(self):
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Value):
                    part.check_axes(lengths)
            if name in self.axes and hasattr(value, "shape"):
                _check_array(f"{type(self).__name__}.{name}", value, self.axes[name], lengths)


def as_int_or_array(value: Any, name: str) -> Any:
    """An int as it is; what is traced, a symbolic dim, or one per example as i32[B or 1].

    Raises:
        ConfigError: It is neither, or not integral.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    array = as_array(value)
    if array.ndim > 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ConfigError(
            f"{name} is {array.dtype}{list(array.shape)}.",
            fix=f"pass {name} as an int, or as int32[B]: one for each example",
        )
    return array.reshape(-1).astype(np.int32)


def as_array(value: Any) -> Any:
    """NumPy's arrays and lists as NumPy arrays; what is JAX's stays JAX's."""
    if isinstance(value, (np.ndarray, np.generic, list, tuple)):
        return np.asarray(value)
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def set_field(value: Any, name: str, content: Any) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(value, name, content)


def is_known(*trees: Any) -> bool:
    """Whether no array in these trees is traced."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def _fields(value: Any) -> list[tuple[str, Any, dataclasses.Field]]:
    return [(f.name, getattr(value, f.name), f) for f in dataclasses.fields(value)]


def _is_static(content: Any) -> bool:
    if isinstance(content, tuple):
        return all(_is_static(part) for part in content)
    return content is None or isinstance(content, (int, float, str, type)) or callable(content)


def _flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
    contents = [content for _, content, _ in _fields(value)]
    static = tuple((content,) if _is_static(content) else _LEAF for content in contents)
    return [content for content in contents if not _is_static(content)], static


def _flatten_with_keys(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
    leaves, static = _flatten(value)
    names = [name for name, content, _ in _fields(value) if not _is_static(content)]
    return list(zip(map(jax.tree_util.GetAttrKey, names), leaves, strict=True)), static


def _unflatten(cls: type, static: tuple[Any, ...], leaves: Any) -> Any:
    value = object.__new__(cls)
    remaining = iter(leaves)
    for field, content in zip(dataclasses.fields(cls), static, strict=True):  # pyright: ignore[reportArgumentType]
        set_field(value, field.name, next(remaining) if content == _LEAF else content[0])
    return value


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not is_known(one, other) or one.dtype != other.dtype:
        return False
    return np.array_equal(np.asarray(one), np.asarray(other))


def _told(content: Any) -> str:
    if hasattr(content, "shape") and hasattr(content, "dtype"):
        return f"{content.dtype}[{','.join(map(str, content.shape))}]"
    return repr(content)


def _check_array(name: str, array: Any, names: str, lengths: Mapping[str, int]) -> None:
    wanted = [lengths.get(axis) for axis in names]
    may_be_one = ("B", "N", "T", "S") if len(names) == 4 else ("B", "N")
    for axis, length, want in zip(names, array.shape, wanted, strict=True):
        if not isinstance(want, int) or not isinstance(length, int) or length == want:
            continue
        if length == 1 and axis in may_be_one:
            continue
        raise ConfigError(
            f"{name} has shape {list(array.shape)}, whose axis {axis} is {length}, not {want}.",
            got=f"a call with {', '.join(f'{a}={n}' for a, n in lengths.items())}",
            fix=f"pass it as [{', '.join(names)}]"
            + (", where each of B and N may be 1" if len(names) < 4 else ", each full or 1"),
        )
