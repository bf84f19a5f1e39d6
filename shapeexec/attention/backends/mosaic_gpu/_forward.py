"""The forward pass: a persistent flash attention over lists of tiles, for Hopper.

Each program has two warpgroups that compute 64 queries each and one that moves memory. Per query
tile the listed key tiles are streamed through a ring in shared memory; the scores of the next
ones are computed while the softmax of the last ones still is multiplied with the values
(FlashAttention-3, arXiv 2407.08608, section 3.2). Biases, dropout and f32 are somebody else's job.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_out
from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config, Told, launch
from shapeexec.attention.backends.mosaic_gpu._products import along_rows, vector
from shapeexec.attention.backends.mosaic_gpu._ring import Source, Stream
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    WARPGROUPS,
    WIDE,
    Item,
    Table,
    whole_tiles,
)

Array = Any
Ref = Any

LOG2E = math.log2(math.e)
_STEPS = 2  # pieces of keys and values in the ring


@functools.partial(jax.jit, static_argnums=0)
def forward(config: Config, told: Told, q: Array, k: Array, v: Array) -> list[Array]:
    """The output [B, T, N, value size], and the log-sum-exp f32[B, N, whole tiles of queries].

    The output is 0 behind a valid length; what the log-sum-exp is there is not said.
    """
    batch, queries, heads, _ = q.shape
    widest = max(config.columns)
    key_rows = TILE if widest <= 128 else TILE // 2
    slots = 2 if widest <= 192 else 1
    key_columns, value_columns = config.columns
    ring = functools.partial(_ring.scratch, _STEPS, key_rows, dtype=q.dtype)
    tile = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    return launch(
        config,
        functools.partial(_kernel, config),
        {"told": told, "q": q, "k": k, "v": v},
        {
            "out": jax.ShapeDtypeStruct((batch, queries, heads, v.shape[3]), q.dtype),
            "logsumexp": jax.ShapeDtypeStruct((batch, heads, whole_tiles(queries)), jnp.float32),
        },
        {
            "queries": tile((slots, TILE, key_columns)),
            # As wide as the queries, the output takes their place.
            "outs": [] if value_columns == key_columns else [tile((TILE, value_columns))],
            "keys": ring(key_columns),
            # A weight of 0 times a value behind the valid length may be NaN.
            "values": ring(value_columns, clears=True),
            "of_rows": plgpu.SMEM((WARPGROUPS, ROWS), jnp.float32),
            "turns": plgpu.Barrier(num_arrivals=WARPGROUPS),
        },
        table=functools.partial(_table, heads),
        total=batch * heads * told.lists.counts.shape[2],
        slots=slots,
        copies=1,
        accumulators=[(ROWS, key_rows), (ROWS, value_columns)],
    )


def _table(heads: int, told: Told) -> Table:
    return Table(told.lists, heads, 1, told.query_sizes)


def _kernel(
    config: Config,
    block: Block,
    *,
    told: Told,
    q: Ref,
    k: Ref,
    v: Ref,
    out: Ref,
    logsumexp: Ref,
    queries: Ref,
    outs: list[Ref],
    keys: dict[str, Ref],
    values: dict[str, Ref],
    of_rows: Ref,
    turns: Ref,
) -> None:
    streams = Stream(**keys), Stream(**values)
    queue = block.queue

    @pl.when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(232, action="increase")
        rows = _Rows(config, block, told, *streams, queries, outs, of_rows, turns)
        queue.consume(functools.partial(rows.attend, out, logsumexp))
        plgpu.wait_smem_to_gmem(0)

    @pl.when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(40, action="decrease")

        def begin(item: Item, slot: Array) -> None:
            at = (item.batch, pl.ds(item.row * TILE, TILE), item.head)
            copy_in(q, at, queries.at[slot], queue.ready.at[slot])

        def stream(item: Item, start: Array) -> Array:
            head = lax.div(item.head, jnp.int32(config.group))
            size = told.key_sizes[item.batch]
            sources = [Source(ref, item.batch, head, size) for ref in (k, v)]

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
    told: Told
    keys: Stream
    values: Stream
    queries: Ref
    outs: list[Ref]
    of_rows: Ref
    turns: Ref

    def attend(
        self, out_ref: Ref, logsumexp_ref: Ref, item: Item, slot: Array, start: Array
    ) -> Array:
        """Compute an item whose keys are in the ring from `start` on; where the next begins."""
        warpgroup = self.block.warpgroup
        rows = pl.ds(warpgroup * ROWS, ROWS)
        mine = self.queries.at[slot, rows]
        out = self.outs[0].at[rows] if self.outs else mine
        first_query = item.row * TILE + warpgroup * ROWS
        of_rows = self.of_rows.at[warpgroup]

        @pl.when(item.count == 0)
        def _nothing() -> None:
            out[...] = plgpu.layout_cast(jnp.zeros(out.shape, out.dtype), plgpu.Layout.WGMMA)
            of_rows[...] = vector(-jnp.inf, ROWS)

        @pl.when(item.count > 0)
        def _something() -> None:
            # This one starts a turn late, and so stays one turn behind the other.
            pl.when(warpgroup == 1)(self._turn)
            total, largest, weight = self._softmax(item, mine, first_query, start)
            row = plgpu.broadcasted_iota(jnp.int32, total.shape, 0, layout=plgpu.Layout.WGMMA)
            valid = row < self.told.query_sizes[item.batch] - first_query
            alive = largest > self._masked * self._scale / 2
            share = jnp.where(alive, 1 / weight, 0.0)
            valid &= along_rows(alive, total.shape)
            out[...] = jnp.where(valid, total * along_rows(share, total.shape), 0).astype(out.dtype)
            value = (largest + jnp.log2(weight)) * math.log(2)
            of_rows[...] = jnp.where(alive, value, -jnp.inf)

        plgpu.commit_smem()
        copy_out(out, out_ref, (item.batch, pl.ds(first_query, ROWS), item.head))
        to = logsumexp_ref.at[item.batch, item.head, pl.ds(first_query, ROWS)]
        plgpu.copy_smem_to_gmem(of_rows, to, commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.count * _ring.pieces(self.keys.rows)

    def _turn(self) -> None:
        """Let the other warpgroup have the tensor cores, and wait until it gives them back."""
        if self.config.turns:
            plgpu.barrier_arrive(self.turns)
            plgpu.barrier_wait(self.turns)

    def _give_turn(self, *, last: Array) -> None:
        """As `_turn`, but the warpgroup that is behind meets nobody at the end of an item.

        Were they to meet in the next item, the one ahead might wait for an item that is only
        posted when the one behind is done.
        """
        if self.config.turns:
            pl.when((self.block.warpgroup == 0) | ~last)(self._turn)

    @property
    def _scale(self) -> float:
        return self.config.signature.scale * LOG2E

    @property
    def _masked(self) -> float:
        # Finite, lest a row without a key in its first tile meets inf - inf; so low that the
        # next allowed score wipes out what it weighed; and still finite when scaled.
        return -1e38 / max(1.0, self._scale)

    def _softmax(self, item: Item, q: Ref, first_query: Array, start: Array) -> tuple:
        """Weighted sum of values [64, columns], largest scaled score [64], sum of weights [64]."""
        keys, values, products = self.keys, self.values, self.block.products
        pieces = _ring.pieces(keys.rows)
        count, full = item.count * pieces, item.full * pieces
        shape = (ROWS, keys.rows)

        sizes = self.told.sizes(item)

        def first_key(step: Array) -> Array:
            return self.block.queue.table.first_column(item, step, keys.rows)

        def allows(first_key: Array) -> Array:
            where = {"first_query": first_query, "first_key": first_key}
            allowed = self.told.allows(
                self.config, item, sizes, **where, shape=shape, by_key=False
            )
            column = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=plgpu.Layout.WGMMA)
            return allowed & (column < sizes[1] - first_key)

        def masked(scores: Array, allowed: Array) -> Array:
            return jnp.where(allowed, scores, self._masked)

        def weigh(scores: Array, largest: Array, weight: Array) -> tuple:
            new = jnp.maximum(largest, scores.max(axis=1) * self._scale)
            decay = jnp.exp2(largest - new)
            weights = jnp.exp2(scores * self._scale - along_rows(new, shape))
            return weights, new, weight * decay + weights.sum(axis=1), decay

        def first(accumulator: Ref) -> tuple:
            place = keys.receive(start)
            products.add(accumulator, q, keys.tiles.at[place].transpose((1, 0)))
            self._turn()
            scores = products.read(accumulator)
            keys.release(start)
            scores = lax.cond(
                full == 0,
                lambda x: masked(x, allows(first_key(jnp.int32(0)))),
                lambda x: x,
                scores,
            )
            weights, largest, weight, _ = weigh(scores, vector(-jnp.inf, ROWS), vector(0, ROWS))
            self._give_turn(last=count == 1)
            return weights.astype(q.dtype), largest, weight

        def step(i: Array, carry: tuple, *, total: Ref, partial: bool) -> tuple:
            weights, largest, weight = carry
            position = start + i
            begin = first_key(i) if partial else None
            place = keys.receive(position)

            def overlapped(accumulator: Ref) -> tuple:
                products.add(accumulator, q, keys.tiles.at[place].transpose((1, 0)))
                before = values.receive(position - 1)
                products.add(total, weights, values.tiles.at[before])
                # What the mask loads arrives while the products are on their way.
                allowed = allows(begin) if partial else None
                self._turn()
                scores = products.read(accumulator, pending=1)
                keys.release(position)
                return weigh(masked(scores, allowed) if partial else scores, largest, weight)

            carry = products.hold(overlapped, shape)
            # What a product reads from registers must be made while none is on its way, or
            # the compiler lets each wait for the one before.
            *carry, sofar = lax.optimization_barrier((*carry, products.read(total)))
            weights, largest, weight, decay = carry
            values.release(position - 1)
            products.write(total, sofar * along_rows(decay, sofar.shape))
            self._give_turn(last=i + 1 == count)
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
