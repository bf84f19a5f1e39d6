"""A mask given as a function of positions.

The kinds of its tiles are found by evaluating all T * S pairs whenever a call is traced, in bounded
memory.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from shapeexec._errors import ConfigError
from shapeexec.attention.masks._base import Array, Bounds, Mask, Positions, Tiles
from shapeexec.attention.masks._value import is_known


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaskFunction(Mask):
    """A pair is allowed where `function(b, h, q, k)` is true.

    Attributes:
        function: A function of the example, the query head, and the positions of queries and keys,
            each int32 and broadcasting to the others; it returns bool elementwise. JAX must be able
            to trace it. It is static: pass the same function object to run the same graph, and pass
            arrays as masks of their own instead of closing over them.
        examples: The batch of one call. Under `jax.vmap` and `Exec.map` calls are merged into one
            batch, and b is the example's number in its own call. None: calls are not merged.

    Example:
        >>> mask = MaskFunction(lambda b, h, q, k: (q + k) % 2 == 0)
        >>> tiles = sx.BlockMask.from_mask(mask, query_size=2, key_size=3)
        >>> tiles.to_dense()[0, 0].astype(int).tolist()
        [[1, 0, 1], [0, 1, 0]]
    """

    function: Callable[[Array, Array, Array, Array], Array]
    examples: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.function) or not _is_hashable(self.function):
            raise ConfigError(
                f"function={self.function!r} is not callable and hashable.",
                option="function",
                fix="pass a function of (b, h, q, k), such as `lambda b, h, q, k: k <= q`",
            )

    def allows(self, at: Positions) -> Array:
        """See `Mask`.

        Raises:
            ConfigError: The function returns something other than bool.
        """
        batch = at.batch if self.examples is None else _modulo(at.batch, self.examples)
        allowed: Any = self.function(batch, at.head, at.query, at.key)
        if not hasattr(allowed, "dtype") or allowed.dtype != bool:
            raise ConfigError(
                f"the mask function {_name(self.function)} returns {_type(allowed)}, not bool.",
                option="mask",
                fix="return bool, by a comparison",
            )
        return allowed

    def of_merged(self, examples: Any) -> "MaskFunction":
        """See `Value`.

        Raises:
            ConfigError: The number of examples is symbolic.
        """
        if self.examples is not None:
            return self
        if not isinstance(examples, int):
            raise ConfigError(
                f"the mask function {_name(self.function)} under `vmap` with a batch of"
                f" {examples}, a symbolic size.",
                option="mask",
                why="mapped calls are merged into one batch; b is computed from one call's size",
                fix="map over single examples, [T, N, H], or give the batch one size",
            )
        return dataclasses.replace(self, examples=examples)

    def bounds(self, tiles: Tiles) -> Bounds:
        """See `Mask`. Exact at full length.

        Nothing is known if the function depends on an example or head whose number is unknown.

        Raises:
            ConfigError: The function closes over a traced array, or converts positions to NumPy.
        """
        by_batch, by_head = tiles.asks_for(self)
        if (by_batch and tiles.batch is None) or (by_head and tiles.heads is None):
            unknown = tiles.xp.ones((1, 1, 1, 1), bool)
            return Bounds(unknown, ~unknown)
        try:
            some, every = tiles.answers(self)
        except jax.errors.TracerArrayConversionError as error:
            raise _refused(self.function) from error
        whole = all(
            is_known(length) and bool((np.asarray(length) >= size).all())
            for length, size in zip(
                (tiles.query_length, tiles.key_length), tiles.sizes, strict=True
            )
        )
        return Bounds(some, every, exact=whole)


def _refused(function: Callable[..., Any]) -> ConfigError:
    """The error for a function that needs the values of a traced array."""
    fix = "make the array a mask of its own: `mask=array` of bool, Documents, or a BlockMask"
    position = jax.ShapeDtypeStruct((1, 1, 1, 1), np.int32)
    try:
        jax.eval_shape(function, *[position] * 4)
    except jax.errors.TracerArrayConversionError:
        return ConfigError(
            f"the mask function {_name(function)} converts its positions to NumPy arrays.",
            option="mask",
            why="positions are traced: they cannot index a NumPy array or go into a NumPy function",
            fix=f"jnp.asarray(array)[q], and functions of jnp; or {fix}",
        )
    return ConfigError(
        f"the mask function {_name(function)} closes over a traced array.",
        option="mask",
        why="the function is static: its tiles are found while tracing, from concrete arrays only",
        fix=fix,
    )


def _is_hashable(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:  # `Hashable` is not enough: a module with arrays defines `__hash__`
        return False
    return True


def _modulo(number: Array, count: int) -> Array:
    # Numbers are not negative, so the plain remainder, one operation, is the modulo.
    return lax.rem(number, np.int32(count)) if isinstance(number, jax.Array) else number % count


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


def _type(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))
