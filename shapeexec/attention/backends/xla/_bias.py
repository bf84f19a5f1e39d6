"""Biases in the loops: they change a tile's scores, with their derivatives and gradients.

The loops themselves are in `_passes` and `_groups`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.attention.backends._base import Signature, whole_tiles
from shapeexec.attention.masks._value import wide
from shapeexec.attention.masks.scores import Added


@dataclasses.dataclass(frozen=True)
class _NoBias:
    """No bias: scores stay as they are."""

    def apply(self, at: Any, scores: Array) -> Array:
        return scores

    def tangent(self, at: Any, scores: Array, *, d_scores: Array, d_bias: Any) -> Array:
        return d_scores

    def backward(
        self, at: Any, scores: Array, *, d_scores: Array, gradient: Any
    ) -> tuple[Array, Any]:
        return d_scores, gradient

    def directions(self, given: Mapping[int, Array]) -> Any:
        return None


@dataclasses.dataclass(frozen=True)
class _ArrayBias:
    """An array that is added to the scores.

    Attributes:
        array: [B or 1, N or 1, T or 1, S or 1], padded to whole tiles.
        shape: Its shape before the padding.
        dtype: The dtype of the gradient's sums.
    """

    array: Array
    shape: tuple[int, ...]
    dtype: Any

    def apply(self, at: Any, scores: Array) -> Array:
        return scores + at.of_pairs(self.array).astype(scores.dtype)

    def tangent(self, at: Any, scores: Array, *, d_scores: Array, d_bias: Any) -> Array:
        return d_scores if d_bias is None else d_scores + at.of_pairs(d_bias).astype(scores.dtype)

    def backward(
        self, at: Any, scores: Array, *, d_scores: Array, gradient: Any
    ) -> tuple[Array, Any]:
        if gradient is None:
            return d_scores, None
        summed = [axis for axis, size in enumerate(gradient.shape) if size == 1]
        part = d_scores.sum(summed, keepdims=True)
        first = (at.batch.reshape(-1)[0], at.head.reshape(-1)[0], *at.first)
        start = [np.int32(0) if axis in summed else first[axis] for axis in range(4)]
        old = lax.dynamic_slice(gradient, start, part.shape)
        return d_scores, lax.dynamic_update_slice(gradient, old + part, start)

    def directions(self, given: Mapping[int, Array]) -> Any:
        return None if 0 not in given else pad_to(given[0], self.array.shape)

    @property
    def leaves(self) -> int:
        return 1

    def zero(self) -> Array:
        return jnp.zeros(self.array.shape, self.dtype)

    def result(self, gradient: Array) -> Array:
        return gradient[tuple(map(slice, self.shape))].astype(self.array.dtype)


@dataclasses.dataclass(frozen=True)
class _Modified:
    """A score modifier.

    Attributes:
        modifier: The `ScoreModifier`.
        dtype: The dtype of the gradient's sums.
    """

    modifier: Any
    dtype: Any

    def apply(self, at: Any, scores: Array) -> Array:
        return self.modifier.modify(at, scores)

    def tangent(self, at: Any, scores: Array, *, d_scores: Array, d_bias: Any) -> Array:
        leaves, modify = self._of_floats(at)
        return jax.jvp(modify, (leaves, scores), (d_bias, d_scores))[1]

    def backward(
        self, at: Any, scores: Array, *, d_scores: Array, gradient: Any
    ) -> tuple[Array, Any]:
        leaves, modify = self._of_floats(at)
        _, transpose = jax.vjp(modify, leaves, scores)
        d_leaves, d_scores = transpose(d_scores)
        if gradient is not None:
            gradient = jax.tree.map(jnp.add, gradient, d_leaves)
        return d_scores, gradient

    def directions(self, given: Mapping[int, Array]) -> Any:
        leaves = jax.tree.leaves(self.modifier)
        return [
            given.get(i, jnp.zeros_like(leaf)).astype(self.dtype)
            for i, leaf in enumerate(leaves)
            if _is_float(leaf)
        ]

    @property
    def leaves(self) -> int:
        return len(jax.tree.leaves(self.modifier))

    def zero(self) -> list[Array]:
        leaves = jax.tree.leaves(self.modifier)
        return [jnp.zeros(leaf.shape, self.dtype) for leaf in leaves if _is_float(leaf)]

    def result(self, gradient: list[Array]) -> list[Array]:
        of_floats = iter(gradient)
        return [
            next(of_floats).astype(leaf.dtype) if _is_float(leaf) else jnp.zeros_like(leaf)
            for leaf in jax.tree.leaves(self.modifier)
        ]

    def _of_floats(self, at: Any) -> tuple[list[Array], Callable[..., Array]]:
        leaves, structure = jax.tree.flatten(self.modifier)

        def modify(floats: list[Array], scores: Array) -> Array:
            given = iter(floats)
            whole = [next(given) if _is_float(leaf) else leaf for leaf in leaves]
            return jax.tree.unflatten(structure, whole).modify(at, scores)

        return [leaf.astype(self.dtype) for leaf in leaves if _is_float(leaf)], modify


@dataclasses.dataclass(frozen=True)
class _Both:
    """Two biases in turn; see `Added`.

    Attributes:
        one: The first bias.
        other: The second one, an array.
    """

    one: Any
    other: _ArrayBias

    def apply(self, at: Any, scores: Array) -> Array:
        return self.other.apply(at, self.one.apply(at, scores))

    def tangent(self, at: Any, scores: Array, *, d_scores: Array, d_bias: Any) -> Array:
        d_one, d_other = d_bias
        d_scores = self.one.tangent(at, scores, d_scores=d_scores, d_bias=d_one)
        return self.other.tangent(at, scores, d_scores=d_scores, d_bias=d_other)

    def backward(
        self, at: Any, scores: Array, *, d_scores: Array, gradient: Any
    ) -> tuple[Array, Any]:
        of_one, of_other = (None, None) if gradient is None else gradient
        d_scores, of_other = self.other.backward(at, scores, d_scores=d_scores, gradient=of_other)
        d_scores, of_one = self.one.backward(at, scores, d_scores=d_scores, gradient=of_one)
        return d_scores, None if gradient is None else (of_one, of_other)

    def directions(self, given: Mapping[int, Array]) -> Any:
        last = self.leaves - 1
        of_other = {0: given[last]} if last in given else {}
        of_one = {i: direction for i, direction in given.items() if i != last}
        return self.one.directions(of_one), self.other.directions(of_other)

    def zero(self) -> Any:
        return self.one.zero(), self.other.zero()

    def result(self, gradient: Any) -> Any:
        return self.one.result(gradient[0]), self.other.result(gradient[1])

    @property
    def leaves(self) -> int:
        return self.one.leaves + self.other.leaves


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, np.floating)


def as_modifier(bias: Any, signature: Signature) -> Any:
    """The bias of a call, or None, in the form that the loops use."""
    if bias is None:
        return _NoBias()
    dtype = wide(signature.dtype)
    if isinstance(bias, Added):
        return _Both(*(as_modifier(part, signature) for part in (bias.bias, bias.rows)))
    if not hasattr(bias, "shape"):
        return _Modified(bias, dtype)
    whole = [
        size if size == 1 else whole_tiles(size, tile)
        for size, tile in zip(bias.shape[2:], signature.tile, strict=True)
    ]
    return _ArrayBias(pad_to(bias, (*bias.shape[:2], *whole)), bias.shape, dtype)


def pad_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with zeros behind each axis, up to a shape."""
    missing = [(0, want - have) for want, have in zip(shape, x.shape, strict=True)]
    return jnp.pad(x, missing) if any(more for _, more in missing) else x
