"""The kernel of the backward pass for keys and values, or for all three: see `_of_keys`."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _into_queries
from shapeexec.attention.backends.mosaic_gpu._conditions import choose
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in_parts, copy_out
from shapeexec.attention.backends.mosaic_gpu._d_scores import IntoScores, Layout
from shapeexec.attention.backends.mosaic_gpu._elements import Elements, ItemElements
from shapeexec.attention.backends.mosaic_gpu._gradients import (
    PIECE,
    REGISTERS,
    Rows,
    store_sum,
)
from shapeexec.attention.backends.mosaic_gpu._into_queries import (
    IntoQueries,
    Made,
    NotIntoQueries,
)
from shapeexec.attention.backends.mosaic_gpu._launch import Block, run
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import (
    along_columns,
    in_loop,
    load,
)
from shapeexec.attention.backends.mosaic_gpu._ring import Owed, Source, Stream
from shapeexec.attention.backends.mosaic_gpu._schedule import LookUp
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, Item
from shapeexec.attention.backends.mosaic_gpu._totals import Summand

SHAPE = (ROWS, PIECE)  # of scores
_MOST_HELD = 64  # columns of keys or values, for which there are registers, too


def run_of_keys(
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
    """Run a program; the first two arguments and those by name are as `_of_keys` has them."""
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
        at, valid = (item.batch, first, item.head), self._valid(item)
        ready, (keys, values) = self.block.queue.ready.at[slot], self._operands(slot)
        copy_in_parts(self.v, at, values, ready, valid, parts=self.config.parts)
        self.into.copy_keys(self.k, at, keys, ready, valid)

    def stream(self, item: Item, slot: Array, start: Array, look_up: LookUp) -> tuple[Array, Any]:
        """Send the queries of each head; see `Kernel.stream`."""
        place = self._operands(slot)[0], self.block.queue.ready.at[slot], self._valid(item)
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
                due = due.only_if(lax.rem(of_head.head + 1, i32.constant(group)) == 0)
            end, last, following = self._send_head(of_head, begins, due)
            self._settle(last)
            return end, following

        return self._each_head(item, (start, look_up.before), stream_head)

    def attend(self, item: Item, slot: Array, start: Array) -> Array:
        """Compute an item whose queries begin at `start`; return where the next item's begin."""
        products, warpgroup = self.block.products, self.block.warpgroup
        mine = pl.ds(warpgroup * ROWS, ROWS)
        first_key = self.block.first_row(item)

        def summed(*sums: Ref) -> tuple[Any, ...]:
            key_sum = None if self.d_k is None else sums[0]
            value_sum = None if self.d_v is None else sums[-1]
            of_head = functools.partial(self._sum_head, slot, first_key, (key_sum, value_sum))
            return self._each_head(item, start, of_head), *map(products.read, sums)

        every = zip((self.d_k, self.d_v), (self.keys, self.values), strict=True)
        made = [
            (ref, products.part(shared, slot, mine)) for ref, shared in every if ref is not None
        ]
        end, *totals = products.hold(summed, *(shared.shape for _, shared in made))
        self.into.leave()
        item = self.block.queue.posted(slot)
        first_key = self.block.first_row(item)
        valid = item.key_length - first_key
        at = (item.batch, pl.ds(first_key, ROWS), item.head)
        for total, (ref, shared) in zip(totals, made, strict=True):
            scale = self.config.signature.scale if ref is self.d_k else 1.0
            store_sum(products, total, valid, shared, scale=scale)
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

    def _valid(self, item: Item) -> Array | None:
        """The number of an item's keys that are valid; it may exceed a tile's. None: all are."""
        return item.key_length - item.row * TILE if self.config.overhangs else None

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
            operands = tuple(map(products.held, self._operands(slot, mine)))

        def step(i: Array, before: Array, *, partial: bool) -> Array:
            """Process piece i; return where it begins. `before` is where piece i - 1 begins."""
            position = start + i
            places = self.queries.receive(position), self.d_outs.receive(position)
            here = in_loop(slot, before)
            key, value = operands or self._operands(here, mine)
            piece = _Piece(rule, partial, places, key, value)
            gradients = functools.partial(self._gradients, piece, value_sum)
            shapes = [SHAPE] if key_sum is None else [SHAPE, SHAPE]
            d_score = products.hold(gradients, *shapes)
            begins = self.queries.begin(places[0])
            if key_sum is not None:
                query = self.queries.tile(places[0])
                add_to_d_k = functools.partial(products.add, key_sum, d_score, query)
                this, last = (position, begins), (position - 1, before)
                pieces = Summand(item, *this, i >= 0), Summand(item, *last, i > 0)
                made = Made(d_score, item.key_length - first_key, *pieces)
                self.into.take(made, self._operands(here)[0], add_to_d_k)
            products.wait()
            self.queries.release(position)
            self.d_outs.release(position)
            return begins

        self.into.open(item)
        last, count = rule.each_piece(step, i32.constant(0), rows=PIECE), item.pieces(PIECE)
        summand = Summand(item, start + count - 1, last, count > 0)
        self.into.close(summand, self._operands(slot)[0])
        return start + count

    def _operands(self, slot: Array, rows: Any = None) -> tuple[Ref, Ref]:
        """The keys and values of a slot, or some of their rows, in shared memory."""
        part = self.block.products.part
        return part(self.keys, slot, rows), part(self.values, slot, rows)

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
        query, d_out = self.queries.tile(place), self.d_outs.tile(place_of_d_out)
        loaded = functools.partial(load, of="columns", where="shared")

        products.add(scores, piece.key, query.transpose((1, 0)))
        if d_weights is not None:
            addend = loaded(self.d_outs.vectors[0].at[place_of_d_out])
            products.write(d_weights, along_columns(addend, SHAPE))
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
        allowed = rule.allows(self.queries.begin(place), place, SHAPE)
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
