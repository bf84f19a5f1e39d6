"""What a mask's rule looks at: which of its arrays, and as what; found by tracing it.

Inside a kernel the rule is then run on what has been loaded. It knows no kernel.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shapeexec.attention.masks import Mask

Array = Any

_SIDES = {"of_queries": 0, "of_keys": 1}


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a mask asks of one of its arrays.

    Attributes:
        role: A method of `Positions`; "" if nothing.
        side: 0 or 1 if the array tells of queries or of keys alone; else None.
        dtype: What it holds, by name.
    """

    role: str
    side: int | None
    dtype: str


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is static about a mask.

    Attributes:
        structure: The mask's structure.
        asked: What it asks of each of its arrays.
    """

    structure: Any
    asked: tuple[Asked, ...]

    def of_side(self, side: int) -> list[int]:
        """Which arrays tell of queries alone (0), or of keys alone (1)."""
        return [i for i, known in enumerate(self.asked) if known.side == side]

    def mask(self) -> Mask:
        """The mask, with a `Named` where each array was."""
        named = [Named(i, known.dtype) for i, known in enumerate(self.asked)]
        return jax.tree.unflatten(self.structure, named)


@dataclasses.dataclass(frozen=True)
class Named:
    """Stands for an array of a mask."""

    number: int
    dtype: str


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
        batch, head, query_size, key_size, query, key: See `Positions`.
        looks: What was asked, in order; it grows.
        values: What the looks found, in order. None: it is not known, and they find 0.
    """

    batch: Array
    head: Array
    query_size: Array
    key_size: Array
    query: Array
    key: Array
    looks: list[Look] = dataclasses.field(default_factory=list)
    values: Iterator[Array] | None = None

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
        return self._look(array, "of_table", index.shape)

    def _look(self, array: Named, role: str, shape: tuple[int, ...], *more: Any) -> Array:
        self.looks.append(Look(array.number, role, more))
        return jnp.zeros(shape, array.dtype) if self.values is None else next(self.values)


def look_into(rule: Rule, shape: tuple[int, int]) -> tuple[Any, list[Look]]:
    """A rule for a tile of this shape as a jaxpr, and its looks in order."""
    scalars = [np.int32(0)] * 4
    tile = np.zeros(shape, np.int32)
    looks: list[Look] = []
    mask = rule.mask()

    def allows(*at: Array) -> Array:
        return mask.allows(Traced(*at, looks=looks))  # pyright: ignore[reportCallIssue]

    return jax.make_jaxpr(allows)(*scalars, tile, tile), looks


def rule_of(mask: Mask) -> Rule:
    """What is static about a mask."""
    leaves, structure = jax.tree.flatten(mask)
    unknown = tuple(Asked("", None, leaf.dtype.name) for leaf in leaves)
    _, looks = look_into(Rule(structure, unknown), (64, 64))
    roles = {look.number: look.role for look in looks}
    asked = (_asked(leaf, roles.get(number, "")) for number, leaf in enumerate(leaves))
    return Rule(structure, tuple(asked))


def _asked(leaf: Array, role: str) -> Asked:
    side = _SIDES.get(role)
    if role == "of_pairs" and 1 in leaf.shape[2:] and leaf.shape[2:] != (1, 1):
        side = int(leaf.shape[3] > 1)
    return Asked(role, side, leaf.dtype.name)
