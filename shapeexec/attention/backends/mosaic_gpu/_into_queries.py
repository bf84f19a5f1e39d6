"""The gradient of the queries, accumulated by the backward kernel for keys.

The two warpgroups share the gradients of their scores in shared memory. A step later, when both
have written them, each multiplies them with the keys for its half of dq's columns, and the TMA unit
adds the product to dq in device memory. Programs add in any order, so dq's last bits differ from
run to run; it takes 5 products instead of the 7 of two kernels.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref, whole_tiles
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_in_valid
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
    """Whether shared memory and registers suffice, with a bias too, and columns can be halved."""
    key_columns, value_columns = config.columns
    return key_columns == 128 and value_columns <= 128 and not config.is_biased


class NotIntoQueries:
    """Replaces `IntoQueries` if another kernel computes dq: its methods only copy the keys."""

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array
    ) -> None:
        """See `IntoQueries`."""
        del valid
        copy_in(ref, at, shared, ready)

    def open(self, item: Item) -> None:
        """See `IntoQueries`."""

    def part(self, position: Array, keys: Ref) -> None:
        """See `IntoQueries`."""

    def add(self, part: Any, item: Item, first: Array, valid: Array) -> None:
        """See `IntoQueries`."""

    def share(self, position: Array, d_score: Array, valid: Array) -> None:
        """See `IntoQueries`."""

    def leave(self) -> None:
        """See `IntoQueries`."""


@dataclasses.dataclass(frozen=True)
class IntoQueries:
    """The accumulation of the gradient of the queries from gradients of scores.

    The warpgroups synchronise before they read what both have written: each arrives at a barrier
    when it has written its part, and waits a step later.

    Attributes:
        total: The sum: f32[B, T, N, columns] in device memory.
        d_scores: [slots, keys, queries] in shared memory, taken in turn.
        parts: f32[warpgroups, queries, columns]: summands that are copied to `total`.
        met: A barrier at which both warpgroups meet.
        landed: A barrier of the warpgroup that moves memory.
        products: The products.
        warpgroup: The number of this warpgroup.
        crosses_ends: Whether a tile may hold keys behind the valid length.
    """

    total: Ref
    d_scores: Ref
    parts: Ref
    met: Ref
    landed: Ref
    products: Products | InterpretedProducts
    warpgroup: Array
    crosses_ends: bool

    def copy_keys(
        self, ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array
    ) -> None:
        """Start the copy of an item's keys, with 0 behind the valid ones, as dq sums over all."""
        copy_in_valid(ref, at, shared, ready, self.landed, valid)

    def open(self, item: Item) -> None:
        """Prepare for the first piece of a head's queries."""
        del item
        plgpu.barrier_arrive(self.met)

    def part(self, position: Array, keys: Ref) -> Array:
        """Half the columns of the summand for the queries at a position of the stream."""
        plgpu.barrier_wait(self.met)
        d_scores = self.d_scores.at[place_of(position + _SLOTS, _SLOTS)]
        mine = keys.at[:, self._columns]

        def multiplied(part: Ref) -> Array:
            self.products.add(part, d_scores.transpose((1, 0)), mine)
            return self.products.read(part)

        return self.products.hold(multiplied, self.parts.shape[1:])

    def add(self, part: Any, item: Item, first: Array, valid: Array) -> None:
        """Start the addition of a part.

        Args:
            part: f32[queries, columns].
            item: The item that it belongs to.
            first: The first of the queries.
            valid: Whether there is a part; if not, `part` may hold anything.
        """
        shared = self.parts.at[self.warpgroup]
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        shared[...] = part
        plgpu.commit_smem()
        place = self.total.at[item.batch, pl.ds(first, PIECE), item.head, self._columns]
        plgpu.copy_smem_to_gmem(shared, place, valid, reduction_op="add")

    def share(self, position: Array, d_score: Array, valid: Array) -> None:
        """Write the gradients of this warpgroup's scores beside those of the other warpgroup.

        Args:
            position: The position of the queries in their stream.
            d_score: [keys, queries].
            valid: The number of valid keys; gradients for the other keys may be NaN.
        """
        place = place_of(position, _SLOTS)
        if self.crosses_ends:
            d_score = lax.cond(valid < ROWS, lambda x: clear_rows(valid, x), lambda x: x, d_score)
        self.d_scores.at[place, pl.ds(self.warpgroup * ROWS, ROWS)][...] = d_score
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.met)

    def leave(self) -> None:
        """Wait after the last addition, until the other warpgroup and the TMA unit have read."""
        plgpu.barrier_arrive(self.met)
        plgpu.barrier_wait(self.met)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)

    @property
    def _columns(self) -> Any:
        columns = self.parts.shape[2]
        return pl.ds(self.warpgroup * columns, columns)


class InterpretedIntoQueries(IntoQueries):
    """`IntoQueries` in the interpreter, which cannot add to device memory.

    `total` has a leading axis for the tiles of keys, so that each tile has its own sum.
    """

    def open(self, item: Item) -> None:
        """See `IntoQueries`."""
        queries = self.total.shape[2]
        place = self.total.at[item.row, item.batch, pl.ds(0, queries), item.head, self._columns]
        place[...] = jnp.zeros((queries, self.parts.shape[2]), jnp.float32)
        super().open(item)

    def add(self, part: Any, item: Item, first: Array, valid: Array) -> None:
        """See `IntoQueries`."""
        place = self.total.at[item.row, item.batch, pl.ds(first, PIECE), item.head, self._columns]

        @pl.when(valid)
        def _() -> None:
            place[...] = place[...] + part


def totals(config: Config, q: Array, *, key_tiles: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """`IntoQueries.total` among the kernel's inputs; in the interpreter among its outputs."""
    if config.interpret is None:
        return {"total": jax.new_ref(jnp.zeros(q.shape, jnp.float32))}, {}
    batch, queries, heads, columns = q.shape
    shape = (key_tiles, batch, whole_tiles(queries, TILE), heads, columns)
    return {}, {"total": jax.ShapeDtypeStruct(shape, jnp.float32)}


def into_queries(
    config: Config, block: Block, *, total: Ref, scratch: dict[str, Ref]
) -> IntoQueries:
    """The accumulation in a running program, with scratch from `scratch`."""
    kind = IntoQueries if config.interpret is None else InterpretedIntoQueries
    return kind(
        **scratch,
        total=total,
        products=block.products,
        warpgroup=block.warpgroup,
        crosses_ends=config.overhangs,
    )


def scratch(config: Config, dtype: Any) -> dict[str, Any]:
    """The scratch that `IntoQueries` needs, by the names of its attributes."""
    half = config.columns[0] // WARPGROUPS
    return {
        "d_scores": plgpu.SMEM((_SLOTS, TILE, PIECE), dtype, transforms=WIDE),
        "parts": plgpu.SMEM((WARPGROUPS, PIECE, half), jnp.float32, transforms=SUMS),
        "met": plgpu.Barrier(num_arrivals=WARPGROUPS),
        "landed": plgpu.Barrier(),
    }
