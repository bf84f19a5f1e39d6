"""The backward pass, the same bits in each run: one kernel for dq, one for dk and dv.

Both compute the scores and their gradients anew, and each result is summed by one program in the
order of a list; nothing is added across programs. Persistent, as the forward pass is. Source of
the formulas: FlashAttention-2 (arXiv 2307.08691), algorithm 2.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._conditions import choose
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in, copy_out
from shapeexec.attention.backends.mosaic_gpu._launch import Block, Config, Told, launch
from shapeexec.attention.backends.mosaic_gpu._products import along_columns, along_rows
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

_PIECE = 64  # rows of a piece in the ring
_REGISTERS = (240, 24)  # of a thread that computes, and of one that moves memory


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the backward pass needs of each query, f32[B, N, whole tiles of queries].

    Attributes:
        logsumexp: Of scaled scores, in base 2; inf where a query attends to nothing, which makes
            every weight 0.
        delta: What is taken from each gradient of a weight.
    """

    logsumexp: Array
    delta: Array


jax.tree_util.register_dataclass(Rows)


def _shared_memory(config: Config) -> tuple[int, int]:
    """How many items, and pieces of a stream, there is room for."""
    widest = max(config.columns)
    return (2 if widest <= 128 else 1), (2 if widest <= 192 else 1)


@functools.partial(jax.jit, static_argnums=0)
def backward_of_queries(
    config: Config, told: Told, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> Array:
    """The gradient of the queries, from lists by query; 0 behind the valid length."""
    batch, _, heads, _ = q.shape
    key_columns, value_columns = config.columns
    slots, steps = _shared_memory(config)
    ring = functools.partial(_ring.scratch, steps, _PIECE, dtype=q.dtype, clears=True)
    tile = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    of_rows = plgpu.SMEM((slots, TILE), jnp.float32)
    (d_q,) = launch(
        config,
        functools.partial(_queries_kernel, config),
        {"told": told, "rows": rows, "q": q, "k": k, "v": v, "d_out": d_out},
        {"d_q": jax.ShapeDtypeStruct(q.shape, q.dtype)},
        {
            "queries": tile((slots, TILE, key_columns)),
            "d_outs": tile((slots, TILE, value_columns)),
            "of_rows": [of_rows, of_rows],
            # Weights and gradients of 0 times what lies behind the valid length may be NaN.
            "keys": ring(key_columns, vectors=told.column_dtypes(config, by_key=False)),
            "values": ring(value_columns),
        },
        table=lambda told: told.table(heads, 1, by_key=False),
        total=batch * heads * told.lists.counts.shape[2],
        slots=slots,
        copies=4,
        accumulators=[(ROWS, _PIECE), (ROWS, _PIECE), (ROWS, key_columns)],
    )
    return d_q


def _queries_kernel(
    config: Config,
    block: Block,
    *,
    told: Told,
    rows: Rows,
    q: Ref,
    k: Ref,
    v: Ref,
    d_out: Ref,
    d_q: Ref,
    queries: Ref,
    d_outs: Ref,
    of_rows: list[Ref],
    keys: dict[str, Ref],
    values: dict[str, Ref],
) -> None:
    streams = Stream(**keys), Stream(**values)
    elements = told.elements(config, by_key=False, columns=list(streams[0].vectors))
    queue, products = block.queue, block.products
    pieces = _ring.pieces(_PIECE)
    shape = (ROWS, _PIECE)

    def attend(item: Item, slot: Array, start: Array) -> Array:
        mine = pl.ds(block.warpgroup * ROWS, ROWS)
        first_query = item.row * TILE + block.warpgroup * ROWS
        layout = plgpu.Layout.WGMMA.reduce(1)
        logsumexp, delta = (plgpu.load(ref.at[slot, mine], layout=layout) for ref in of_rows)
        mask = elements.of_item(item, first_query, ROWS)

        def step(i: Array, _: None, *, total: Ref, partial: bool) -> None:
            key, value = (stream.receive(start + i) for stream in streams)
            key_tile, value_tile = streams[0].tiles.at[key], streams[1].tiles.at[value]

            def gradient(scores: Ref, d_weights: Ref) -> Array:
                products.add(scores, queries.at[slot, mine], key_tile.transpose((1, 0)))
                products.add(d_weights, d_outs.at[slot, mine], value_tile.transpose((1, 0)))
                score = products.read(scores, pending=1)
                if partial:
                    allowed = mask.allows(streams[0].begins[key], key, shape)
                    score = choose(allowed, score, config.masked)
                weight = jnp.exp2(score * config.scale - along_rows(logsumexp, shape))
                d_weight = products.read(d_weights)
                streams[1].release(start + i)
                return (weight * (d_weight - along_rows(delta, shape))).astype(q.dtype)

            products.add(total, products.hold(gradient, shape, shape), key_tile)
            products.wait()
            streams[0].release(start + i)

        def summed(total: Ref) -> Array:
            of = functools.partial(step, total=total)
            full, count = item.full * pieces, item.count * pieces
            lax.fori_loop(0, full, functools.partial(of, partial=False), None)
            lax.fori_loop(full, count, functools.partial(of, partial=True), None)
            return products.read(total)

        total = products.hold(summed, (ROWS, config.columns[0]))
        valid = item.query_size - first_query
        _hand_out(config, total, valid, queries.at[slot, mine])
        copy_out(queries.at[slot, mine], d_q, (item.batch, pl.ds(first_query, ROWS), item.head))
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.count * pieces

    def begin(item: Item, slot: Array) -> None:
        of_item = pl.ds(item.row * TILE, TILE)
        ready = queue.ready.at[slot]
        for ref, shared in ((q, queries), (d_out, d_outs)):
            copy_in(ref, (item.batch, of_item, item.head), shared.at[slot], ready)
        for ref, shared in zip((rows.logsumexp, rows.delta), of_rows, strict=True):
            at = ref.at[item.batch, item.head, of_item]
            plgpu.copy_gmem_to_smem(at, shared.at[slot], ready)

    def stream(item: Item, start: Array) -> Array:
        head = lax.div(item.head, jnp.int32(config.group))
        size = item.key_size
        columns = elements.sources(item)
        sources = [
            Source(ref, item.batch, head, size, vectors) for ref, vectors in ((k, columns), (v, []))
        ]

        def step(i: Array, _: None) -> None:
            first = queue.table.first_column(item, i, _PIECE)
            for one, source in zip(streams, sources, strict=True):
                one.send(source, first, start + i)

        lax.fori_loop(0, item.count * pieces, step, None)
        return start + item.count * pieces

    _run(block, streams, attend, begin, stream)


@functools.partial(jax.jit, static_argnums=0)
def backward_of_keys(
    config: Config, told: Told, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of keys and values, from lists by key; 0 behind the valid length.

    What the query heads of a group add to their key head is summed here, head by head.
    """
    batch, _, heads, _ = k.shape
    key_columns, value_columns = config.columns
    slots, steps = _shared_memory(config)
    ring = functools.partial(_ring.scratch, steps, _PIECE, dtype=q.dtype, clears=True, vectors=True)
    tile = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=WIDE)
    return launch(
        config,
        functools.partial(_keys_kernel, config),
        {"told": told, "rows": rows, "q": q, "k": k, "v": v, "d_out": d_out},
        {
            "d_k": jax.ShapeDtypeStruct(k.shape, k.dtype),
            "d_v": jax.ShapeDtypeStruct(v.shape, v.dtype),
        },
        {
            "keys": tile((slots, TILE, key_columns)),
            "values": tile((slots, TILE, value_columns)),
            "queries": ring(
                key_columns, vectors=[jnp.float32, *told.column_dtypes(config, by_key=True)]
            ),
            "d_outs": ring(value_columns, vectors=[jnp.float32]),
        },
        table=lambda told: told.table(heads, config.group, by_key=True),
        total=batch * heads * told.lists.counts.shape[2],
        slots=slots,
        copies=2,
        accumulators=[(ROWS, _PIECE), (ROWS, _PIECE), (ROWS, key_columns), (ROWS, value_columns)],
    )


def _keys_kernel(
    config: Config,
    block: Block,
    *,
    told: Told,
    rows: Rows,
    q: Ref,
    k: Ref,
    v: Ref,
    d_out: Ref,
    d_k: Ref,
    d_v: Ref,
    keys: Ref,
    values: Ref,
    queries: dict[str, Ref],
    d_outs: dict[str, Ref],
) -> None:
    streams = Stream(**queries), Stream(**d_outs)
    elements = told.elements(config, by_key=True, columns=list(streams[0].vectors[1:]))
    queue, products = block.queue, block.products
    shape = (ROWS, _PIECE)
    pieces = _ring.pieces(_PIECE)

    def each_head(item: Item, position: Array, body: Callable) -> Array:
        """body(item of one query head, position) for each head of a key head's group."""
        if config.group == 1:
            return body(item, position)

        def step(i: Array, position: Array) -> Array:
            head = item.head * config.group + i
            full, count = queue.table.extent(item.batch, head, item.row)
            return body(item._replace(head=head, full=full, count=count), position)

        return lax.fori_loop(0, config.group, step, position)

    def attend(item: Item, slot: Array, start: Array) -> Array:
        mine = pl.ds(block.warpgroup * ROWS, ROWS)
        first_key = item.row * TILE + block.warpgroup * ROWS
        layout = plgpu.Layout.WGMMA.reduce(0)

        def of_head(sums: tuple[Ref, Ref], item: Item, start: Array) -> Array:
            mask = elements.of_item(item, first_key, ROWS)

            def step(i: Array, _: None, *, partial: bool) -> None:
                query, d_out = (stream.receive(start + i) for stream in streams)
                query_tile, d_out_tile = streams[0].tiles.at[query], streams[1].tiles.at[d_out]

                def gradients(scores: Ref, d_weights: Ref) -> tuple[Array, Array]:
                    products.add(scores, keys.at[slot, mine], query_tile.transpose((1, 0)))
                    score = products.read(scores)
                    if partial:
                        allowed = mask.allows(streams[0].begins[query], query, shape)
                        score = choose(allowed, score, config.masked)
                    products.add(d_weights, values.at[slot, mine], d_out_tile.transpose((1, 0)))
                    logsumexp = plgpu.load(streams[0].vectors[0].at[query], layout=layout)
                    exponent = score * config.scale - along_columns(logsumexp, shape)
                    weight = jnp.exp2(exponent)
                    delta = plgpu.load(streams[1].vectors[0].at[d_out], layout=layout)
                    d_score = weight * (products.read(d_weights) - along_columns(delta, shape))
                    return weight.astype(q.dtype), d_score.astype(q.dtype)

                weight, d_score = products.hold(gradients, shape, shape)
                products.add(sums[1], weight, d_out_tile)
                products.add(sums[0], d_score, query_tile)
                products.wait()
                for stream in streams:
                    stream.release(start + i)

            full, count = item.full * pieces, item.count * pieces
            lax.fori_loop(0, full, functools.partial(step, partial=False), None)
            lax.fori_loop(full, count, functools.partial(step, partial=True), None)
            return start + count

        def summed(*sums: Ref) -> tuple:
            end = each_head(item, start, functools.partial(of_head, sums))
            return end, *(products.read(one) for one in sums)

        end, key_sum, value_sum = products.hold(
            summed, *((ROWS, columns) for columns in config.columns)
        )
        valid = item.key_size - first_key
        _hand_out(config, key_sum, valid, keys.at[slot, mine])
        _hand_out(None, value_sum, valid, values.at[slot, mine])
        at = (item.batch, pl.ds(first_key, ROWS), item.head)
        copy_out(keys.at[slot, mine], d_k, at)
        copy_out(values.at[slot, mine], d_v, at)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return end

    def begin(item: Item, slot: Array) -> None:
        at = (item.batch, pl.ds(item.row * TILE, TILE), item.head)
        for ref, shared in ((k, keys), (v, values)):
            copy_in(ref, at, shared.at[slot], queue.ready.at[slot])

    def stream(item: Item, start: Array) -> Array:
        size = item.query_size

        def of_head(item: Item, start: Array) -> Array:
            of_rows = (ref.at[item.batch, item.head] for ref in (rows.logsumexp, rows.delta))
            logsumexp, delta = of_rows
            sources = [
                Source(ref, item.batch, item.head, size, vectors)
                for ref, vectors in (
                    (q, [logsumexp, *elements.sources(item)]),
                    (d_out, [delta]),
                )
            ]

            def step(i: Array, _: None) -> None:
                first = queue.table.first_column(item, i, _PIECE)
                for one, source in zip(streams, sources, strict=True):
                    one.send(source, first, start + i)

            lax.fori_loop(0, item.count * pieces, step, None)
            return start + item.count * pieces

        return each_head(item, start, of_head)

    _run(block, streams, attend, begin, stream)


def _run(
    block: Block, streams: tuple[Stream, ...], attend: Callable, begin: Callable, stream: Callable
) -> None:
    """Let each warpgroup do its part."""

    @pl.when(block.warpgroup < WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(_REGISTERS[0], action="increase")
        block.queue.consume(attend)
        plgpu.wait_smem_to_gmem(0)

    @pl.when(block.warpgroup == WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(_REGISTERS[1], action="decrease")
        end = block.queue.produce(begin, stream)
        for one in streams:
            one.drain(end)


def _hand_out(config: Config | None, total: Array, valid: Array, shared: Ref) -> None:
    """A sum into shared memory, in the operands' dtype; 0 in the rows from `valid` on."""
    scaled = total if config is None else total * config.signature.scale
    row = plgpu.broadcasted_iota(jnp.int32, total.shape, 0, layout=plgpu.Layout.WGMMA)
    shared[...] = jnp.where(row < valid, scaled, 0.0).astype(shared.dtype)
    plgpu.commit_smem()
