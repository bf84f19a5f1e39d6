"""The grid of a TPU kernel: the tile of each step, and the blocks of operands that it reads.

The lists lie in scalar memory, where the kernel and the index maps of its blocks read them.
Softmax and masks are in other modules.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from shapeexec._errors import BackendError
from shapeexec.attention.backends._base import Ref, Signature, TileLists, Work

SCALAR_BYTES = 900_000
"""The part of scalar memory to use; it has 1 MiB:
https://docs.jax.dev/en/latest/pallas/tpu/details.html."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """The static part of a kernel.

    Attributes:
        signature: The call.
        kinds: Whether full tiles may occur, and whether partial ones; else they get no code.
        interpret: Whether Pallas' interpreter runs it.
    """

    signature: Signature
    kinds: tuple[bool, bool]
    interpret: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """The numbers of query tiles and of key tiles."""
        sizes = (self.signature.query_size, self.signature.key_size)
        rows, columns = (-(-n // m) for n, m in zip(sizes, self.signature.tile, strict=True))
        return rows, columns


@dataclasses.dataclass(frozen=True)
class Where:
    """The work of one step of a kernel.

    Attributes:
        batch, head, key_head: The example, the query head and the key head.
        tile: The query tile and the key tile.
        partial_tile: The same; but before the first partial tile of the list, that one.
        is_full, is_partial: The kind of the tile; if neither, the step does nothing.
        is_first, is_last: Whether it is the first or the last step of a sum.
        lengths: Valid lengths of queries and keys.
        tile_sizes: Queries and keys of a tile.
    """

    batch: Array
    head: Array
    key_head: Array
    tile: tuple[Array, Array]
    partial_tile: tuple[Array, Array]
    is_full: Array
    is_partial: Array
    is_first: Array
    is_last: Array
    lengths: tuple[Array, Array]
    tile_sizes: tuple[int, int]

    def each_kind(self, kinds: tuple[bool, bool], step: Callable[..., None]) -> None:
        """Run `step(is_partial=...)` if the tile has work; only for `kinds` that may occur."""
        for is_partial, is_it in enumerate((self.is_full, self.is_partial)):
            if kinds[is_partial]:
                pl.when(is_it)(functools.partial(step, is_partial=bool(is_partial)))

    def positions(self, side: int, shape: tuple[int, ...]) -> Array:
        """Positions of queries (side 0) or keys (side 1), along that axis of `shape`."""
        iota = lax.broadcasted_iota(np.int32, shape, side)
        return self.tile[side] * np.int32(self.tile_sizes[side]) + iota

    def clean(self, side: int, x: Array, *, is_partial: bool) -> Array:
        """Rows of queries or keys, 0 behind the valid length, where padding may be NaN."""
        if not is_partial:
            return x
        first = self.tile[side] * np.int32(self.tile_sizes[side])
        rows = first + lax.broadcasted_iota(np.int32, (x.shape[0], 1), 0)
        return jnp.where(rows < self.lengths[side], x, jnp.zeros_like(x))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scalars:
    """The operands in scalar memory: arrays, or references to them.

    Attributes:
        tiles, full, counts: The fields of the lists, flat.
        query_lengths, key_lengths: i32[B].
        more: Numbers that mask and bias read, flat.
    """

    tiles: Array
    full: Array
    counts: Array
    query_lengths: Array
    key_lengths: Array
    more: list[Array]


def scalars_of(lists: TileLists, work: Work, *, more: list[Array]) -> Scalars:
    """The scalars of a call.

    Raises:
        BackendError: The scalars do not fit into scalar memory.
    """
    tiles, full, counts = (jnp.reshape(x, -1) for x in (lists.tiles, lists.full, lists.counts))
    lengths = jnp.asarray(work.query_lengths), jnp.asarray(work.key_lengths)
    scalars = Scalars(tiles, full, counts, *lengths, more)
    needed = words(scalars) * 4
    if needed > SCALAR_BYTES:
        raise BackendError(
            f'"mosaic_tpu" needs {needed} bytes for its lists of tiles.',
            got=f"lists of shape {list(lists.tiles.shape)}",
            why=f"scalar memory holds {SCALAR_BYTES}",
            fix="share the mask between heads or examples, or pass a larger tile to BlockMask",
        )
    return scalars


def words(tree: Any) -> int:
    """The size of a tree of arrays, or of shapes, in words of 4 bytes."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


# The order of tiles

Order = Callable[..., Where]
"""A function of the scalars and the program ids that returns the work of a step."""


def by_query(setting: Setting, lists: TileLists) -> tuple[tuple[int, ...], Order]:
    """The grid and the order of a kernel that walks along the list of each query tile."""
    signature, shape = setting.signature, lists.tiles.shape

    def order(scalars: Scalars, batch: Array, head: Array, row: Array, step: Array) -> Where:
        entry = _entry(scalars, shape, batch, head, row, step)
        return Where(
            batch=batch,
            head=head,
            key_head=_part(head, signature.group)[0],
            tile=(row, entry.tile),
            partial_tile=(row, entry.partial_tile),
            is_full=entry.is_full,
            is_partial=entry.is_partial,
            is_first=step == 0,
            is_last=step == shape[3] - 1,
            lengths=(scalars.query_lengths[batch], scalars.key_lengths[batch]),
            tile_sizes=signature.tile,
        )

    return (signature.batch, signature.query_heads, *shape[2:]), order


def by_key(setting: Setting, lists: TileLists) -> tuple[tuple[int, ...], Order]:
    """The grid and the order of a kernel that walks along the list of each key tile.

    It walks along the lists of all heads of a group, one after another.
    """
    signature, shape = setting.signature, lists.tiles.shape
    steps = signature.group * shape[3]

    def order(scalars: Scalars, batch: Array, key_head: Array, column: Array, step: Array) -> Where:
        member, turn = _part(step, shape[3])
        head = key_head * np.int32(signature.group) + member
        entry = _entry(scalars, shape, batch, head, column, turn)
        return Where(
            batch=batch,
            head=head,
            key_head=key_head,
            tile=(entry.tile, column),
            partial_tile=(entry.partial_tile, column),
            is_full=entry.is_full,
            is_partial=entry.is_partial,
            is_first=step == 0,
            is_last=step == steps - 1,
            lengths=(scalars.query_lengths[batch], scalars.key_lengths[batch]),
            tile_sizes=signature.tile,
        )

    return (signature.batch, signature.key_heads, shape[2], steps), order


@dataclasses.dataclass(frozen=True)
class _Entry:
    tile: Array
    partial_tile: Array
    is_full: Array
    is_partial: Array


def _entry(
    scalars: Scalars, shape: tuple[int, ...], batch: Array, head: Array, row: Array, step: Any
) -> _Entry:
    place = 0
    for i, size in zip((batch, head, row), shape[:3], strict=True):
        place = place * np.int32(size) + (np.int32(0) if size == 1 else i)
    full, count = scalars.full[place], scalars.counts[place]
    # After the end of the list the last tile is repeated: its blocks are not fetched again.
    last = jnp.maximum(count - 1, 0)
    start = place * np.int32(shape[3])
    return _Entry(
        tile=scalars.tiles[start + jnp.minimum(step, last)],
        partial_tile=scalars.tiles[start + jnp.minimum(jnp.maximum(step, full), last)],
        is_full=step < full,
        is_partial=(step >= full) & (step < count),
    )


def _part(number: Array, count: int) -> tuple[Array, Array | np.int32]:
    if count == 1:
        return number, np.int32(0)
    return lax.div(number, np.int32(count)), lax.rem(number, np.int32(count))


# Blocks


@dataclasses.dataclass(frozen=True)
class Block:
    """An operand or a result, and the part of it that a step sees.

    Attributes:
        array: An operand, or the `jax.ShapeDtypeStruct` of a result.
        shape: The shape of the part.
        index: Returns for a step the index of the part, in units of `shape`.
    """

    array: Array | jax.ShapeDtypeStruct
    shape: tuple[int, ...]
    index: Callable[[Where], tuple[Array | int, ...]]


def of_queries(array: Array | jax.ShapeDtypeStruct, tile: int) -> Block:
    """The block of an array [B, N, T, size] with the rows of a query tile."""
    return Block(
        array,
        (1, 1, tile, array.shape[3]),
        lambda where: (where.batch, where.head, where.tile[0], 0),
    )


def of_keys(array: Array | jax.ShapeDtypeStruct, tile: int) -> Block:
    """The block of an array [B, K, S, size] with the rows of a key tile."""
    return Block(
        array,
        (1, 1, tile, array.shape[3]),
        lambda where: (where.batch, where.key_head, where.tile[1], 0),
    )


def launch(
    kernel: Callable[[Where, Scalars, Any, Any, Any], None],
    name: str,
    *,
    grid: tuple[int, ...],
    order: Order,
    scalars: Scalars,
    inputs: Any,
    outputs: Any,
    scratch: list[tuple[int, ...]],
    interpret: bool,
) -> Any:
    """Run `kernel(where, scalars, inputs, outputs, scratch)` in each step.

    Args:
        kernel: Called with references in the trees of `inputs` and `outputs`, and to `scratch`.
        name: The name of the kernel.
        grid: The number of steps along each axis; results are summed along the last axis.
        order: Returns the work of each step.
        scalars: Arrays for scalar memory.
        inputs: A tree of `Block`s of arrays.
        outputs: A tree of `Block`s of shapes.
        scratch: Shapes of f32 arrays that stay between steps.
        interpret: Whether Pallas' interpreter runs it.
    """
    flat, structure = jax.tree.flatten(scalars)
    axes = len(grid)
    given, made = jax.tree.structure(inputs), jax.tree.structure(outputs)

    def spec(block: Block) -> pl.BlockSpec:
        def index(*args: Array) -> tuple[Array | int, ...]:
            return block.index(order(structure.unflatten(args[axes:]), *args[:axes]))

        return pl.BlockSpec(block.shape, index)

    def body(*refs: Ref) -> None:
        rest = iter(refs)
        own, read, written = (
            tree.unflatten(itertools.islice(rest, tree.num_leaves))
            for tree in (structure, given, made)
        )
        where = order(own, *map(pl.program_id, range(axes)))
        kernel(where, own, read, written, tuple(rest))

    results = pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(flat),
            grid=grid,
            in_specs=[spec(block) for block in jax.tree.leaves(inputs)],
            out_specs=[spec(block) for block in jax.tree.leaves(outputs)],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[block.array for block in jax.tree.leaves(outputs)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * (axes - 1) + ("arbitrary",)
        ),
        interpret=interpret,
        name=f"attention_{name}",
    )(*flat, *(block.array for block in jax.tree.leaves(inputs)))
    return made.unflatten(results)
