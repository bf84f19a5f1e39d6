"""The base of masks and score modifiers: frozen dataclasses that are pytrees.

Arrays in fields are leaves; everything else is static. The value of a field decides which it is: a
Python number is a constant of the graph, a traced one is an operand.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from shapeexec._errors import ConfigError, ShapeExecError

Array = Any
"""A NumPy array if all is known, else a JAX array; in a kernel a reference or a loaded tile.

Masks are written once for all of these, and there is no common type with their operations.
"""

FARTHEST = 2**29
"""A bound on positions: larger numbers mean the same as this one, and sums fit into i32."""

_LEAF = "leaf"  # a placeholder for a leaf in the static part
_LEAVES = "_leaves"  # the attribute with the names of an unflattened value's fields that are leaves


class Value:
    """Base of masks and score modifiers: a frozen dataclass (`eq=False`) and a pytree.

    Two are equal, and hash alike, if they have the same structure and equal arrays; a traced
    array is equal to itself alone.

    Attributes:
        axes: The axes of each field that may hold an array, one letter each, such as `"BNTS"`.
            B and N may be 1 and then broadcast over examples or heads. The first axis of every
            array is B, so the batch can be merged or padded without knowing the mask.
    """

    axes: ClassVar[Mapping[str, str]] = {}
    __array_ufunc__: ClassVar[None] = None  # `array & mask` asks the mask, not NumPy

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_with_keys(
            cls,
            _flatten_with_keys,
            lambda static, leaves: _unflatten(cls, static, leaves=leaves),
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
        return hash((structure, *map(_kind_of, leaves)))

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={_as_text(value)}"
            for name, value, field in _fields(self)
            if name in _leaf_fields(self) or value != field.default
        )
        return f"{type(self).__name__}({fields})"

    def check_axes(self, lengths: Mapping[str, int]) -> None:
        """Check that the arrays fit a call.

        Args:
            lengths: The lengths of the axes B, N, T and S. A symbolic length is compared with known
                lengths only.

        Raises:
            ConfigError: An array has another length than the call, and it is not a 1 that
                broadcasts.
        """
        for name, value, _ in _fields(self):
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Value):
                    part.check_axes(lengths)
            if name in self.axes and hasattr(value, "shape"):
                _check_array(
                    f"{type(self).__name__}.{name}", value, names=self.axes[name], sizes=lengths
                )

    def of_merged(self, examples: Any) -> "Any":
        """The value for a batch into which calls are merged, as under `jax.vmap`.

        The caller merges the arrays; this is for whatever else depends on the example's number.
        Override it if `allows` or `modify` uses `at.batch` other than to index an array.

        Args:
            examples: The batch of each call; may be symbolic.
        """
        changed = copy.copy(self)
        for name, content, _ in _fields(self):
            if isinstance(content, Value):
                set_field(changed, name, content.of_merged(examples))
            elif isinstance(content, tuple):
                parts = (p.of_merged(examples) if isinstance(p, Value) else p for p in content)
                set_field(changed, name, tuple(parts))
        return changed


def as_int_or_array(value: Any, name: str) -> Any:
    """Return an int unchanged; a tracer, symbolic dim or one number per example as i32[B or 1].

    Elements of an array are clipped to +-`FARTHEST`.

    Raises:
        ConfigError: The value is of another type.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    fix = f"pass {name} as an int, or as int32[B]: one for each example"
    array = as_array(value, name, fix=fix)
    if array.ndim > 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ConfigError(
            f"{name} is {array.dtype}{list(array.shape)}, not an int or a vector of integers.",
            option=name,
            fix=fix,
        )
    return saturated(array.reshape(-1))


def saturated(value: Any) -> Any:
    """An int, or an array of integers as i32, with no element beyond `FARTHEST`."""
    if isinstance(value, int):
        return max(-FARTHEST, min(FARTHEST, value))
    info = jnp.iinfo(value.dtype)
    low, high = max(int(info.min), -FARTHEST), min(int(info.max), FARTHEST)
    # Clipped in the array's own dtype: a cast to i32 first would wrap.
    fits = (low, high) == (info.min, info.max)
    return (value if fits else value.clip(low, high)).astype(np.int32)


def as_array(value: Any, name: str, *, fix: str) -> Any:
    """NumPy arrays and lists as NumPy arrays; JAX arrays as they are.

    Raises:
        ConfigError: The value is not an array; `fix` says what to pass as `name`.
    """
    if isinstance(value, jax.Array):
        return value
    try:
        if isinstance(value, (np.ndarray, np.generic, list, tuple, bool)):
            return np.asarray(value)
        if value is None or isinstance(value, (str, bytes)):  # JAX reads a string as a number
            # Caught below, which raises ConfigError.
            raise TypeError(f"a {type(value).__name__}")
        return jnp.asarray(value)
    except (ShapeExecError, jax.errors.JAXTypeError):  # of sizes, and of traced numbers in a list
        raise
    except (TypeError, ValueError) as error:  # ValueError: rows of unequal length
        raise ConfigError(f"{name}={value!r} is not an array.", option=name, fix=fix) from error


def wide(dtype: Any) -> np.dtype:
    """The dtype of sums and of the log-sum-exp: f32, or f64 for f64 operands."""
    return np.dtype(np.float64 if jnp.dtype(dtype) == np.float64 else np.float32)


def set_field(value: Any, name: str, content: Any) -> None:  # noqa: PLR0917 - as `setattr`
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(value, name, content)


def is_known(*trees: Any) -> bool:
    """Whether no array in these trees is traced."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def _fields(value: Any) -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    return [(f.name, getattr(value, f.name), f) for f in dataclasses.fields(value)]


def _is_static(content: Any) -> bool:
    if isinstance(content, Value) or (hasattr(content, "shape") and hasattr(content, "dtype")):
        return isinstance(content, type)
    if isinstance(content, tuple):
        return all(map(_is_static, content))
    return not isinstance(content, (list, dict))


def _leaf_fields(value: Any) -> frozenset[str]:
    """The fields that are children of a value as a tree.

    JAX and other libraries put any objects in place of leaves: ints, None, names, other trees. So
    an unflattened value keeps the structure that it was given, whatever its fields hold.
    """
    known = getattr(value, _LEAVES, None)
    if known is None:
        known = frozenset(name for name, content, _ in _fields(value) if not _is_static(content))
    return known


def _flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
    children, static = _flatten_with_keys(value)
    return [child for _, child in children], static


def _flatten_with_keys(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
    names, fields = _leaf_fields(value), _fields(value)
    static = tuple(_LEAF if name in names else (content,) for name, content, _ in fields)
    children = [(name, content) for name, content, _ in fields if name in names]
    return [(jax.tree_util.GetAttrKey(name), child) for name, child in children], static


def _unflatten(cls: Any, static: tuple[Any, ...], *, leaves: Any) -> Any:
    value = object.__new__(cls)
    remaining = iter(leaves)
    names = [field.name for field in dataclasses.fields(cls)]
    for name, content in zip(names, static, strict=True):
        set_field(value, name, next(remaining) if content == _LEAF else content[0])
    of_leaves = (name for name, content in zip(names, static, strict=True) if content == _LEAF)
    set_field(value, _LEAVES, frozenset(of_leaves))
    return value


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not is_known(one, other) or _kind_of(one) != _kind_of(other):
        return False
    return np.array_equal(np.asarray(one), np.asarray(other)) if _is_array(one) else one == other


def _kind_of(leaf: Any) -> Any:
    return (np.shape(leaf), leaf.dtype) if _is_array(leaf) else type(leaf)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _as_text(content: Any) -> str:
    if hasattr(content, "shape") and hasattr(content, "dtype"):
        return f"{content.dtype}[{','.join(map(str, content.shape))}]"
    return repr(content)


def _check_array(name: str, array: Any, *, names: str, sizes: Mapping[str, int]) -> None:
    wanted = [sizes.get(axis) for axis in names]
    may_be_one = ("B", "N", "T", "S") if len(names) == 4 else ("B", "N")
    for axis, size, want in zip(names, array.shape, wanted, strict=True):
        is_known = isinstance(size, int), isinstance(want, int)
        if want is None or not any(is_known) or (is_known[0] and size == 1 and axis in may_be_one):
            continue
        # A symbolic size against a known one: an Exec that traces decides it and keeps a guard.
        if size == want:
            continue
        raise ConfigError(
            f"{name} has shape {list(array.shape)}, whose axis {axis} is {size}, not {want}.",
            option=name,
            got=f"a call with {', '.join(f'{a}={n}' for a, n in sizes.items())}",
            fix=f"pass it as [{', '.join(names)}]"
            + (", where each of B and N may be 1" if len(names) < 4 else ", each full or 1"),
        )
