"""What the rules of a mask and of a bias look at: which of their arrays, and as what.

It is found by tracing them. Inside a kernel they are then run on what has been loaded. It knows
no kernel.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention.masks import Mask, ScoreModifier

Array = Any

_SIDES = {"of_queries": 0, "of_keys": 1}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is asked of one of the arrays of a mask or a bias.

    Attributes:
        role: A method of `Positions`; "" if nothing.
        side: 0 or 1 if the array tells of queries or of keys alone; else None.
        dtype: What it holds, by name.
        shape: The array's.
    """

    role: str
    side: int | None
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is static about a mask, and about what changes the scores.

    Attributes:
        structure: The structure of both.
        asked: What is asked of each of their arrays.
    """

    structure: Any
    asked: tuple[Asked, ...]

    def of_side(self, side: int) -> list[int]:
        """Which arrays tell of queries alone (0), or of keys alone (1)."""
        return [i for i, known in enumerate(self.asked) if known.side == side]

    def allows(self, at: Any) -> Array:
        """Whether pairs at these `Traced` positions are allowed."""
        return self._named()[0].allows(at)

    def modify(self, at: Any, scores: Array) -> Array:
        """Scores at these `Traced` positions, with their bias."""
        return self._named()[1].modify(at, scores)

    def _named(self) -> tuple[Mask, ScoreModifier]:
        named = [Named(i, known.dtype, known.shape) for i, known in enumerate(self.asked)]
        return jax.tree.unflatten(self.structure, named)


@dataclasses.dataclass(frozen=True)
class Named:
    """Stands for an array of a mask or a bias."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Look:
    """One look of a rule at an array.

    Attributes:
        number: Of the array.
        role: The method of `Positions` that was called.
        more: Its other arguments.
    """

    number: int
    role: str
    more: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Traced:
    """`Positions` that note what is asked of them.

    Attributes:
        batch, head, query_length, key_length, query, key: See `Positions`.
        looks: What was asked, in order; it grows.
        values: What the looks found, in order; those after the last one find 0.
    """

    batch: Array
    head: Array
    query_length: Array
    key_length: Array
    query: Array
    key: Array
    looks: list[Look] = dataclasses.field(default_factory=list)
    values: Iterator[Array] = dataclasses.field(default_factory=lambda: iter(()))

    def of_batch(self, array: Named) -> Array:
        """See `Positions`."""
        return self._look(array, "of_batch", ())

    def of_head(self, array: Named) -> Array:
        """See `Positions`."""
        return self._look(array, "of_head", ())

    def of_queries(self, array: Named) -> Array:
        """See `Positions`."""
        return self._look(array, "of_queries", self.query.shape)

    def of_keys(self, array: Named) -> Array:
        """See `Positions`."""
        return self._look(array, "of_keys", self.query.shape)

    def of_pairs(self, array: Named) -> Array:
        """See `Positions`."""
        return self._look(array, "of_pairs", self.query.shape)

    def of_tile(self, array: Named, tile: tuple[int, int]) -> Array:
        """See `Positions`."""
        return self._look(array, "of_tile", (), tile)

    def of_table(self, array: Named, index: Array) -> Array:
        """See `Positions`."""
        return self._look(array, "of_table", index.shape, index)

    def _look(self, array: Named, role: str, shape: tuple[int, ...], *more: Any) -> Array:
        self.looks.append(Look(array.number, role, more))
        found = next(self.values, None)
        return jnp.zeros(shape, array.dtype) if found is None else found


def look_into(ask: Callable[..., Array], shape: tuple[int, int], *more: Any) -> tuple:
    """A rule for a tile of this shape as a jaxpr, and its looks in order.

    Args:
        ask: A method of a `Rule`.
        shape: Rows and columns.
        *more: Of its arguments those behind the positions.
    """
    scalars = [np.int32(0)] * 4
    tile = np.zeros(shape, np.int32)
    looks: list[Look] = []

    def asked(at: tuple[Array, ...], *more: Array) -> Array:
        return ask(Traced(*at, looks=looks), *more)  # pyright: ignore[reportCallIssue]

    return jax.make_jaxpr(asked)((*scalars, tile, tile), *more), looks


def rule_of(mask: Mask, bias: ScoreModifier | None = None) -> Rule:
    """What is static about a mask, and a bias."""
    leaves, structure = jax.tree.flatten((mask, bias))
    unknown = Rule(
        structure, tuple(Asked("", None, leaf.dtype.name, leaf.shape) for leaf in leaves)
    )
    tile = (64, 64)
    _, looks = look_into(unknown.allows, tile)
    if bias is not None:
        looks = looks + look_into(unknown.modify, tile, np.zeros(tile, np.float32))[1]
    roles = {look.number: look.role for look in looks}
    asked = (_asked(leaf, roles.get(number, "")) for number, leaf in enumerate(leaves))
    return Rule(structure, tuple(asked))


def _asked(leaf: Array, role: str) -> Asked:
    side = _SIDES.get(role)
    if role == "of_pairs" and 1 in leaf.shape[2:] and leaf.shape[2:] != (1, 1):
        side = int(leaf.shape[3] > 1)
    return Asked(role, side, leaf.dtype.name, leaf.shape)
