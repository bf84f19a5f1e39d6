"""The backward pass for queries: a persistent kernel over lists by query.

Each of two warpgroups sums dq of 64 queries in registers, while keys and values pass by. What it
has in common with that for keys is in `_gradients`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._conditions import choose
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_out
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._gradients import PIECE, Rows, hand_out, room, run
from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config, Told, launch
from shapeexec.attention.backends.mosaic_gpu._products import along_rows, before, in_loop, load
from shapeexec.attention.backends.mosaic_gpu._ring import Source, Stream
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WIDE, Item

Array = Any
Ref = Any

_SHAPE = (ROWS, PIECE)
_PIECES = _ring.pieces(PIECE)


@functools.partial(jax.jit, static_argnums=0)
def backward_of_queries(
    config: Config, told: Told, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> Array:
    """The gradient of the queries, from lists by query; 0 behind the valid length."""
    batch, _, heads, _ = q.shape
    key_columns, value_columns = config.columns
    slots, steps = room(config)
    ring = functools.partial(_ring.scratch, steps, PIECE, dtype=q.dtype, clears=True)
    tile = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    of_rows = [plgpu.SMEM((slots, TILE), jnp.float32) for _ in jax.tree.leaves(rows)]
    (d_q,) = launch(
        config,
        functools.partial(_kernel, config),
        {"told": told, "rows": rows, "q": q, "k": k, "v": v, "d_out": d_out},
        {"d_q": jax.ShapeDtypeStruct(q.shape, q.dtype)},
        {
            "queries": tile((slots, TILE, key_columns)),
            "d_outs": tile((slots, TILE, value_columns)),
            "of_rows": of_rows,
            # Weights and gradients of 0 times what lies behind the valid length may be NaN.
            "keys": ring(key_columns, vectors=told.column_dtypes(config, by_key=False)),
            "values": ring(value_columns),
        },
        table=lambda told: told.table(heads, 1, by_key=False),
        total=batch * heads * told.lists.counts.shape[2],
        slots=slots,
        copies=2 + len(of_rows),
        accumulators=[_SHAPE, _SHAPE, (ROWS, key_columns)],
    )
    return d_q


def _kernel(
    config: Config, block: Block, *, told: Told, keys: dict, values: dict, **refs: Any
) -> None:
    streams = (
        Stream(**keys, products=block.products),
        Stream(**values, products=block.products),
    )
    elements = told.elements(config, block, by_key=False, columns=streams[0].vectors)
    kernel = _Kernel(config, block, elements, *streams, **refs)
    run(block, streams, attend=kernel.attend, begin=kernel.begin, stream=kernel.stream)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and what is in shared memory."""

    config: Config
    block: Block
    elements: Elements
    keys: Stream
    values: Stream
    rows: Rows
    q: Ref
    k: Ref
    v: Ref
    d_out: Ref
    d_q: Ref
    queries: Ref
    d_outs: Ref
    of_rows: list[Ref]

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies of an item's queries and what belongs to them."""
        of_item = pl.ds(item.row * TILE, TILE)
        ready = self.block.queue.ready.at[slot]
        for ref, shared in ((self.q, self.queries), (self.d_out, self.d_outs)):
            copy_in(ref, (item.batch, of_item, item.head), shared.at[slot], ready)
        for ref, shared in zip(jax.tree.leaves(self.rows), self.of_rows, strict=True):
            at = ref.at[item.batch, item.head, of_item]
            plgpu.copy_gmem_to_smem(at, shared.at[slot], ready)

    def stream(self, item: Item, start: Array) -> Array:
        """Send keys and values; where the next item's begin."""
        head = lax.div(item.head, jnp.int32(self.config.group))
        ours = functools.partial(Source, batch=item.batch, head=head, size=item.key_size)
        sources = ours(self.k, vectors=self.elements.sources(item)), ours(self.v)

        def step(i: Array, _: None) -> None:
            first = self.block.queue.table.first_column(item, i, PIECE)
            for stream, source in zip((self.keys, self.values), sources, strict=True):
                stream.send(source, first, start + i)

        lax.fori_loop(0, item.count * _PIECES, step, None)
        return start + item.count * _PIECES

    def attend(self, item: Item, slot: Array, start: Array) -> Array:
        """Compute an item whose keys are in the ring from `start` on; where the next begins."""
        mine = pl.ds(self.block.warpgroup * ROWS, ROWS)
        first_query = item.row * TILE + self.block.warpgroup * ROWS
        shared = self.queries.at[slot, mine]
        columns = self.config.columns[0]
        total = self.block.products.hold(
            functools.partial(self._sum, item, slot, start, first_query), (ROWS, columns)
        )
        hand_out(total, item.query_size - first_query, shared, scale=self.config.signature.scale)
        copy_out(shared, self.d_q, (item.batch, pl.ds(first_query, ROWS), item.head))
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.count * _PIECES

    def _sum(self, item: Item, slot: Array, start: Array, first_query: Array, total: Ref) -> Array:
        products, form = self.block.products, self.config.weights
        mine = pl.ds(self.block.warpgroup * ROWS, ROWS)
        loaded = functools.partial(load, of="rows", where="shared")
        *of_weights, delta = (loaded(ref.at[slot, mine]) for ref in self.of_rows)
        told = self.elements.of_item(item, first_query, ROWS)

        def step(i: Array, last: Array, *, partial: bool) -> Array:
            """Piece i of the keys; where it begins. `last`: where the one before it began."""
            here = in_loop(slot, last)
            query, d_out = self.queries.at[here, mine], self.d_outs.at[here, mine]
            place, place_of_value = self.keys.receive(start + i), self.values.receive(start + i)
            key, value = self.keys.tiles.at[place], self.values.tiles.at[place_of_value]

            def gradient(scores: Ref, d_weights: Ref) -> Array:
                products.add(scores, query, key.transpose((1, 0)))
                products.add(d_weights, d_out, value.transpose((1, 0)))
                score = told.biased(self.keys.begins, place, products.read(scores, pending=1))
                if partial:
                    begin = self.keys.begins[place]
                    score = choose(told.allows(begin, place, _SHAPE), score, form.masked)
                    if self.config.crosses_ends:
                        # Keys behind the end are 0, but where all others' scores are far below
                        # that their weights would be infinite.
                        score = before(item.key_size, begin, score, form.masked)
                weight = form.weigh(score, along_rows, *of_weights)
                d_weight = products.read(d_weights)
                self.values.release(start + i)
                return (weight * (d_weight - along_rows(delta, _SHAPE))).astype(query.dtype)

            products.add(total, products.hold(gradient, _SHAPE, _SHAPE), key)
            begins = self.keys.begins[place]
            products.wait()
            self.keys.release(start + i)
            return begins

        full, count = item.full * _PIECES, item.count * _PIECES
        last = lax.fori_loop(0, full, functools.partial(step, partial=False), jnp.int32(0))
        lax.fori_loop(full, count, functools.partial(step, partial=True), last)
        return products.read(total)
