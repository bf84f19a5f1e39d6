"""The gradient of the queries from stored gradients of scores: a persistent kernel.

Each of two warpgroups sums dq of 64 or 128 queries in registers, while keys pass by, and the
gradients of their scores, which `_d_scores` has stored. Where lists are `FirstTiles`, rows are
twice as tall as those of other kernels: the second-level cache, from which the keys come, would be
the limit.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from typing import Any

import jax
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._branches import when
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._copies import copy_out
from shapeexec.attention.backends.mosaic_gpu._d_scores import ROWS_PER_KEY, Layout, head_of
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE, REGISTERS, store_sum
from shapeexec.attention.backends.mosaic_gpu._launch import Block, launch, run
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._ring import Source, Stream
from shapeexec.attention.backends.mosaic_gpu._schedule import LookUp
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    WARPGROUPS,
    FirstTiles,
    Item,
    ListRefs,
)

_STEPS = 3


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def queries_from_scores(
    config: Config,
    layout: Layout,
    shape: tuple[int, ...],
    sparsity: Sparsity,
    *,
    k: Array,
    d_scores: Array,
    others: dict[str, Array],
    after: Array,
) -> list[Array]:
    """The gradient of the queries of a span of heads; 0 behind the valid length.

    Args:
        config: The static part of the call.
        layout: That of the gradients of scores.
        shape: That of the queries.
        sparsity: The tiles of the span, in lists by query, or in `FirstTiles` of `TALL` queries.
        k: Keys.
        d_scores: The gradients of scores.
        others: "d_q" of other heads, which are left as they are; empty: there are none.
        after: See `launch`.

    Returns:
        The gradient, and what the next kernel is after.
    """
    columns, dtype, of_row = config.columns[0], k.dtype, sparsity.lists.of_row
    ring = functools.partial(_ring.scratch, _STEPS, dtype=dtype)
    return launch(
        config,
        functools.partial(_kernel, config, layout),
        inputs={"sparsity": sparsity, "k": k, "d_scores": d_scores},
        outputs={} if others else {"d_q": jax.ShapeDtypeStruct(shape, dtype)},
        updated=others,
        after=after,
        scratch={
            # 0 * padding may be NaN, so clear keys behind the valid length.
            "keys": ring(rows=PIECE, columns=columns, clears=config.overhangs),
            "scores": ring(rows=of_row, columns=PIECE),
            "out": Shared((WARPGROUPS, ROWS, columns), dtype, order=WIDE),
        },
        side="query",
        batch=k.shape[0],
        slots=2,
        copies=1,
        accumulators=[(ROWS, columns)] * (of_row // TILE),
    )


def _kernel(
    config: Config,
    layout: Layout,
    block: Block,
    *,
    sparsity: Sparsity,
    keys: dict[str, Any],
    scores: dict[str, Any],
    **refs: Any,
) -> None:
    streams = (
        Stream(**keys, products=block.products),
        Stream(**scores, products=block.products),
    )
    kernel = _Kernel(config, layout, block, sparsity.lists, *streams, **refs)
    run(block, streams, kernel=kernel, registers=REGISTERS)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and scratch in shared memory."""

    config: Config
    layout: Layout
    block: Block
    lists: ListRefs | FirstTiles
    keys: Stream
    scores: Stream
    k: Ref
    d_scores: Ref
    d_q: Ref
    out: Ref

    def begin(self, item: Item, slot: Array) -> None:
        """Nothing is copied once for an item."""
        del item
        plgpu.barrier_arrive(self.block.queue.ready.at[slot])

    def stream(self, item: Item, slot: Array, start: Array, look_up: LookUp) -> tuple[Array, Any]:
        """Send keys and gradients of scores; see `Kernel.stream`."""
        del slot
        head = lax.div(item.head, i32.constant(self.config.signature.group))
        key = Source(self.k, item.batch, head, item.key_length).located()
        # All of its rows are read: nothing of it is behind a valid length that keys are not.
        zero = i32.constant(0)
        score = Source(self.d_scores, 0, zero, zero)
        of_array = head_of(item, self.config, self.block, group=1)
        first_query = item.row * self.lists.of_row
        begin = self.layout.row(self.block.sizes, of_array, zero, first_query)

        def step(i: Array, _: Any) -> Any:
            first = self.block.queue.table.first_column(item, i, PIECE)
            self.scores.send(score, begin + first * ROWS_PER_KEY, start + i)
            return self.keys.send_early(key, first, start + i)

        count = item.pieces(PIECE)
        last, following = look_up.late(step, self.keys.nothing_owed(), count)
        self.keys.settle(last)
        return start + count, following

    def attend(self, item: Item, slot: Array, start: Array) -> Array:
        """Compute an item whose keys begin at `start`; return where the next item's begin."""
        del slot
        products, warpgroup = self.block.products, self.block.warpgroup
        sums_of = (ROWS, self.config.columns[0])
        first = item.row * self.lists.of_row + warpgroup * (self._halves * ROWS)
        count = item.pieces(PIECE)

        def summed(*sums: Ref) -> list[Array]:
            mine = self._own_pieces(item, count)
            lax.fori_loop(0, mine, functools.partial(self._add, sums, start), None)
            lax.fori_loop(mine, count, functools.partial(self._leave_out, start), None)
            return [products.read(x) for x in sums]

        totals = products.hold(summed, *[sums_of] * self._halves)
        for half, total in enumerate(totals):
            self._store(item, first + half * ROWS, total)
        return start + count

    @property
    def _halves(self) -> int:
        """How often a warpgroup has 64 queries."""
        return self.lists.of_row // TILE

    def _own_pieces(self, item: Item, count: Array) -> Array:
        """The number of pieces of keys that any of the warpgroup's queries sees."""
        if self.lists.of_row == TILE or not isinstance(self.lists, FirstTiles):
            return count
        row = item.row * WARPGROUPS + self.block.warpgroup
        lengths = item.query_length, item.key_length
        _, tiles = self.lists.reach.bounds(row, lengths, tile=(TILE, TILE), xp=i32)
        has_any = row * TILE < item.query_length
        return i32.where(has_any, i32.minimum(tiles * (TILE // PIECE), count), 0)

    def _add(self, sums: tuple[Ref, ...], start: Array, i: Array, _: None) -> None:
        """Add the product with piece i of the keys."""
        position, products = start + i, self.block.products
        key = self.keys.tile(self.keys.receive(position))
        scores = self.scores.tile(self.scores.receive(position))
        for half, total in enumerate(sums):
            rows = pl.ds((self.block.warpgroup * self._halves + half) * PIECE, PIECE)
            products.add(total, scores.at[rows].transpose((1, 0)), key)
        products.wait()
        self._release(position)

    def _leave_out(self, start: Array, i: Array, _: None) -> None:
        """Let go of piece i of the keys, which only the other warpgroup's queries see."""
        self.keys.receive(start + i)
        self.scores.receive(start + i)
        self._release(start + i)

    def _release(self, position: Array) -> None:
        self.keys.release(position)
        self.scores.release(position)

    def _store(self, item: Item, first: Array, total: Array) -> None:
        """Store dq of the 64 queries from `first` on."""
        products, valid = self.block.products, item.query_length - first
        shared = products.part(self.out, self.block.warpgroup)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        store_sum(products, total, valid, shared, scale=self.config.signature.scale)

        @when(first < self.block.sizes["T"].read())  # else it is another example's
        def _() -> None:
            copy_out(shared, self.d_q, (item.batch, pl.ds(first, ROWS), item.head))
            plgpu.commit_smem_to_gmem_group()
