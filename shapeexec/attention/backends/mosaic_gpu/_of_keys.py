"""The backward pass for keys and values, or for all three: a persistent kernel over lists by key.

Each of two warpgroups sums dk and dv of 64 keys in registers, or one of the two if heads are wide,
while queries pass by, head after head of the group. Scores are made with keys as rows, so that
weights and their gradients are multiplied from registers. Code shared with the kernel for queries
is in `_gradients`.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _d_scores, _into_queries, _ring, _totals
from shapeexec.attention.backends.mosaic_gpu._conditions import choose
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in_parts, copy_out
from shapeexec.attention.backends.mosaic_gpu._d_scores import IntoScores, Layout
from shapeexec.attention.backends.mosaic_gpu._elements import Elements, ItemElements
from shapeexec.attention.backends.mosaic_gpu._gradients import (
    PIECE,
    REGISTERS,
    Rows,
    room,
    store_sum,
)
from shapeexec.attention.backends.mosaic_gpu._into_queries import (
    IntoQueries,
    NotIntoQueries,
)
from shapeexec.attention.backends.mosaic_gpu._launch import Block, launch, run
from shapeexec.attention.backends.mosaic_gpu._products import (
    along_columns,
    held,
    in_loop,
    load,
)
from shapeexec.attention.backends.mosaic_gpu._ring import Owed, Source, Stream
from shapeexec.attention.backends.mosaic_gpu._schedule import LookUp
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WIDE, Item, tiles_of
from shapeexec.attention.backends.mosaic_gpu._totals import Summand

_SHAPE = (ROWS, PIECE)
_MOST_COLUMNS = 256  # of dk and dv together, whose sums fit into registers
_MOST_HELD = 64  # columns of keys or values, which fit there, too


@functools.partial(jax.jit, static_argnums=0)
def backward_of_keys(
    config: Config, sparsity: Sparsity, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of keys and values, from lists by key; 0 behind the valid length.

    The contributions of a group's query heads to their key head are summed here, head by head.
    """
    inputs = {"q": q, "k": k, "v": v, "d_out": d_out}
    launched = functools.partial(_launched, config, sparsity, rows=rows, inputs=inputs)
    if sum(config.columns) <= _MOST_COLUMNS:
        return launched(outputs={"d_k": k, "d_v": v})
    # Else the compiler spills the sums, and waits for each product by itself: to make the scores
    # once more takes less.
    return [*launched(outputs={"d_k": k}), *launched(outputs={"d_v": v})]


@functools.partial(jax.jit, static_argnums=0)
def backward_at_once(
    config: Config, sparsity: Sparsity, *, rows: Rows, q: Array, k: Array, v: Array, d_out: Array
) -> list[Array]:
    """The gradients of queries, keys and values, from lists by key; 0 behind the valid length.

    If dq `crosses_programs`, it differs from run to run in the last bits.
    """
    outputs = _totals.outputs(config, q, key_tiles=tiles_of(k.shape[1]))
    d_k, d_v, total = _launched(
        config,
        sparsity,
        rows=rows,
        inputs={"q": q, "k": k, "v": v, "d_out": d_out},
        outputs={"d_k": k, "d_v": v, **outputs},
        updated=_totals.updated(config, q),
        into=_into_queries.scratch(config, q.dtype),
    )
    d_q = _totals.rounded(config, total, q) if _totals.crosses_programs(config) else total
    return [d_q, d_k, d_v]


@functools.partial(jax.jit, static_argnums=(0, 1))
def backward_into_scores(
    config: Config,
    layout: Layout,
    sparsity: Sparsity,
    *,
    rows: Rows,
    updated: dict[str, Array],
    **inputs: Array,
) -> list[Array]:
    """The gradients of scores, keys and values of a span of heads, from lists by key.

    Args:
        config: The static part of the call.
        layout: That of "d_scores".
        sparsity: The tiles of the span, in lists by key.
        rows: The numbers per query.
        updated: "d_scores" (see `_d_scores`), "d_k" and "d_v": other heads are left as they are.
        **inputs: "q", "k", "v" and "d_out".

    Returns:
        The three arrays, in the order of their names.
    """
    d_k, d_scores, d_v = _launched(
        config,
        sparsity,
        rows=rows,
        inputs=inputs,
        outputs={},
        updated=updated,
        into=_d_scores.scratch(inputs["k"].dtype),
        layout=layout,
    )
    return [d_scores, d_k, d_v]


def _launched(
    config: Config,
    sparsity: Sparsity,
    *,
    rows: Rows,
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    updated: dict[str, Array] | None = None,
    into: dict[str, Any] | None = None,
    layout: Layout | None = None,
) -> list[Array]:
    k = inputs["k"]
    key_columns, value_columns = config.columns
    adds_up = into is not None and layout is None
    slots, steps = _totals.room(config) if adds_up else room(config)
    scratch = _scratch(config, sparsity, rows=rows, dtype=k.dtype, slots=slots, steps=steps)
    return launch(
        config,
        functools.partial(_kernel, config, layout),
        inputs={"sparsity": sparsity, "rows": rows, **inputs},
        outputs={name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in outputs.items()},
        updated=updated,
        scratch={**scratch, **({} if into is None else {"into": into})},
        side="key",
        batch=k.shape[0],
        together=tiles_of(k.shape[1]) if adds_up and _totals.is_held(config) else 1,
        slots=slots,
        copies=1 + config.parts,
        accumulators=[_SHAPE, _SHAPE, _SHAPE, (ROWS, key_columns), (ROWS, value_columns)],
    )


def _scratch(
    config: Config, sparsity: Sparsity, *, rows: Rows, dtype: Any, slots: int, steps: int
) -> dict[str, Any]:
    key_columns, value_columns = config.columns
    ring = functools.partial(_ring.scratch, steps, rows=PIECE, dtype=dtype, clears=True)
    tile = functools.partial(plgpu.SMEM, dtype=dtype, transforms=WIDE)
    of_weights = [x.dtype for x in rows.of_weights]
    of_columns = sparsity.column_dtypes(config, side="key")
    return {
        "keys": tile((slots, TILE, key_columns)),
        "values": tile((slots, TILE, value_columns)),
        "queries": ring(columns=key_columns, vectors=[*of_weights, *of_columns]),
        "d_outs": ring(columns=value_columns, vectors=[jnp.float32]),
    }


def _kernel(
    config: Config,
    layout: Layout | None,
    block: Block,
    *,
    sparsity: Sparsity,
    queries: dict[str, Any],
    d_outs: dict[str, Any],
    total: Ref | None = None,
    d_scores: Ref | None = None,
    into: dict[str, Any] | None = None,
    **refs: Any,
) -> None:
    streams = (
        Stream(**queries, products=block.products),
        Stream(**d_outs, products=block.products),
    )
    of_columns = streams[0].vectors[len(refs["rows"].of_weights) :]
    elements = sparsity.elements(config, block.products, side="key", columns=of_columns)
    d_q = NotIntoQueries()
    if layout is not None:
        d_q = IntoScores(config, layout, block, d_scores, **(into or {}))
    elif into is not None:
        d_q = _into_queries.into_queries(config, block, total=total, scratch=into)
    kernel = _Kernel(config, block, elements, *streams, into=d_q, **refs)
    run(block, streams, kernel=kernel, registers=REGISTERS)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and scratch in shared memory."""

    config: Config
    block: Block
    elements: Elements
    queries: Stream
    d_outs: Stream
    rows: Rows
    q: Ref
    k: Ref
    v: Ref
    d_out: Ref
    keys: Ref
    values: Ref
    into: IntoQueries | NotIntoQueries
    d_k: Ref | None = None  # None: another kernel makes it
    d_v: Ref | None = None

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies of an item's keys and values."""
        first = item.row * TILE
        at, valid = (item.batch, first, item.head), item.key_length - first
        ready = self.block.queue.ready.at[slot]
        copy_in_parts(self.v, at, self.values.at[slot], ready, valid, parts=self.config.parts)
        self.into.copy_keys(self.k, at, self.keys.at[slot], ready, valid)

    def stream(self, item: Item, slot: Array, start: Array, look_up: LookUp) -> tuple[Array, Any]:
        """Send the queries of each head; see `Kernel.stream`."""
        valid = item.key_length - item.row * TILE
        place = self.keys.at[slot], self.block.queue.ready.at[slot], valid
        if self.config.signature.group == 1 and self.block.queue.table.fits(self._room):
            end, last, _ = self._send_head(item, start, None)
            following = look_up()
            self.into.settle_keys(*place)
            self._settle(last)
            return end, following
        self.into.settle_keys(*place)

        def stream_head(of_head: Item, carry: tuple[Array, Any]) -> tuple[Array, Any]:
            begins, known = carry
            due = dataclasses.replace(look_up, before=known)
            if (group := self.config.signature.group) > 1:
                due = due.only_if(lax.rem(of_head.head + 1, jnp.int32(group)) == 0)
            end, last, following = self._send_head(of_head, begins, due)
            self._settle(last)
            return end, following

        return self._each_head(item, (start, look_up.before), stream_head)

    def attend(self, item: Item, slot: Array, start: Array) -> Array:
        """Compute an item whose queries begin at `start`; return where the next item's begin."""
        products, warpgroup = self.block.products, self.block.warpgroup
        mine = pl.ds(warpgroup * ROWS, ROWS)
        first_key = item.row * TILE + warpgroup * ROWS

        def summed(*sums: Ref) -> tuple[Any, ...]:
            key_sum = None if self.d_k is None else sums[0]
            value_sum = None if self.d_v is None else sums[-1]
            of_head = functools.partial(self._sum_head, slot, first_key, (key_sum, value_sum))
            return self._each_head(item, start, of_head), *map(products.read, sums)

        every = zip((self.d_k, self.d_v), (self.keys, self.values), strict=True)
        made = [(ref, shared.at[slot, mine]) for ref, shared in every if ref is not None]
        end, *totals = products.hold(summed, *(shared.shape for _, shared in made))
        self.into.leave()
        valid = item.key_length - first_key
        at = (item.batch, pl.ds(first_key, ROWS), item.head)
        for total, (ref, shared) in zip(totals, made, strict=True):
            scale = self.config.signature.scale if ref is self.d_k else 1.0
            store_sum(total, valid, shared, scale=scale)
        for ref, shared in made:
            copy_out(shared, ref, at)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return end

    def _each_head(self, item: Item, carry: Any, body: Callable[[Item, Any], Any]) -> Any:
        """Run body(item of one query head, carry) for each head of a key head's group."""
        group = self.config.signature.group
        if group == 1:
            return body(item, carry)

        def step(i: Array, carry: Any) -> Any:
            head = item.head * group + i
            of_head = self.block.queue.table.of_head(item._replace(head=head), head)
            return body(of_head, carry)

        return lax.fori_loop(0, group, step, carry)

    @property
    def _room(self) -> int:
        return self.queries.steps * PIECE

    def _settle(self, last: tuple[Owed, Owed]) -> None:
        self.queries.settle(last[0])
        self.d_outs.settle(last[1])

    def _send_head(
        self, item: Item, start: Array, look_up: LookUp | None
    ) -> tuple[Array, tuple[Owed, Owed], Any]:
        """Send a head's queries, and look up the next item, if that is wanted.

        Returns:
            Where the next queries begin, what is to be settled, and what was looked up.
        """
        ours = functools.partial(Source, batch=item.batch, head=item.head, length=item.query_length)
        *of_weights, addend = (ref.at[item.batch, item.head] for ref in jax.tree.leaves(self.rows))
        vectors = [*of_weights, *self.elements.sources(item)]
        query = ours(self.q, vectors=vectors).located()
        d_out = ours(self.d_out, vectors=[addend]).located()

        def step(i: Array, _: tuple[Owed, Owed]) -> tuple[Owed, Owed]:
            first = self.block.queue.table.first_column(item, i, PIECE)
            of_query = self.queries.send_early(query, first, start + i)
            return of_query, self.d_outs.send_early(d_out, first, start + i)

        nothing = self.queries.nothing_owed(), self.d_outs.nothing_owed()
        count, following = item.pieces(PIECE), None
        if look_up is None:
            last = lax.fori_loop(0, count, step, nothing)
        else:
            last, following = look_up.late(step, nothing, count)
        return start + count, last, following

    def _sum_head(
        self, slot: Array, first_key: Array, sums: "_Sums", item: Item, start: Array
    ) -> Array:
        """Add the sums over the queries of one head to `sums`; return where the next head's begin.

        The loop is pipelined for dq: step i computes the gradients of the scores of piece i, and
        adds to dq the product for piece i - 1, whose gradients both warpgroups have shared by then.
        So each step passes on where its queries begin, and the last piece is added after the loop.
        """
        products, (key_sum, value_sum) = self.block.products, sums
        rule, operands = self.elements.of_item(item, first_key, ROWS), None
        mine = pl.ds(self.block.warpgroup * ROWS, ROWS)
        if max(self.config.columns) <= _MOST_HELD:
            operands = held(self.keys.at[slot, mine]), held(self.values.at[slot, mine])

        def step(i: Array, before: Array, *, partial: bool) -> Array:
            """Process piece i; return where it begins. `before` is where piece i - 1 begins."""
            position = start + i
            places = self.queries.receive(position), self.d_outs.receive(position)
            here = in_loop(slot, before)
            key, value = operands or (self.keys.at[here, mine], self.values.at[here, mine])
            piece = _Piece(rule, partial, places, key, value)
            gradients = functools.partial(self._gradients, piece, value_sum)
            shapes = [_SHAPE] if key_sum is None else [_SHAPE, _SHAPE]
            d_score = products.hold(gradients, *shapes)
            begins = self.queries.begins[places[0]]
            if key_sum is not None:
                query = self.queries.tiles.at[places[0]]
                add_to_d_k = functools.partial(products.add, key_sum, d_score, query)
                this, last = (position, begins), (position - 1, before)
                pieces = Summand(item, *this, i >= 0), Summand(item, *last, i > 0)
                valid = item.key_length - first_key
                self.into.take(d_score, valid, pieces, self.keys.at[here], add_to_d_k)
            products.wait()
            self.queries.release(position)
            self.d_outs.release(position)
            return begins

        self.into.open(item)
        last, count = rule.each_piece(step, jnp.int32(0), rows=PIECE), item.pieces(PIECE)
        self.into.close(Summand(item, start + count - 1, last, count > 0), self.keys.at[slot])
        return start + count

    def _gradients(
        self, piece: "_Piece", value_sum: Ref | None, scores: Ref, d_weights: Ref | None = None
    ) -> Array | None:
        """The gradients of a piece's scores, [keys, queries]; starts the product that adds to dv.

        That one runs while these gradients are computed. The gradients of the weights are added up
        from `Rows.addend` on, not from 0: it is loaded while the scores are made, and takes no
        addition.

        Args:
            piece: The piece.
            value_sum: The accumulator of dv; None: another kernel makes it.
            scores: The accumulator of the scores.
            d_weights: That of the gradients of the weights; None: another kernel makes dk, and no
                gradients are returned.
        """
        products, form = self.block.products, self.config.weights
        place, place_of_d_out = piece.places
        query, d_out = self.queries.tiles.at[place], self.d_outs.tiles.at[place_of_d_out]
        loaded = functools.partial(load, of="columns", where="shared")

        products.add(scores, piece.key, query.transpose((1, 0)))
        if d_weights is not None:
            addend = loaded(self.d_outs.vectors[0].at[place_of_d_out])
            products.write(d_weights, along_columns(addend, _SHAPE))
        # To save registers, the mask is applied before the next product starts.
        score = self._masked(piece, products.read(scores))
        if d_weights is not None:
            products.add(d_weights, piece.value, d_out.transpose((1, 0)))
        vectors = self.queries.vectors[: len(self.rows.of_weights)]
        weight = form.weigh(score, along_columns, *(loaded(x.at[place]) for x in vectors))
        if value_sum is not None:
            products.add(value_sum, weight.astype(query.dtype), d_out)
        if d_weights is None:
            return None
        d_weight = products.read(d_weights, pending=0 if value_sum is None else 1)
        return (weight * d_weight).astype(query.dtype)

    def _masked(self, piece: "_Piece", scores: Array) -> Array:
        """Scores with mask and bias; full tiles need no mask."""
        place, rule = piece.places[0], piece.rule
        biased = rule.biased(self.queries.begins, place, scores)
        if not piece.is_partial:
            return biased
        allowed = rule.allows(self.queries.begins[place], place, _SHAPE)
        return choose(allowed, biased, self.config.weights.masked)


_Sums = tuple[Ref | None, Ref | None]
"""The accumulators of dk and dv; None: another kernel makes it."""


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A piece of one head's queries, in the step that computes the gradients of its scores.

    Attributes:
        rule: Mask and bias for this warpgroup's keys.
        is_partial: Whether the mask may forbid some of its pairs.
        places: Its places in the rings of queries and of gradients of the output.
        key, value: The keys and values, [64, columns] each, in registers or in shared memory.
    """

    rule: ItemElements
    is_partial: bool
    places: tuple[Array, Array]
    key: Array | Ref
    value: Array | Ref
