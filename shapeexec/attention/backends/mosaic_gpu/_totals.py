"""Where the gradient of the queries is summed, when the backward kernel for keys computes it.

If a head is one tile, each row of dq is one product. Two tiles of narrow heads are summed by one
program in shared memory. Both give the same bits in each run. Else the TMA unit adds to device
memory, as programs come. `_into_queries` makes the products.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from shapeexec.attention.backends._base import Ref, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _gradients, _threads
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._branches import when
from shapeexec.attention.backends.mosaic_gpu._config import Config
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._launch import Block
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._scratch import SUMS, WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE, WARPGROUPS, Item, tiles_of


class Summand(NamedTuple):
    """The product of the gradients of some scores with the keys, to be added to dq.

    Attributes:
        item: The item, with the query head.
        position: The position of the queries in their stream, i32[].
        first: The first of the queries, i32[].
        exists: Whether there is such a product, bool[]; if not, it must not be added.
    """

    item: Item
    position: Array
    first: Array
    exists: Array


def in_turns(config: Config) -> bool:
    """Whether the columns of the keys fill just one swizzled row, which cannot be cut."""
    return config.columns[0] == 64


def is_single(config: Config) -> bool:
    """Whether a head is one tile, so that each row of dq is one product."""
    return _longest(config) <= TILE


def is_held(config: Config) -> bool:
    """Whether one program sums dq of a head in shared memory, in the order of the keys."""
    narrow = config.signature.group == 1 and max(config.columns) == 64
    return narrow and TILE < _longest(config) <= 2 * TILE


def crosses_programs(config: Config) -> bool:
    """Whether several programs add to dq, in any order."""
    return not (is_single(config) or is_held(config))


def _longest(config: Config) -> int:
    return max(config.signature.query_size, config.signature.key_size)


def room(config: Config) -> tuple[int, int]:
    """As `_gradients.room`, for the kernel that computes all gradients."""
    _, steps = _gradients.room(config)
    return (2 if max(config.columns) == 64 else 1), (2 if is_held(config) else steps)


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum in device memory, as one warpgroup adds to it.

    Attributes:
        ref: f32[B, whole pieces, N, columns]; the elements of each piece have the order in which
            threads hold them: see `_in_given_order`.
        part: In shared memory, from where the TMA unit adds: f32[rows of `ref`, columns], as many
            elements as a part of the sum has.
        columns: The columns that this warpgroup adds to: a slice.
        warpgroup: The number of this warpgroup.
        products: The products of this warpgroup.
    """

    ref: Ref
    part: Ref
    columns: Any
    warpgroup: Array
    products: Products | InterpretedProducts

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and columns of a part."""
        return PIECE, self.columns.size

    def open(self, item: Item) -> None:
        """Prepare the sum of an item, before both warpgroups meet."""

    def add(self, part: Array, summand: Summand) -> None:
        """Start the addition of a part, f32[queries, columns of a part], if it exists."""
        item, rows = summand.item, self.part.shape[0]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        _store_as_held(self.part, part)
        plgpu.commit_smem()
        first = summand.first + (0 if rows == PIECE else self.warpgroup * rows)
        place = self.ref.at[item.batch, pl.ds(first, rows), item.head]
        plgpu.copy_smem_to_gmem(self.part, place, summand.exists, reduction_op="add")

    def close(self, item: Item, turn: Callable[[int], Array]) -> None:
        """Finish the sum of an item; a warpgroup writes piece i if turn(i), bool[], holds."""


@dataclasses.dataclass(frozen=True)
class Single(Total):
    """dq where each row is one product; `ref` and `part` have the dtype of the operands.

    Attributes:
        scale: The factor of dq.
    """

    scale: float

    def add(self, part: Array, summand: Summand) -> None:
        """Start the store of a part, f32[queries, columns of a part], if it exists."""
        self._store(part * self.scale, summand.item, summand.first, summand.exists)

    def close(self, item: Item, turn: Callable[[int], Array]) -> None:
        """Store 0 in the pieces without keys."""
        for piece in range(TILE // PIECE):

            @when((item.pieces(PIECE) <= piece) & turn(piece))
            def _(piece: int = piece) -> None:
                first = item.row * TILE + piece * PIECE  # traced: JAX refuses a constant start
                self._store(self._zeros(), item, first)

    def _zeros(self) -> Array:
        zeros = jnp.zeros(self.shape, jnp.float32)
        return plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)

    def _store(self, value: Array, item: Item, first: Array, exists: Array | None = None) -> None:
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.products.store(self.part, value.astype(self.part.dtype))
        plgpu.commit_smem()
        # Where the start is known, JAX refuses columns behind the array's end.
        columns = pl.ds(self.columns.start + item.batch * 0, self.columns.size)
        rows = self.ref.at[item.batch, pl.ds(first, PIECE), item.head, columns]
        self._copy(rows, exists)

    def _copy(self, rows: Ref, exists: Array | None) -> None:
        # Products are under way, so this is no branch.
        plgpu.copy_smem_to_gmem(self.part, rows, exists)


class InterpretedSingle(Single):
    """`Single` in the interpreter, which knows no copies under a condition."""

    def _copy(self, rows: Ref, exists: Array | None) -> None:
        copy = functools.partial(plgpu.copy_smem_to_gmem, self.part, rows)
        copy() if exists is None else when(exists)(copy)


class InterpretedTotal(Total):
    """`Total` in the interpreter, which cannot add to device memory.

    `ref` has a leading axis for the tiles of keys, so that each tile has its own sum.
    """

    def open(self, item: Item) -> None:
        """Clear half of the queries' rows; the other warpgroup clears the others."""
        _, _, queries, _, columns = self.ref.shape
        rows = pl.ds(self.warpgroup * (queries // WARPGROUPS), queries // WARPGROUPS)
        place = self.ref.at[item.row, item.batch, rows, item.head]
        place[...] = jnp.zeros((queries // WARPGROUPS, columns), jnp.float32)

    def add(self, part: Array, summand: Summand) -> None:
        """See `Total`."""
        item, place = summand.item, pl.ds(summand.first, PIECE)
        rows = self.ref.at[item.row, item.batch, place, item.head, self.columns]

        @when(summand.exists)
        def _() -> None:
            rows[...] = rows[...] + part


@dataclasses.dataclass(frozen=True)
class Held(Single):
    """dq of a whole head, summed in shared memory by one program, tile after tile of keys.

    Attributes:
        sums: f32[pieces, queries of one, columns] in shared memory.
        met: A barrier at which both warpgroups meet.
        last: The last tile of keys.
    """

    sums: Ref
    met: Ref
    last: int

    def open(self, item: Item) -> None:
        """Clear half of the sums before the first tile; the other warpgroup clears the others."""
        half = self.sums.shape[0] // WARPGROUPS

        @when(item.row == 0)
        def _() -> None:
            for piece in range(half):
                self.sums.at[self.warpgroup * half + piece][...] = self._zeros()

    def add(self, part: Array, summand: Summand) -> None:
        """See `Total`. It exists: it is its warpgroup's turn, and all earlier ones are added."""
        place = self.sums.at[jax.lax.div(summand.first, i32.constant(PIECE))]
        place[...] = _loaded(place) + part

    def close(self, item: Item, turn: Callable[[int], Array]) -> None:
        """Store dq after the last tile."""

        @when(item.row == self.last)
        def _() -> None:
            plgpu.barrier_arrive(self.met)
            plgpu.barrier_wait(self.met)
            for piece in range(self.sums.shape[0]):

                @when(turn(piece))
                def _(piece: int = piece) -> None:
                    total = _loaded(self.sums.at[piece]) * self.scale
                    self._store(total, item, item.row * 0 + piece * PIECE)


def _loaded(sums: Ref) -> Array:
    return plgpu.layout_cast(sums[...], plgpu.Layout.WGMMA)


def outputs(config: Config, q: Array, *, key_tiles: int) -> dict[str, jax.ShapeDtypeStruct]:
    """`Total.ref` among the kernel's results, unless programs add to it on the device."""
    if not crosses_programs(config):
        return {"total": jax.ShapeDtypeStruct(q.shape, q.dtype)}
    if config.interpret is None:
        return {}
    batch, queries, heads, _ = q.shape
    shape = (key_tiles, batch, whole_tiles(queries, TILE), heads, config.columns[0])
    return {"total": jax.ShapeDtypeStruct(shape, jnp.float32)}


def updated(config: Config, q: Array) -> dict[str, Array]:
    """`Total.ref` among the arrays that the kernel changes, if programs add to it on the device.

    It has whole pieces and columns, so it may have more of both than `q`.
    """
    if config.interpret is not None or not crosses_programs(config):
        return {}
    batch, queries, heads, _ = q.shape
    shape = (batch, whole_tiles(queries, PIECE), heads, config.columns[0])
    return {"total": jnp.zeros(shape, jnp.float32)}


def rounded(config: Config, total: Array, q: Array) -> Array:
    """The gradient of the queries from `Total.ref`, if programs add to it."""
    total = total.sum(0) if config.interpret is not None else _in_given_order(total)
    d_q = total[:, : q.shape[1], :, : q.shape[3]] * config.signature.scale
    return d_q.astype(q.dtype)


def _in_given_order(total: Array) -> Array:
    """`Total.ref` with all elements in their places: see `_threads.store_as_held`."""
    batch, _, heads, columns = total.shape
    pieces = total.reshape(batch, -1, PIECE, heads, columns).swapaxes(2, 3)
    # Rows are 4 warps * 2 * 8, and the columns of a part 4 pairs of groups * 2 * 4 threads * 2.
    held = pieces.reshape(batch, -1, heads, columns // 64, *(4, 2, 4, 8, 4, 2, 2))
    return held.transpose(0, 1, 4, 5, 7, 2, 3, 6, 9, 8, 10).reshape(total.shape)


def _store_as_held(to: Ref, value: Array) -> None:
    """See `_threads.store_as_held`; `value` is laid out as an accumulator."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA))
    def store(_: Any, to: Any, value: Any) -> None:
        _threads.store_as_held(to, value.registers)

    store(to, value)


def scratch(config: Config, dtype: Any) -> dict[str, Any]:
    """The scratch that `total` takes."""
    key_columns, width = config.columns[0], _width(config)
    if is_held(config):
        pieces = whole_tiles(config.signature.query_size, TILE) // PIECE
        return {"sums": Shared((pieces, PIECE, width), jnp.float32, order=SUMS)}
    if is_single(config):
        return {"parts": Shared((WARPGROUPS, PIECE, width), dtype, order=WIDE)}
    rows = PIECE * width // key_columns
    return {"parts": Shared((WARPGROUPS, rows, key_columns), jnp.float32)}


def total(
    config: Config,
    block: Block,
    ref: Ref,
    *,
    met: Ref,
    idle: Ref,
    parts: Ref | None = None,
    sums: Ref | None = None,
) -> Total:
    """The sum in a running program.

    Args:
        config: The static part of the call.
        block: The program.
        ref: See `Total` and `Single`.
        met: See `Held`.
        idle: [queries, columns] in shared memory, in the dtype of the operands, for a warpgroup
            when no product is left of a head.
        parts: The parts of both warpgroups, if it is not `Held`.
        sums: See `Held`.
    """
    width = _width(config)
    first = 0 if in_turns(config) else block.warpgroup * width
    part = idle if parts is None else parts.at[block.warpgroup]
    own = (ref, part, pl.ds(first, width), block.warpgroup, block.products)
    scale, on_device = config.signature.scale, config.interpret is None
    if sums is not None:
        return Held(*own, scale, sums, met, tiles_of(config.signature.key_size) - 1)
    if is_single(config):
        return (Single if on_device else InterpretedSingle)(*own, scale)
    return (Total if on_device else InterpretedTotal)(*own)


def _width(config: Config) -> int:
    """The columns that a warpgroup adds to at a time."""
    return config.columns[0] // (1 if in_turns(config) else WARPGROUPS)
