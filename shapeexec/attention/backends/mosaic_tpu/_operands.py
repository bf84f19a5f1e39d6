"""Turns the arrays of a mask or bias into operands of a TPU kernel, by how the mask reads them.

A TPU kernel has no pointers: operands are cut into blocks in advance, and single numbers lie in
scalar memory. So the mask is traced once, to find how it reads each of its arrays.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec._errors import BackendError
from shapeexec.attention.backends._base import Ref, Signature
from shapeexec.attention.backends.mosaic_tpu._steps import Block, Where
from shapeexec.attention.masks._base import Tile

_MOST_PARTS = 16
"""The most tiles of a block mask within one tile here: each costs a comparison of the whole."""


NO_TABLES = "its kernels cannot look up a table by an index that they make themselves"


def unfit(why: str) -> BackendError:
    """The error for a mask or bias that these kernels cannot evaluate."""
    return BackendError(
        "mosaic_tpu cannot run this mask or bias.",
        reasons={"mosaic_tpu": why},
        why=why,
        fix='name implementation="xla"',
    )


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of a mask or bias, by number.

    Attributes:
        number: The number of the array.
        shape: The array's shape.
        dtype: The array's dtype.
    """

    number: int
    shape: tuple[int, ...]
    dtype: Any


Question = tuple[int, str]
"""The number of a leaf, and the method of `Positions` that reads it."""


def named(tree: Any) -> Any:
    """A mask or bias with `Leaf`s for arrays."""
    arrays, structure = jax.tree.flatten(tree)
    leaves = [Leaf(i, array.shape, np.dtype(array.dtype)) for i, array in enumerate(arrays)]
    return jax.tree.unflatten(structure, leaves)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The reads of a mask or a bias in a tile.

    Attributes:
        questions: Each read once, in order.
        tiles: The tile sizes of the reads `of_tile`.
    """

    questions: tuple[Question, ...]
    tiles: frozenset[Tile]


def asked_by_mask(mask: Any, signature: Signature) -> Asked:
    """The reads of a mask of `Leaf`s; raises `BackendError`."""
    listener = _Listener(signature.tile)
    jax.eval_shape(lambda: mask.allows(listener))
    return listener.heard()


def asked_by_bias(bias: Any, signature: Signature) -> Asked:
    """The reads of a bias: a `Leaf`, a modifier of `Leaf`s, or None; raises `BackendError`."""
    listener = _Listener(signature.tile)
    if isinstance(bias, Leaf):
        listener.of_pairs(bias)
    elif bias is not None:
        scores = jax.ShapeDtypeStruct(signature.tile, np.float32)
        jax.eval_shape(lambda scores: bias.modify(listener, scores), scores)
    return listener.heard()


class _Listener:
    """`Positions` that record the reads of a mask or a bias while it is traced."""

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.batch = self.head = self.query_length = self.key_length = np.int32(0)
        self.query, self.key = np.zeros((tile[0], 1), np.int32), np.zeros((1, tile[1]), np.int32)
        self._questions: dict[Question, None] = {}
        self._tiles: set[Tile] = set()

    def heard(self) -> Asked:
        return Asked(tuple(self._questions), frozenset(self._tiles))

    def of_batch(self, array: Leaf) -> Array:
        return self._note(array, "of_batch", ())

    def of_head(self, array: Leaf) -> Array:
        return self._note(array, "of_head", ())

    def of_queries(self, array: Leaf) -> Array:
        return self._note(array, "of_queries", self.query.shape)

    def of_keys(self, array: Leaf) -> Array:
        return self._note(array, "of_keys", self.key.shape)

    def of_pairs(self, array: Leaf) -> Array:
        shape = [n if size > 1 else 1 for n, size in zip(self.tile, array.shape[2:], strict=True)]
        return self._note(array, "of_pairs", tuple(shape))

    def of_tile(self, array: Leaf, tile: Tile) -> Array:
        self._tiles.add(tile)
        return self._note(array, "of_tile", self.tile)

    def of_table(self, array: Leaf, index: Array) -> Array:
        raise unfit(NO_TABLES)

    def _note(self, array: Leaf, how: str, shape: tuple[int, ...]) -> Array:
        self._questions[array.number, how] = None
        return jnp.zeros(shape, array.dtype)


# Operands


def is_number(how: str) -> bool:
    """Whether this method of `Positions` reads single numbers, which lie in scalar memory."""
    return how in ("of_batch", "of_head", "of_tile")


def numbers_for(asked: Asked, arrays: list[Array]) -> list[Array]:
    """The arrays that go to scalar memory, each flat."""
    return [
        _storable(arrays[i], scalar=True).reshape(-1)
        for i, how in asked.questions
        if is_number(how)
    ]


def blocks_for(asked: Asked, arrays: list[Array], *, tile: Tile, held: bool) -> list[Block]:
    """The arrays that are cut into blocks.

    Args:
        asked: The questions.
        arrays: The leaves.
        tile: Queries and keys of a tile.
        held: Whether they are read in partial tiles only, so that full tiles need no new block.
    """
    return [
        _block(_storable(arrays[i], scalar=False), how, tile=tile, held=held)
        for i, how in asked.questions
        if not is_number(how)
    ]


def _block(array: Array, how: str, *, tile: Tile, held: bool) -> Block:
    if how == "of_queries":
        array = array[:, None, :, None]
    elif how == "of_keys":
        array = array[:, None, None, :]
    shape = array.shape
    sizes = [n if size > 1 else 1 for n, size in zip(tile, shape[2:], strict=True)]

    def index(where: Where) -> tuple[Array | int, ...]:
        query_tile, key_tile = where.partial_tile if held else where.tile
        every = (where.batch, where.head, query_tile, key_tile)
        return tuple(0 if n == 1 else i for i, n in zip(every, shape, strict=True))

    return Block(array, (1, 1, *sizes), index)


def _storable(array: Array, *, scalar: bool) -> Array:
    array = jnp.asarray(array)
    if jnp.issubdtype(array.dtype, np.floating):
        return array.astype(np.float32) if scalar else array
    is_small = array.dtype == np.bool_ and not scalar
    return array.astype(np.int8 if is_small else np.int32)


# In the kernel


@dataclasses.dataclass(frozen=True)
class At:
    """The `Positions` of a tile in a kernel; arrays are `Leaf`s.

    Attributes:
        where: The tile.
        tile: The size of the tile.
        answers: For each question a reference, to a block or to flat numbers.
    """

    where: Where
    tile: Tile
    answers: dict[Question, Ref]

    @property
    def batch(self) -> Array:
        """See `Positions`."""
        return self.where.batch

    @property
    def head(self) -> Array:
        """See `Positions`."""
        return self.where.head

    @property
    def query_length(self) -> Array:
        """See `Positions`."""
        return self.where.lengths[0]

    @property
    def key_length(self) -> Array:
        """See `Positions`."""
        return self.where.lengths[1]

    @property
    def query(self) -> Array:
        """See `Positions`; i32[tile, 1]."""
        return self.where.positions(0, (self.tile[0], 1))

    @property
    def key(self) -> Array:
        """See `Positions`; i32[1, tile]."""
        return self.where.positions(1, (1, self.tile[1]))

    def of_batch(self, array: Leaf) -> Array:
        """See `Positions`."""
        return self._number(array, "of_batch", self.batch)

    def of_head(self, array: Leaf) -> Array:
        """See `Positions`."""
        return self._number(array, "of_head", self.batch, self.head)

    def of_queries(self, array: Leaf) -> Array:
        """See `Positions`."""
        return self._block(array, "of_queries")

    def of_keys(self, array: Leaf) -> Array:
        """See `Positions`."""
        return self._block(array, "of_keys")

    def of_pairs(self, array: Leaf) -> Array:
        """See `Positions`."""
        return self._block(array, "of_pairs")

    def of_tile(self, array: Leaf, tile: Tile) -> Array:
        """See `Positions`. If several of the array's tiles lie in this tile, they are joined."""
        first = [number * n for number, n in zip(self.where.tile, self.tile, strict=True)]
        row, column = (lax.div(start, np.int32(n)) for start, n in zip(first, tile, strict=True))
        rows, columns = (max(1, mine // n) for mine, n in zip(self.tile, tile, strict=True))
        kind = self._kind(array, row, column)
        for part in range(1, rows * columns):
            i, j = row + part // columns, column + part % columns
            # Parts come in ascending order, so the last one that starts before a pair holds it.
            is_there = (self.query >= i * tile[0]) & (self.key >= j * tile[1])
            kind = jnp.where(is_there, self._kind(array, i, j), kind)
        return kind

    def _kind(self, array: Leaf, row: Array, column: Array) -> Array:
        # This tile may overhang the last tile of the block mask, where there is nothing to read.
        ends = zip((row, column), array.shape[2:], strict=True)
        inside = (jnp.minimum(i, n - 1) for i, n in ends)
        return self._number(array, "of_tile", self.batch, self.head, *inside)

    def _number(self, array: Leaf, how: str, *index: Array) -> Array:
        place = 0
        for i, size in zip(index, array.shape, strict=True):
            place = place * size + (0 if size == 1 else i)
        number = self.answers[array.number, how][place]
        return number != 0 if array.dtype == np.bool_ else number

    def _block(self, array: Leaf, how: str) -> Array:
        block = self.answers[array.number, how][0, 0]
        return block != 0 if array.dtype == np.bool_ else block


def check_tiles(asked: Asked, tile: Tile) -> None:
    """Check that the block mask's tiles and `tile` divide each other; raises `BackendError`."""
    for theirs in asked.tiles:
        pairs = list(zip(theirs, tile, strict=True))
        if any(a % b and b % a for a, b in pairs):
            raise unfit(f"a block mask's tiles of {theirs} do not fit into tiles of {tile}")
        if math.prod(max(1, b // a) for a, b in pairs) > _MOST_PARTS:
            raise unfit(f"a block mask's tiles of {theirs} are too small for a TPU: pass {tile}")
