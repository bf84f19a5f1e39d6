"""The gradient of the queries, accumulated by the backward kernel for keys.

The two warpgroups share the gradients of their scores in shared memory. A step later, when both
have written them, they are multiplied with the keys: each warpgroup makes its half of dq's columns,
or, where columns are too few to be halved, the warpgroups make all of them in turns. The TMA unit
adds the products to dq in device memory. Programs add in any order, so dq's last bits differ from
run to run; it takes 5 products instead of the 7 of two kernels. If a head is one tile, each row of
dq is one product, which is stored as it is.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref, Signature, whole_tiles
from shapeexec.attention.backends.mosaic_gpu._branches import branch, when
from shapeexec.attention.backends.mosaic_gpu._copies import (
    clear_copied,
    copy_in_parts,
    copy_in_valid,
)
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE
from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config
from shapeexec.attention.backends.mosaic_gpu._products import (
    InterpretedProducts,
    Products,
    clear_rows,
)
from shapeexec.attention.backends.mosaic_gpu._ring import place_of
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    SUMS,
    TILE,
    WARPGROUPS,
    WIDE,
    Item,
)

_SLOTS = 2  # of gradients of scores: one is written while the other is read


def is_possible(config: Config) -> bool:
    """Whether shared memory and registers suffice, with a bias too."""
    return max(config.columns) <= 128 and not config.is_biased


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


def is_single(signature: Signature) -> bool:
    """Whether a head is one tile, so that dq is the same in each run."""
    return max(signature.query_size, signature.key_size) <= TILE


class NotIntoQueries:
    """Replaces `IntoQueries` if another kernel computes dq: its methods only copy the keys."""

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array
    ) -> None:
        """See `IntoQueries`."""
        copy_in_parts(ref, at, shared, ready, valid, parts=1)

    def settle_keys(self, shared: Ref, ready: Ref, valid: Array) -> None:
        """See `IntoQueries`."""

    def open(self, item: Item) -> None:
        """See `IntoQueries`."""

    def part(self, summand: Summand, keys: Ref) -> None:
        """See `IntoQueries`."""

    def add(self, part: Any, summand: Summand) -> None:
        """See `IntoQueries`."""

    def share(self, position: Array, d_score: Array, valid: Array) -> None:
        """See `IntoQueries`."""

    def close(self, item: Item) -> None:
        """See `IntoQueries`."""

    def leave(self) -> None:
        """See `IntoQueries`."""


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum in device memory, as one warpgroup adds to it.

    Attributes:
        ref: f32[B, T, N, columns].
        part: f32[queries, columns of a part] in shared memory, from which the TMA unit adds.
        columns: The columns that this warpgroup adds to: a slice.
        warpgroup: The number of this warpgroup.
    """

    ref: Ref
    part: Ref
    columns: Any
    warpgroup: Array

    def open(self, item: Item) -> None:
        """Prepare the sum of an item, before both warpgroups meet."""

    def add(self, part: Array, summand: Summand) -> None:
        """Start the addition of a part, f32[queries, columns of a part], if it exists."""
        item, place = summand.item, pl.ds(summand.first, PIECE)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.part[...] = part
        plgpu.commit_smem()
        rows = self.ref.at[item.batch, place, item.head, self.columns]
        plgpu.copy_smem_to_gmem(self.part, rows, summand.exists, reduction_op="add")

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
                zeros = jnp.zeros(self.part.shape, jnp.float32)
                zeros = plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)
                first = item.row * TILE + piece * PIECE  # traced: JAX refuses a constant start
                self._store(zeros, item, first)

    def _store(self, value: Array, item: Item, first: Array, exists: Array | None = None) -> None:
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self.part[...] = value.astype(self.part.dtype)
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
class IntoQueries:
    """The accumulation of the gradient of the queries from gradients of scores.

    The warpgroups synchronise before they read what both have written: each arrives at a barrier
    when it has written its part, and waits a step later.

    Attributes:
        total: The sum.
        d_scores: [slots, keys, queries] in shared memory, taken in turn.
        met: A barrier at which both warpgroups meet.
        landed: A barrier of the warpgroup that moves memory.
        products: The products.
        warpgroup: The number of this warpgroup.
        crosses_ends: Whether a tile may hold keys behind the valid length.
    """

    total: Total
    d_scores: Ref
    met: Ref
    landed: Ref
    products: Products | InterpretedProducts
    warpgroup: Array
    crosses_ends: bool

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array
    ) -> None:
        """Start the copy of an item's keys from the first row of `at` on, if any is valid."""
        batch, first, head = at
        place = batch, pl.ds(first, TILE), head
        branch(
            valid > 0,
            lambda: copy_in_valid(ref, place, shared, ready, self.landed, valid),
            lambda: plgpu.barrier_arrive(ready),
        )

    def settle_keys(self, shared: Ref, ready: Ref, valid: Array) -> None:
        """Clear the rows that `copy_keys` copied from behind the valid ones: dq sums over all."""

        @when(valid > 0)
        def _() -> None:
            clear_copied(self.products, shared, ready, self.landed, valid)

    def open(self, item: Item) -> None:
        """Prepare for the first piece of a head's queries."""
        self.total.open(item)
        plgpu.barrier_arrive(self.met)

    def part(self, summand: Summand, keys: Ref) -> Any:
        """Make this warpgroup's part of a summand, f32[queries, half of the columns].

        Args:
            summand: The summand; if it does not exist, the part may hold anything.
            keys: [keys, columns] in shared memory.
        """
        plgpu.barrier_wait(self.met)
        return self._product(summand, keys.at[:, self.total.columns])

    def add(self, part: Any, summand: Summand) -> None:
        """Start the addition of what `part` returned."""
        self.total.add(part, summand)

    def share(self, position: Array, d_score: Array, valid: Array) -> None:
        """Write the gradients of this warpgroup's scores beside those of the other warpgroup.

        Args:
            position: The position of the queries in their stream.
            d_score: [keys, queries].
            valid: The number of valid keys; gradients for the other keys may be NaN.
        """
        place = place_of(position, _SLOTS)
        if self.crosses_ends:
            d_score = branch(valid < ROWS, lambda x: clear_rows(valid, x), lambda x: x, d_score)
        self.d_scores.at[place, pl.ds(self.warpgroup * ROWS, ROWS)][...] = d_score
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.met)

    def close(self, item: Item) -> None:
        """Finish dq after the last piece of a head's queries."""
        self.total.close(item, self._is_turn)

    def _is_turn(self, piece: int) -> Array:
        """Whether this warpgroup writes a piece, in its columns."""
        del piece
        return self.warpgroup >= 0

    def leave(self) -> None:
        """Wait after the last addition, until the other warpgroup and the TMA unit have read."""
        plgpu.barrier_arrive(self.met)
        plgpu.barrier_wait(self.met)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    def _product(self, summand: Summand, keys: Ref) -> Array:
        """The gradients of scores times keys[keys, columns of a part]."""
        d_scores = self.d_scores.at[_slot(summand)]

        def multiplied(part: Ref) -> Array:
            self.products.add(part, d_scores.transpose((1, 0)), keys)
            return self.products.read(part)

        return self.products.hold(multiplied, self.total.part.shape)


class IntoQueriesInTurns(IntoQueries):
    """`IntoQueries` for columns that cannot be halved: each summand is made by one warpgroup.

    The other one goes on meanwhile; both meet in each step, as the slots of `d_scores` need it.
    """

    def part(self, summand: Summand, keys: Ref) -> None:
        """Make a summand and start its addition, if it is this warpgroup's turn.

        No product is under way, so none has to outlast the branch.
        """
        plgpu.barrier_wait(self.met)

        @when(summand.exists & (_slot(summand) == self.warpgroup))
        def _() -> None:
            self.total.add(self._product(summand, keys), summand)

    def add(self, part: Any, summand: Summand) -> None:
        """Do nothing: `part` has started it."""

    def _is_turn(self, piece: int) -> Array:
        return self.warpgroup == piece % WARPGROUPS


def _slot(summand: Summand) -> Array:
    """The slot of a summand's gradients of scores; also the warpgroup whose turn it is."""
    # Before the first piece of all, the position is -1.
    return place_of(summand.position + _SLOTS, _SLOTS)


def _in_turns(config: Config) -> bool:
    """Whether the columns of the keys fill just one swizzled row, which cannot be cut."""
    return config.columns[0] == 64


def items_that_fit(config: Config) -> int:
    """The number of items for which there is room in shared memory."""
    return 2 if _in_turns(config) else 1


def totals(config: Config, q: Array, *, key_tiles: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """`Total.ref` among the kernel's inputs; in the interpreter, or if single, among its outputs.

    A sum has whole columns, so more than `q` if its heads are narrow.
    """
    if is_single(config.signature):
        return {}, {"total": jax.ShapeDtypeStruct(q.shape, q.dtype)}
    batch, queries, heads, _ = q.shape
    columns = config.columns[0]
    if config.interpret is None:
        zeros = jnp.zeros((batch, queries, heads, columns), jnp.float32)
        return {"total": jax.new_ref(zeros)}, {}
    shape = (key_tiles, batch, whole_tiles(queries, TILE), heads, columns)
    return {}, {"total": jax.ShapeDtypeStruct(shape, jnp.float32)}


def into_queries(
    config: Config, block: Block, *, total: Ref, scratch: dict[str, Ref]
) -> IntoQueries:
    """The accumulation in a running program, with scratch from `scratch`."""
    kind = IntoQueriesInTurns if _in_turns(config) else IntoQueries
    parts = scratch["parts"]
    width = parts.shape[2]
    first = 0 if _in_turns(config) else block.warpgroup * width
    on_device = config.interpret is None
    own = (total, parts.at[block.warpgroup], pl.ds(first, width), block.warpgroup)
    if is_single(config.signature):
        single = Single if on_device else InterpretedSingle
        to = single(*own, config.signature.scale)
    else:
        to = Total(*own) if on_device else InterpretedTotal(*own)
    return kind(
        total=to,
        d_scores=scratch["d_scores"],
        met=scratch["met"],
        landed=scratch["landed"],
        products=block.products,
        warpgroup=block.warpgroup,
        crosses_ends=config.overhangs,
    )


def scratch(config: Config, dtype: Any) -> dict[str, Any]:
    """The scratch that `into_queries` takes."""
    width = config.columns[0] // (1 if _in_turns(config) else WARPGROUPS)
    parts = {"dtype": jnp.float32, "transforms": SUMS}
    if is_single(config.signature):
        parts = {"dtype": dtype, "transforms": WIDE}
    return {
        "d_scores": plgpu.SMEM((_SLOTS, TILE, PIECE), dtype, transforms=WIDE),
        "parts": plgpu.SMEM((WARPGROUPS, PIECE, width), **parts),
        "met": plgpu.Barrier(num_arrivals=WARPGROUPS),
        "landed": plgpu.Barrier(),
    }
