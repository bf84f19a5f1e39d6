"""Masks and score modifiers that read the numbers of examples and heads, for a part of a call.

A part numbers its examples and heads from 0. So the numbers in the whole call are put into arrays,
which are divided with the call. Other arrays of masks are divided anyway.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import copy
import dataclasses
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention._blocks import BlockMask
from shapeexec.attention._positions import Gathered, Replaced
from shapeexec.attention.masks import Mask, MaskFunction, ScoreModifier
from shapeexec.attention.masks._base import Array, Bounds, Positions, Tiles
from shapeexec.attention.masks._value import Value, set_field


@dataclasses.dataclass(frozen=True)
class Numbering:
    """The sizes of a whole call.

    Attributes:
        batch, queries, heads, keys: B, T, N and S.
    """

    batch: int
    queries: int
    heads: int
    keys: int

    def of(self, value: Any) -> Any:
        """A mask, score modifier or array that means the same in each part of the call."""
        if not isinstance(value, Value) or not any(reads_numbers(value)):
            return value
        inner = copy.copy(value)
        for field in _fields(value):
            content = getattr(value, field.name)
            if isinstance(content, tuple):
                set_field(inner, field.name, tuple(map(self.of, content)))
            elif isinstance(content, Value):
                set_field(inner, field.name, self.of(content))
        return self._wrapped(value) if any(reads_numbers(inner)) else inner

    def _wrapped(self, value: Any) -> Any:
        numbers = (
            np.arange(self.batch, dtype=np.int32),
            np.arange(self.heads, dtype=np.int32)[None],
        )
        if isinstance(value, ScoreModifier):
            return _NumberedModifier(value, *numbers)
        wrapped = _NumberedMask(value, *numbers)
        if not isinstance(value, MaskFunction):
            return wrapped
        # A part cannot find the tiles of a function: the numbers are not known when it is traced.
        tiles = BlockMask.from_mask(
            value,
            query_size=self.queries,
            key_size=self.keys,
            tile=(min(128, self.queries), min(128, self.keys)),
            batch=self.batch,
            heads=self.heads,
        )
        return dataclasses.replace(tiles, elements=None if tiles.elements is None else wrapped)


def whole_axes(value: Any) -> frozenset[str]:
    """The axes B, N and K that must not be divided for a value, as it may index arrays by number.

    The numbers count in the whole call, so those arrays must be whole too. This concerns arrays
    whose axes a class does not name, and all arrays of a class that reads the numbers.
    """
    if not isinstance(value, Value):
        return frozenset()
    contents = {field.name: getattr(value, field.name) for field in _fields(value)}
    parts = [part for part in jax.tree.leaves(contents, is_leaf=_is_value) if _is_value(part)]
    if parts:
        return frozenset().union(*map(whole_axes, parts))
    batch, heads = reads_numbers(value)
    whole: set[str] = set()
    for name, content in contents.items():
        axes = value.axes.get(name, "BN")[: getattr(content, "ndim", 0)]
        is_unknown = name not in value.axes
        if "B" in axes and (batch or is_unknown):
            whole |= {"B"}
        if "N" in axes and (heads or is_unknown):
            whole |= {"N", "K"}
    return frozenset(whole)


def _is_value(x: Any) -> bool:
    return isinstance(x, Value)


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


def reads_numbers(value: Value) -> tuple[bool, bool]:
    """Whether results depend on the example's number, and on the head's, other than by arrays."""
    one, two = np.zeros((1, 1, 1, 1), np.int32), np.arange(2, dtype=np.int32)
    arrays = Gathered(one, one, one, one, one + 1, one + 1)
    at: Any = Replaced(arrays, batch=two.reshape(2, 1, 1, 1), head=two.reshape(1, 2, 1, 1))

    def ask() -> Array:
        if isinstance(value, ScoreModifier):
            return value.modify(at, jnp.zeros((1, 1, 1, 1), np.float32))
        return jnp.asarray(cast(Mask, value).allows(at))

    batch, heads = ((1,) * 4 + jax.eval_shape(ask).shape)[-4:-2]
    return batch > 1, heads > 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _NumberedMask(Mask):
    """A mask evaluated with the numbers that examples and heads have in the whole call.

    Attributes:
        mask: The mask.
        batch: The numbers of the examples, i32[B].
        heads: The numbers of the heads, i32[1, N].
    """

    axes: ClassVar = {"batch": "B", "heads": "BN"}

    mask: Mask
    batch: Array
    heads: Array

    def allows(self, at: Positions) -> Array:
        """See `Mask`."""
        numbered: Any = Replaced(at, batch=at.of_batch(self.batch), head=at.of_head(self.heads))
        return self.mask.allows(numbered)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Nothing is known of any tile."""
        some = tiles.xp.ones((1, 1, 1, 1), bool)
        return Bounds(some, ~some)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _NumberedModifier(ScoreModifier):
    """A score modifier evaluated with the numbers of the whole call.

    Attributes:
        modifier: The modifier.
        batch, heads: See `_NumberedMask`.
    """

    axes: ClassVar = {"batch": "B", "heads": "BN"}

    modifier: ScoreModifier
    batch: Array
    heads: Array

    def modify(self, at: Positions, scores: Array) -> Array:
        """See `ScoreModifier`."""
        numbered: Any = Replaced(at, batch=at.of_batch(self.batch), head=at.of_head(self.heads))
        return self.modifier.modify(numbered, scores)
