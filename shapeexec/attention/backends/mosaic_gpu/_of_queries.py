"""The backward pass for queries: a persistent kernel over lists by query.

Each of two warpgroups sums dq of 64 queries in registers, while keys and values pass by. The output
passes before the values, to compute `Rows.addend` for both kernels: a separate pass over output and
gradient would cost more. Code shared with the kernel for keys is in `_gradients`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._branches import branch
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in_parts, copy_out
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE, REGISTERS, room, store_sum
from shapeexec.attention.backends.mosaic_gpu._launch import Block, launch, run
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import (
    along_rows,
    clear_rows,
    in_loop,
    load,
    vector,
)
from shapeexec.attention.backends.mosaic_gpu._ring import Owed, Source, Stream
from shapeexec.attention.backends.mosaic_gpu._schedule import LookUp
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WARPGROUPS, Item

_SHAPE = (ROWS, PIECE)
_BLOCK = 64  # columns multiplied at a time: as many as there are free registers
_MOST_HELD = 128  # columns of keys or values: queries and gradients of the output fit there, too


@functools.partial(jax.jit, static_argnums=0)
def backward_of_queries(
    config: Config,
    sparsity: Sparsity,
    *,
    of_weights: list[Array],
    d_logsumexp: list[Array],
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    d_out: Array,
) -> list[Array]:
    """The gradient of the queries, from lists by query, and `Rows.addend`; 0 behind valid lengths.

    Args:
        config: The static part of the call.
        sparsity: The tiles, in lists by query.
        of_weights: See `Rows`.
        d_logsumexp: The gradient of the log-sum-exp, shaped as `Rows.addend`; or an empty list.
        q: Queries.
        k: Keys.
        v: Values.
        out: The output.
        d_out: The gradient of the output.
    """
    batch, queries, heads, _ = q.shape
    key_columns, value_columns = config.columns
    slots, steps = room(config)
    clears = config.overhangs
    ring = functools.partial(_ring.scratch, steps, rows=PIECE, dtype=q.dtype, clears=clears)
    tile = functools.partial(Shared, dtype=q.dtype, order=WIDE)
    rows, vectors = (of_weights, d_logsumexp), sparsity.column_dtypes(config, side="query")
    of_rows = [Shared((slots, TILE), jnp.float32) for _ in jax.tree.leaves(rows)]
    whole = (batch, heads, whole_tiles(queries, TILE))
    return launch(
        config,
        functools.partial(_kernel, config),
        inputs={
            "sparsity": sparsity,
            "rows": rows,
            "q": q,
            "k": k,
            "v": v,
            "out": out,
            "d_out": d_out,
        },
        outputs={
            "d_q": jax.ShapeDtypeStruct(q.shape, q.dtype),
            "addend": jax.ShapeDtypeStruct(whole, jnp.float32),
        },
        scratch={
            "queries": tile((slots, TILE, key_columns)),
            "d_outs": tile((slots, TILE, value_columns)),
            "of_rows": of_rows,
            "addends": Shared((WARPGROUPS, ROWS), jnp.float32),
            # 0 * padding may be NaN, so clear keys and values behind the valid length.
            "keys": ring(columns=key_columns, vectors=vectors, tells=True),
            "values": ring(columns=value_columns),
        },
        side="query",
        batch=batch,
        slots=slots,
        copies=2 * config.parts + len(of_rows),
        accumulators=[_SHAPE, _SHAPE, (ROWS, key_columns)],
    )


def _kernel(
    config: Config,
    block: Block,
    *,
    sparsity: Sparsity,
    keys: dict[str, Any],
    values: dict[str, Any],
    **refs: Any,
) -> None:
    streams = (
        Stream(**keys, products=block.products),
        Stream(**values, products=block.products),
    )
    elements = sparsity.elements(config, block.products, side="query", columns=streams[0].vectors)
    kernel = _Kernel(config, block, elements, *streams, **refs)
    run(block, streams, kernel=kernel, registers=REGISTERS, start=(0, 0))


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and scratch in shared memory."""

    config: Config
    block: Block
    elements: Elements
    keys: Stream
    values: Stream
    rows: tuple[list[Ref], list[Ref]]
    q: Ref
    k: Ref
    v: Ref
    out: Ref
    d_out: Ref
    d_q: Ref
    addend: Ref
    queries: Ref
    d_outs: Ref
    of_rows: list[Ref]
    addends: Ref

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies of an item's queries and of their numbers."""
        first = item.row * TILE
        at = item.batch, first, item.head
        valid = item.query_length - first if self.config.signature.is_ragged else None
        ready = self.block.queue.ready.at[slot]
        for ref, shared in ((self.q, self.queries), (self.d_out, self.d_outs)):
            tile = self.block.products.part(shared, slot)
            copy_in_parts(ref, at, tile, ready, valid, parts=self.config.parts)
        for ref, shared in zip(jax.tree.leaves(self.rows), self.of_rows, strict=True):
            rows = ref.at[item.batch, item.head, pl.ds(first, TILE)]
            plgpu.copy_gmem_to_smem(rows, shared.at[slot], ready)

    def stream(
        self, item: Item, slot: Array, start: tuple[Array, Array], look_up: LookUp
    ) -> tuple[tuple[Array, Array], Any]:
        """Send the output, keys and values; see `Kernel.stream`."""
        del slot
        fits = self.block.queue.table.fits(self.keys.steps * PIECE)
        at_key, at_value = start
        # Nothing is to be cleared: `_addend` ignores rows behind the valid length.
        output = Source(self.out, item.batch, item.head, (item.row + 1) * TILE).located()

        def send_output(piece: Array, _: None) -> None:
            self.values.send_early(output, item.row * TILE + piece * PIECE, at_value + piece)

        outputs = self._outputs(item)
        lax.fori_loop(0, outputs, send_output, None)
        head = lax.div(item.head, i32.constant(self.config.signature.group))
        ours = functools.partial(Source, batch=item.batch, head=head, length=item.key_length)
        key = ours(self.k, vectors=self.elements.sources(item)).located()
        value = ours(self.v).located()

        def step(i: Array, _: tuple[Owed, Owed]) -> tuple[Owed, Owed]:
            first = self.block.queue.table.first_column(item, i, PIECE)
            of_key = self.keys.send_early(key, first, at_key + i)
            return of_key, self.values.send_early(value, first, at_value + outputs + i)

        count, nothing = item.pieces(PIECE), (self.keys.nothing_owed(), self.values.nothing_owed())
        if fits:
            last, following = lax.fori_loop(0, count, step, nothing), look_up()
        else:
            last, following = look_up.late(step, nothing, count)
        self.keys.settle(last[0])
        self.values.settle(last[1])
        return self._behind(item, start), following

    def _outputs(self, item: Item) -> Array:
        """The number of pieces of the output that hold valid rows."""
        valid = i32.minimum(i32.maximum(item.query_length - item.row * TILE, 0), TILE)
        return lax.div(valid + (PIECE - 1), i32.constant(PIECE))

    def _behind(self, item: Item, start: tuple[Array, Array]) -> tuple[Array, Array]:
        count = item.pieces(PIECE)
        return start[0] + count, start[1] + self._outputs(item) + count

    def attend(self, item: Item, slot: Array, start: tuple[Array, Array]) -> tuple[Array, Array]:
        """Compute an item whose pieces begin at `start`; return where the next item's begin."""
        warpgroup = self.block.warpgroup
        first_query = self.block.first_row(item)
        valid = item.query_length - first_query
        at_key, at_value = start
        outputs = self._outputs(item)
        addend = self._addend(slot, at_value, outputs, valid)
        products = self.block.products
        shared = products.part(self.queries, slot, self._mine)
        summed = functools.partial(
            self._sum, item, slot, (at_key, at_value + outputs), first_query, addend
        )
        total = products.hold(summed, (ROWS, self.config.columns[0]))
        item = self.block.queue.posted(slot)
        first_query = self.block.first_row(item)
        valid = item.query_length - first_query
        self.addends[warpgroup] = addend
        store_sum(products, total, valid, shared, scale=self.config.signature.scale)
        copy_out(shared, self.d_q, (item.batch, pl.ds(first_query, ROWS), item.head))
        place = self.addend.at[item.batch, item.head, pl.ds(first_query, ROWS)]
        plgpu.copy_smem_to_gmem(self.addends.at[warpgroup], place, commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return self._behind(item, start)

    def _addend(self, slot: Array, start: Array, outputs: Array, valid: Array) -> Array:
        """`Rows.addend` of this warpgroup's queries, from the output in the ring at `start`."""
        warpgroup = self.block.warpgroup
        rows = self._mine

        def summed(place: Array) -> Array:
            total = vector(0.0, ROWS)
            for column in range(0, self.config.columns[1], _BLOCK):
                block = pl.ds(column, _BLOCK)
                tiles = self.values.tiles.at[place, :, block], self.d_outs.at[slot, rows, block]
                output, d_output = (
                    self.block.products.held(tile).astype(jnp.float32) for tile in tiles
                )
                total += (output * d_output).sum(axis=1)
            return total

        def step(piece: Array, total: Array) -> Array:
            # One after the other: with wide heads the ring has room for a single piece.
            place = self.values.receive(start + piece)
            total = branch(piece == warpgroup, lambda: summed(place), lambda: total)
            self.values.release(start + piece)
            return total

        addend = -lax.fori_loop(0, outputs, step, vector(0.0, ROWS))
        for ref in self.of_rows[len(self.rows[0]) :]:
            addend += load(ref.at[slot, rows], of="rows", where="shared")
        # Behind the valid length the gradient of the output may be NaN.
        return clear_rows(valid, addend)

    @property
    def _mine(self) -> Any:
        """The rows of a tile that the warpgroup computes."""
        return pl.ds(self.block.warpgroup * ROWS, ROWS)

    def _operands(self, slot: Array) -> tuple[Ref, Ref]:
        """The warpgroup's queries and gradients of the output, in shared memory."""
        refs = self.queries, self.d_outs
        return tuple(self.block.products.part(ref, slot, self._mine) for ref in refs)

    def _of_weights(self, slot: Array) -> list[Array]:
        """`Rows.of_weights` of the warpgroup's queries."""
        refs = self.of_rows[: len(self.rows[0])]
        return [load(ref.at[slot, self._mine], of="rows", where="shared") for ref in refs]

    def _sum(
        self,
        item: Item,
        slot: Array,
        start: tuple[Array, Array],
        first_query: Array,
        addend: Array,
        total: Ref,
    ) -> Array:
        """The sum of dq over the keys in the ring from `start` on, f32[queries, columns]."""
        products, (at_key, at_value) = self.block.products, start
        of_weights = self._of_weights(slot)
        rule = self.elements.of_item(item, first_query, ROWS)
        is_narrow = max(self.config.columns) <= _MOST_HELD
        operands = [*map(products.held, self._operands(slot))] if is_narrow else None

        def step(i: Array, last: Array, *, partial: bool) -> Array:
            """Process piece i; return where it begins. `last` is where piece i - 1 begins."""
            query, d_out = operands or self._operands(in_loop(slot, last))
            place, place_of_value = self.keys.receive(at_key + i), self.values.receive(at_value + i)
            key, value = self.keys.tile(place), self.values.tile(place_of_value)

            def gradient(scores: Ref, d_weights: Ref) -> Array:
                products.add(scores, query, key.transpose((1, 0)))
                products.add(d_weights, d_out, value.transpose((1, 0)))
                score = rule.biased(self.keys.begins, place, products.read(scores, pending=1))
                score = rule.masked(self.keys.begins, place, score) if partial else score
                weight = self.config.weights.weigh(score, along_rows, *of_weights)
                d_weight = products.read(d_weights)
                self.values.release(at_value + i)
                return (weight * (d_weight + along_rows(addend, _SHAPE))).astype(query.dtype)

            products.add(total, products.hold(gradient, _SHAPE, _SHAPE), key)
            begins = self.keys.begin(place)
            products.wait()
            self.keys.release(at_key + i)
            return begins

        rule.each_piece(step, i32.constant(0), rows=PIECE)
        return products.read(total)
