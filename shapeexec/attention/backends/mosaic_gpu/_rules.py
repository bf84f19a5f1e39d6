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
class ArrayUse:
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
    uses: tuple[ArrayUse, ...]

    def of_side(self, side: int) -> list[int]:
        """Which arrays tell of queries alone (0), or of keys alone (1)."""
        return [i for i, known in enumerate(self.uses) if known.side == side]

    def allows(self, at: Any) -> Array:
        """Whether pairs at these `RecordingPositions` positions are allowed."""
        return self._with_placeholders()[0].allows(at)

    def modify(self, at: Any, scores: Array) -> Array:
        """Scores at these `RecordingPositions` positions, with their bias."""
        return self._with_placeholders()[1].modify(at, scores)

    def _with_placeholders(self) -> tuple[Mask, ScoreModifier]:
        named = [Placeholder(i, known.dtype, known.shape) for i, known in enumerate(self.uses)]
        return jax.tree.unflatten(self.structure, named)


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """Stands for an array of a mask or a bias."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Read:
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
class RecordingPositions:
    """`Positions` that note what is asked of them.

    Attributes:
        batch, head, query_length, key_length, query, key: See `Positions`.
        reads: What was asked, in order; it grows.
        values: What the reads found, in order; those after the last one find 0.
    """

    batch: Array
    head: Array
    query_length: Array
    key_length: Array
    query: Array
    key: Array
    reads: list[Read] = dataclasses.field(default_factory=list)
    values: Iterator[Array] = dataclasses.field(default_factory=lambda: iter(()))

    def of_batch(self, array: Placeholder) -> Array:
        """See `Positions`."""
        return self._read(array, "of_batch", ())

    def of_head(self, array: Placeholder) -> Array:
        """See `Positions`."""
        return self._read(array, "of_head", ())

    def of_queries(self, array: Placeholder) -> Array:
        """See `Positions`."""
        return self._read(array, "of_queries", self.query.shape)

    def of_keys(self, array: Placeholder) -> Array:
        """See `Positions`."""
        return self._read(array, "of_keys", self.query.shape)

    def of_pairs(self, array: Placeholder) -> Array:
        """See `Positions`."""
        return self._read(array, "of_pairs", self.query.shape)

    def of_tile(self, array: Placeholder, tile: tuple[int, int]) -> Array:
        """See `Positions`."""
        return self._read(array, "of_tile", (), tile)

    def of_table(self, array: Placeholder, index: Array) -> Array:
        """See `Positions`."""
        return self._read(array, "of_table", index.shape, index)

    def _read(self, array: Placeholder, role: str, shape: tuple[int, ...], *more: Any) -> Array:
        self.reads.append(Read(array.number, role, more))
        found = next(self.values, None)
        return jnp.zeros(shape, array.dtype) if found is None else found


def trace_rule(ask: Callable[..., Array], shape: tuple[int, int], *more: Any) -> tuple:
    """A rule for a tile of this shape as a jaxpr, and its reads in order.

    Args:
        ask: A method of a `Rule`.
        shape: Rows and columns.
        *more: Of its arguments those behind the positions.
    """
    scalars = [np.int32(0)] * 4
    tile = np.zeros(shape, np.int32)
    reads: list[Read] = []

    def asked(at: tuple[Array, ...], *more: Array) -> Array:
        return ask(RecordingPositions(*at, reads=reads), *more)  # pyright: ignore[reportCallIssue]

    return jax.make_jaxpr(asked)((*scalars, tile, tile), *more), reads


def rule_of(mask: Mask, bias: ScoreModifier | None = None) -> Rule:
    """What is static about a mask, and a bias."""
    leaves, structure = jax.tree.flatten((mask, bias))
    unknown = Rule(
        structure, tuple(ArrayUse("", None, leaf.dtype.name, leaf.shape) for leaf in leaves)
    )
    tile = (64, 64)
    _, reads = trace_rule(unknown.allows, tile)
    if bias is not None:
        reads = reads + trace_rule(unknown.modify, tile, np.zeros(tile, np.float32))[1]
    roles = {read.number: read.role for read in reads}
    asked = (_asked(leaf, roles.get(number, "")) for number, leaf in enumerate(leaves))
    return Rule(structure, tuple(asked))


def _asked(leaf: Array, role: str) -> ArrayUse:
    side = _SIDES.get(role)
    if role == "of_pairs" and 1 in leaf.shape[2:] and leaf.shape[2:] != (1, 1):
        side = int(leaf.shape[3] > 1)
    return ArrayUse(role, side, leaf.dtype.name, leaf.shape)
