"""Finds the arrays that the element rules of a mask and a bias read, and by which methods.

The methods are those of `Positions`. The rules are traced to find their reads; inside a kernel
`_elements` runs the rules on loaded values.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from shapeexec.attention.masks import Full, Mask, ScoreModifier

_SIDES = {"of_queries": 0, "of_keys": 1}


@dataclasses.dataclass(frozen=True)
class ArrayUse:
    """The use of one array of a mask or a bias by its rule.

    Attributes:
        role: The method of `Positions` that reads it; "" if none does.
        side: 0 or 1 if the array has one element per query, or per key; else None.
        dtype: The array's dtype, by name.
        shape: The array's shape; sizes that are not known are None.
    """

    role: str
    side: int | None
    dtype: str
    shape: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Rule:
    """The static part of a mask and a score modifier.

    Attributes:
        structure: The tree structure of both.
        uses: How each of their arrays is read.
    """

    structure: Any
    uses: tuple[ArrayUse, ...]

    def of_side(self, side: int) -> list[int]:
        """The numbers of the arrays with one element per query (0), or per key (1)."""
        return [i for i, known in enumerate(self.uses) if known.side == side]

    @property
    def allows_all(self) -> bool:
        """Whether the mask allows every pair."""
        return isinstance(self._with_placeholders()[0], Full)

    def allows(self, at: Any) -> Array:
        """Whether pairs at these `RecordingPositions` are allowed."""
        return self._with_placeholders()[0].allows(at)

    def modify(self, at: Any, scores: Array) -> Array:
        """Scores at these `RecordingPositions`, with their bias."""
        return self._with_placeholders()[1].modify(at, scores)

    def _with_placeholders(self) -> tuple[Mask, ScoreModifier]:
        named = [Placeholder(i, known.dtype, known.shape) for i, known in enumerate(self.uses)]
        return jax.tree.unflatten(self.structure, named)


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """A placeholder for an array of a mask or a bias."""

    number: int
    dtype: str
    shape: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Read:
    """One read of an array by a rule.

    Attributes:
        number: The number of the array.
        role: The method of `Positions` that was called.
        shape: The shape of what it returns.
        more: Its other arguments.
    """

    number: int
    role: str
    shape: tuple[int, ...]
    more: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class RecordingPositions:
    """`Positions` that record the reads of a rule.

    Attributes:
        batch, head, query_length, key_length, query, key: See `Positions`.
        reads: The reads so far, in order; a rule appends to it.
        values: The results of the reads, in order; later reads return 0.
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
        self.reads.append(Read(array.number, role, shape, more))
        found = next(self.values, None)
        return jnp.zeros(shape, array.dtype) if found is None else found


def trace_rule(ask: Callable[..., Array], shape: tuple[int, ...], *more: Any) -> tuple[Any, ...]:
    """A rule for a tile of this shape as a jaxpr, and its reads in order.

    Args:
        ask: A method of a `Rule`.
        shape: Rows and columns.
        *more: The arguments of `ask` after the positions.
    """
    reads: list[Read] = []

    def asked(at: tuple[Array, ...], *more: Array) -> Array:
        return ask(RecordingPositions(*at, reads=reads), *more)

    return jax.make_jaxpr(asked)(_positions(shape), *more), reads


def _positions(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Any positions of a tile, as `RecordingPositions` takes them."""
    return (*[np.int32(0)] * 4, *[np.zeros(shape, np.int32)] * 2)


def text_of(rule: Rule, shape: tuple[int, ...], *, is_biased: bool) -> str:
    """What a rule reads and computes for a tile of this shape: rules that do the same are alike."""
    asks = [_text_of(rule, rule.allows, shape)]
    if is_biased:
        asks.append(_text_of(rule, rule.modify, shape, np.zeros(shape, np.float32)))
    return "\n".join(asks)


def _text_of(rule: Rule, ask: Callable[..., Array], shape: tuple[int, ...], *more: Any) -> str:
    _, reads = trace_rule(ask, shape, *more)
    # As inputs: in the text of `trace_rule` all reads are 0, so one may stand for another.
    values = [jax.ShapeDtypeStruct(x.shape, rule.uses[x.number].dtype) for x in reads]

    def asked(at: tuple[Any, ...], values: list[Array], *more: Array) -> Array:
        return ask(RecordingPositions(*at, values=iter(values)), *more)

    traced = jax.make_jaxpr(asked)(_positions(shape), values, *more)
    return f"{[(read.number, read.role) for read in reads]} {traced}"


def rule_of(mask: Mask, bias: ScoreModifier | None = None) -> Rule:
    """The static part of a mask and a bias."""
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
