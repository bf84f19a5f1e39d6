"""The forward pass: a persistent flash attention over lists of tiles, for Hopper.

Each program has two warpgroups that compute 64 queries each and one that moves memory. Per query
tile the listed key tiles are streamed through a ring in shared memory; the scores of the next
ones are computed while the softmax of the last ones still is multiplied with the values
(FlashAttention-3, arXiv 2407.08608, section 3.2). Dropout and f32 are somebody else's job.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._conditions import choose
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_out
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config, Told, launch
from shapeexec.attention.backends.mosaic_gpu._products import along_rows, before, vector
from shapeexec.attention.backends.mosaic_gpu._ring import Source, Stream
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    WARPGROUPS,
    WIDE,
    Item,
)

Array = Any
Ref = Any

_STEPS = 2  # pieces of keys and values in the ring


@functools.partial(jax.jit, static_argnums=0)
def forward(config: Config, told: Told, q: Array, k: Array, v: Array) -> list[Array]:
    """The output [B, T, N, value size], and what is `kept`, f32[B, N, whole tiles of queries].

    The output is 0 behind a valid length; what is kept there is not said.
    """
    batch, queries, heads, _ = q.shape
    widest = max(config.columns)
    key_rows = _key_rows(config)
    slots = 2 if widest <= 192 else 1
    key_columns, value_columns = config.columns
    ring = functools.partial(_ring.scratch, _STEPS, key_rows, dtype=q.dtype)
    tile = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    of_rows = jax.ShapeDtypeStruct((batch, heads, whole_tiles(queries, TILE)), jnp.float32)
    kept = range(len(config.weights.kept_of_nothing))
    return launch(
        config,
        functools.partial(_kernel, config),
        {"told": told, "q": q, "k": k, "v": v},
        {
            "out": jax.ShapeDtypeStruct((batch, queries, heads, v.shape[3]), q.dtype),
            **{f"kept_{i}": of_rows for i in kept},
        },
        {
            "queries": tile((slots, TILE, key_columns)),
            # As wide as the queries, the output takes their place.
            "outs": [] if value_columns == key_columns else [tile((TILE, value_columns))],
            "keys": ring(key_columns, vectors=told.column_dtypes(config, by_key=False)),
            # A weight of 0 times a value behind the valid length may be NaN.
            "values": ring(value_columns, clears=True),
            "of_rows": [plgpu.SMEM((WARPGROUPS, ROWS), jnp.float32) for _ in kept],
        },
        table=lambda told: told.table(heads, 1, by_key=False),
        total=batch * heads * told.lists.counts.shape[2],
        slots=slots,
        copies=1,
        accumulators=[(ROWS, key_rows), (ROWS, value_columns)],
    )


def _key_rows(config: Config) -> int:
    """Keys of a piece: as many as registers hold scores of."""
    return TILE if max(config.columns) <= 128 else TILE // 2


def _kernel(
    config: Config,
    block: Block,
    *,
    told: Told,
    q: Ref,
    k: Ref,
    v: Ref,
    out: Ref,
    queries: Ref,
    outs: list[Ref],
    keys: dict[str, Ref],
    values: dict[str, Ref],
    of_rows: list[Ref],
    **kept: Ref,
) -> None:
    streams = (
        Stream(**keys, products=block.products),
        Stream(**values, products=block.products),
    )
    elements = told.elements(config, block, by_key=False, columns=streams[0].vectors)
    queue = block.queue

    @pl.when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(232, action="increase")
        rows = _Rows(config, block, elements, *streams, queries, outs, of_rows)
        queue.consume(functools.partial(rows.attend, out, list(kept.values())))
        plgpu.wait_smem_to_gmem(0)

    @pl.when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(40, action="decrease")

        def begin(item: Item, slot: Array) -> None:
            at = (item.batch, pl.ds(item.row * TILE, TILE), item.head)
            ready = queue.ready.at[slot]
            lax.cond(
                item.count > 0,
                lambda: copy_in(q, at, queries.at[slot], ready),
                lambda: plgpu.barrier_arrive(ready),  # nobody reads queries without a key
            )

        def stream(item: Item, start: Array) -> Array:
            head = lax.div(item.head, jnp.int32(config.group))
            length = item.key_length
            columns = elements.sources(item)
            sources = [
                Source(ref, item.batch, head, length, vectors)
                for ref, vectors in ((k, columns), (v, []))
            ]

            def step(i: Array, _: None) -> None:
                first = queue.table.first_column(item, i, streams[0].rows)
                for one, source in zip(streams, sources, strict=True):
                    one.send(source, first, start + i)

            count = item.count * _ring.pieces(streams[0].rows)
            lax.fori_loop(0, count, step, None)
            return start + count

        end = queue.produce(begin, stream)
        for one in streams:
            one.drain(end)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """One warpgroup's 64 queries of each item."""

    config: Config
    block: Block
    elements: Elements
    keys: Stream
    values: Stream
    queries: Ref
    outs: list[Ref]
    of_rows: list[Ref]

    def attend(
        self, out_ref: Ref, kept_refs: list[Ref], item: Item, slot: Array, start: Array
    ) -> Array:
        """Compute an item whose keys are in the ring from `start` on; where the next begins."""
        warpgroup = self.block.warpgroup
        rows = pl.ds(warpgroup * ROWS, ROWS)
        mine = self.queries.at[slot, rows]
        out = self.outs[0].at[rows] if self.outs else mine
        first_query = item.row * TILE + warpgroup * ROWS
        of_rows = [ref.at[warpgroup] for ref in self.of_rows]
        weights = self.config.weights

        @pl.when(item.count == 0)
        def _nothing() -> None:
            out[...] = plgpu.layout_cast(jnp.zeros(out.shape, out.dtype), plgpu.Layout.WGMMA)
            for ref, value in zip(of_rows, weights.kept_of_nothing, strict=True):
                ref[...] = vector(value, ROWS)

        @pl.when(item.count > 0)
        def _something() -> None:
            total, largest, weight = self._softmax(item, mine, first_query, start)
            row = plgpu.broadcasted_iota(jnp.int32, total.shape, 0, layout=plgpu.Layout.WGMMA)
            valid = row < item.query_length - first_query
            alive = weights.is_alive(largest, weight)
            share = jnp.where(alive, 1 / weight, 0.0)
            valid &= along_rows(alive, total.shape)
            out[...] = jnp.where(valid, total * along_rows(share, total.shape), 0).astype(out.dtype)
            for ref, value in zip(of_rows, weights.kept(largest, weight, alive), strict=True):
                ref[...] = value

        plgpu.commit_smem()
        copy_out(out, out_ref, (item.batch, pl.ds(first_query, ROWS), item.head))
        for one, ref in zip(of_rows, kept_refs, strict=True):
            to = ref.at[item.batch, item.head, pl.ds(first_query, ROWS)]
            plgpu.copy_smem_to_gmem(one, to, commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.count * _ring.pieces(self.keys.rows)

    def _softmax(self, item: Item, q: Ref, first_query: Array, start: Array) -> tuple:
        """Weighted sum of values [64, columns], largest scaled score [64], sum of weights [64]."""
        keys, values, products = self.keys, self.values, self.block.products
        pieces = _ring.pieces(keys.rows)
        count, full = item.count * pieces, item.full * pieces
        shape = (ROWS, keys.rows)

        told = self.elements.of_item(item, first_query, ROWS)
        form = self.config.weights

        def masked(scores: Array, place: Array) -> Array:
            begin = keys.begins[place]
            scores = choose(told.allows(begin, place, shape), scores, form.masked)
            if not self.config.crosses_ends:
                return scores
            return before(item.key_length, begin, scores, form.masked)

        def weigh(scores: Array, largest: Array, weight: Array) -> tuple:
            new = jnp.maximum(largest, form.largest(scores))
            decay = form.decay(largest, new)
            weights = form.weigh(scores, along_rows, new)
            return weights, new, weight * decay + weights.sum(axis=1), decay

        def first(accumulator: Ref) -> tuple:
            place = keys.receive(start)
            products.add(accumulator, q, keys.tiles.at[place].transpose((1, 0)))
            scores = told.biased(keys.begins, place, products.read(accumulator))
            scores = lax.cond(
                full == 0,
                lambda x: masked(x, place),
                lambda x: x,
                scores,
            )
            keys.release(start)
            weights, *sofar, _ = weigh(scores, vector(form.nothing, ROWS), vector(0, ROWS))
            return weights.astype(q.dtype), *sofar

        def step(i: Array, carry: tuple, *, total: Ref, partial: bool) -> tuple:
            weights, largest, weight = carry
            position = start + i
            place = keys.receive(position)

            def overlapped(accumulator: Ref) -> tuple:
                products.add(accumulator, q, keys.tiles.at[place].transpose((1, 0)))
                before = values.receive(position - 1)
                products.add(total, weights, values.tiles.at[before])
                scores = told.biased(keys.begins, place, products.read(accumulator, pending=1))
                scores = masked(scores, place) if partial else scores
                keys.release(position)
                return weigh(scores, largest, weight)

            made = products.hold(overlapped, shape)
            # What a product reads from registers must be made while none is on its way, or
            # the compiler lets each wait for the one before.
            made = lax.optimization_barrier((*made, products.read(total)))
            weights, largest, weight, decay, sofar = made
            values.release(position - 1)
            products.write(total, sofar * along_rows(decay, sofar.shape))
            return weights.astype(q.dtype), largest, weight

        def rest(total: Ref, carry: tuple) -> tuple:
            of = functools.partial(step, total=total)
            carry = lax.fori_loop(1, full, functools.partial(of, partial=False), carry)
            begin = jnp.maximum(full, 1)
            carry = lax.fori_loop(begin, count, functools.partial(of, partial=True), carry)
            weights, largest, weight = carry
            last = values.receive(start + count - 1)
            products.add(total, weights, values.tiles.at[last])
            result = products.read(total)
            values.release(start + count - 1)
            return result, largest, weight

        carry = products.hold(first, shape)
        return products.hold(lambda total: rest(total, carry), (ROWS, self.config.columns[1]))
