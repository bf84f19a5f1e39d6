"""The forward pass: a persistent flash attention over lists of tiles, for Hopper.

Each program has two warpgroups that compute 64 queries each and one that moves memory; where there
are few query tiles one of the two rests, and another program computes its queries. Per query tile
the listed key tiles are streamed through a ring in shared memory. The scores of a piece are
computed while the weights of the piece before are multiplied by their values (FlashAttention-3,
arXiv 2407.08608, section 3.2). It has no dropout and takes no f32.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
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
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _ring
from shapeexec.attention.backends.mosaic_gpu._branches import when
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._copies import copy_in_parts, copy_out
from shapeexec.attention.backends.mosaic_gpu._elements import Elements, ItemElements
from shapeexec.attention.backends.mosaic_gpu._launch import Block, launch, run
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._pieces import MOST_IN_RINGS, pieces
from shapeexec.attention.backends.mosaic_gpu._products import along_rows, positions, vector
from shapeexec.attention.backends.mosaic_gpu._ring import Owed, Source, Stream
from shapeexec.attention.backends.mosaic_gpu._schedule import LookUp
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import ROWS, TILE, WARPGROUPS, Item
from shapeexec.attention.backends.mosaic_gpu._weights import add

_MOST_HELD = 64  # columns of keys or values: with more it was slower to hold queries
_REGISTERS = (232, 40)  # for a thread that computes, and for one that moves memory


@functools.partial(jax.jit, static_argnums=0)
def forward(config: Config, sparsity: Sparsity, *, q: Array, k: Array, v: Array) -> list[Array]:
    """The output [B, T, N, V], and `Weights.statistics`, f32[B, N, whole tiles of queries] each.

    Behind a valid length the output is 0 and the statistics are unspecified.
    """
    batch, queries, heads, _ = q.shape
    widest = max(config.columns)
    key_rows, steps = pieces(config)
    slots = 2 if widest <= 192 else 1
    key_columns, value_columns = config.columns
    ring = functools.partial(_ring.scratch, steps, rows=key_rows, dtype=q.dtype)
    tile = functools.partial(Shared, dtype=q.dtype, order=WIDE)
    vectors = sparsity.column_dtypes(config, side="query")
    of_rows = jax.ShapeDtypeStruct((batch, heads, whole_tiles(queries, TILE)), jnp.float32)
    statistics = range(len(config.weights.empty_statistics))
    return launch(
        config,
        functools.partial(_kernel, config),
        inputs={"sparsity": sparsity, "q": q, "k": k, "v": v},
        outputs={
            "out": jax.ShapeDtypeStruct((batch, queries, heads, v.shape[3]), q.dtype),
            **{f"statistics_{i}": of_rows for i in statistics},
        },
        scratch={
            "queries": tile((slots, TILE, key_columns)),
            # The output reuses the queries' memory if it is as wide.
            "outs": [] if value_columns == key_columns else [tile((TILE, value_columns))],
            "keys": ring(columns=key_columns, vectors=vectors, tells=True),
            # 0 * padding may be NaN, so clear values behind the valid length.
            "values": ring(columns=value_columns, clears=config.overhangs),
            "of_rows": [Shared((WARPGROUPS, ROWS), jnp.float32) for _ in statistics],
        },
        side="query",
        batch=batch,
        slots=slots,
        copies=config.parts,
        accumulators=[(ROWS, key_rows), (ROWS, value_columns)],
        halves=True,
    )


def _kernel(
    config: Config,
    block: Block,
    *,
    sparsity: Sparsity,
    keys: dict[str, Ref],
    values: dict[str, Ref],
    q: Ref,
    k: Ref,
    v: Ref,
    out: Ref,
    queries: Ref,
    outs: list[Ref],
    of_rows: list[Ref],
    **statistics: Ref,
) -> None:
    streams = (
        Stream(**keys, products=block.products),
        Stream(**values, products=block.products),
    )
    elements = sparsity.elements(config, block.products, side="query", columns=streams[0].vectors)
    results = (out, list(statistics.values()))
    kernel = _Kernel(config, block, elements, *streams, q, k, v, *results, queries, outs, of_rows)
    run(block, streams, kernel=kernel, registers=_REGISTERS, skip=kernel.skip)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and scratch in shared memory."""

    config: Config
    block: Block
    elements: Elements
    keys: Stream
    values: Stream
    q: Ref
    k: Ref
    v: Ref
    out: Ref
    statistics: list[Ref]
    queries: Ref
    outs: list[Ref]
    of_rows: list[Ref]

    @property
    def is_backwards(self) -> bool:
        """Whether an item's pieces come last to first, so that only the first needs the mask.

        Other tiles are partial only for the rows behind the valid length of queries. Their mask is
        left out, for nobody reads the results of those.
        """
        return self.keys.rows == TILE and self.block.queue.table.lists.end_in_one

    @property
    def holds_queries(self) -> bool:
        """Whether products read queries from registers; in causal masks that was slower."""
        is_narrow = max(self.config.columns) <= _MOST_HELD
        return is_narrow and (self.elements.mask_nothing or not self.is_backwards)

    def begin(self, item: Item, slot: Array) -> None:
        """Start the copies of an item's queries."""
        shared = self.block.products.part(self.queries, slot)
        ready = self.block.queue.ready.at[slot]
        at = (item.batch, item.row * TILE, item.head)
        valid = None
        if self.config.signature.is_ragged:  # nobody reads queries without a key
            valid = i32.where(item.count > 0, item.query_length - item.row * TILE, 0)
        copy_in_parts(self.q, at, shared, ready, valid, parts=self.config.parts)

    def stream(self, item: Item, slot: Array, start: Array, look_up: LookUp) -> tuple[Array, Any]:
        """Send an item's keys and values; see `Kernel.stream`."""
        del slot
        head = lax.div(item.head, i32.constant(self.config.signature.group))
        length = item.key_length
        columns = self.elements.sources(item)
        key, value = (
            Source(ref, item.batch, head, length, vectors).located()
            for ref, vectors in ((self.k, columns), (self.v, []))
        )

        def step(i: Array, before: Owed) -> Owed:
            place = count - 1 - i if self.is_backwards else i
            first = self.block.queue.table.first_column(item, place, self.keys.rows)
            self.keys.send(key, first, start + i)
            owed = self.values.send_early(value, first, start + i)
            if self.is_backwards:  # the first piece may need clearing
                self.values.settle(before)
            return owed

        count, nothing = item.pieces(self.keys.rows), self.values.nothing_owed()
        last, following = self._send(step, nothing, count, look_up)
        self.values.settle(last)
        return start + count, following

    def _send(
        self, step: Callable[[Array, Owed], Owed], nothing: Owed, count: Array, look_up: LookUp
    ) -> tuple[Owed, Any]:
        """Send pieces 0 to `count`, and look up the next item when that delays them least."""
        room = self.keys.steps * self.keys.rows
        if self.block.queue.table.fits(room):
            return lax.fori_loop(0, count, step, nothing), look_up()
        if room < MOST_IN_RINGS:
            # As many as the rings hold, so that there is work for as long as it takes.
            first = i32.minimum(count, self.keys.steps)
            return look_up.amid(step, nothing, first=first, count=count)
        following = look_up()
        return lax.fori_loop(0, count, step, nothing), following

    def attend(self, item: Item, slot: Array, start: Array) -> Array:
        """Compute an item whose keys begin at ring position `start`; return the next item's."""
        warpgroup = self.block.warpgroup
        rows = pl.ds(warpgroup * ROWS, ROWS)
        mine = self.block.products.part(self.queries, slot, rows)
        out = self.outs[0].at[rows] if self.outs else mine
        first_query = self.block.first_row(item)
        of_rows = [ref.at[warpgroup] for ref in self.of_rows]

        def of_none() -> None:
            self.block.products.clear(out, i32.constant(0))
            for ref, value in zip(of_rows, self.config.weights.empty_statistics, strict=True):
                ref[...] = vector(value, ROWS)

        def of_some() -> None:
            sums = _ItemSoftmax.of(self, item, mine, first_query, start).run()
            self._store(sums, self.block.queue.posted(slot), out, of_rows)

        if self.block.queue.table.may_be_empty:
            when(item.count == 0)(of_none)
            when(item.count > 0)(of_some)
        else:
            of_some()
        plgpu.commit_smem()
        item = self.block.queue.posted(slot)
        first_query = self.block.first_row(item)
        copy_out(out, self.out, (item.batch, pl.ds(first_query, ROWS), item.head))
        for one, ref in zip(of_rows, self.statistics, strict=True):
            to = ref.at[item.batch, item.head, pl.ds(first_query, ROWS)]
            plgpu.copy_smem_to_gmem(one, to, commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        return start + item.pieces(self.keys.rows)

    def skip(self, item: Item, start: Array) -> Array:
        """Let go of an item's pieces unread; see `run`."""
        count = item.pieces(self.keys.rows)

        @pl.loop(start, start + count)
        def _(position: Array) -> None:
            for stream in (self.keys, self.values):
                stream.receive(position)
                stream.release(position)

        return start + count

    def _store(self, sums: "_Sums", item: Item, out: Ref, of_rows: list[Ref]) -> None:
        """Put the output and the statistics of an item's rows into shared memory."""
        weights = self.config.weights
        shape = sums.values.shape
        alive = weights.is_alive(sums.largest, sums.weight)
        share = jnp.where(alive, 1 / sums.weight, 0.0)
        row = positions(ROWS, of="rows")
        shown = alive & (row < item.query_length - self.block.first_row(item))
        values = sums.values * along_rows(share, shape)
        values = jnp.where(along_rows(shown, shape), values, 0).astype(out.dtype)
        self.block.products.meet()  # the output may take the place of the queries
        self.block.products.store(out, values)
        statistics = weights.statistics(sums.largest, sums.weight, alive)
        for ref, value in zip(of_rows, statistics, strict=True):
            ref[...] = value


class _Softmax(NamedTuple):
    """The running softmax of a warpgroup's rows between two pieces of keys.

    Attributes:
        weights: [64, keys] of the last piece, in the operands' dtype. They are multiplied by the
            values while the next scores are computed.
        largest: The largest score of each row so far, f32[64]; see `Weights.largest`.
        weight: The threads' shares of the sum of the weights so far, f32[64]; see
            `Products.shares_of_sums`.
    """

    weights: Array
    largest: Array
    weight: Array


class _Sums(NamedTuple):
    """The softmax of a warpgroup's rows over all keys.

    Attributes:
        values: The weighted sum of values, f32[64, columns].
        largest: See `_Softmax`.
        weight: The sum of the weights, f32[64].
    """

    values: Array
    largest: Array
    weight: Array


@dataclasses.dataclass(frozen=True)
class _ItemSoftmax:
    """The computation of the softmax of one warpgroup's queries of an item, piece by piece.

    Attributes:
        kernel: The kernel's state.
        item: The item.
        q: [64, columns], in registers or in shared memory.
        rule: Mask and bias for these rows.
        start: The position of the first piece in the ring.
        count: The number of pieces.
    """

    kernel: _Kernel
    item: Item
    q: Array | Ref
    rule: ItemElements
    start: Array
    count: Array

    @staticmethod
    def of(kernel: _Kernel, item: Item, q: Ref, first_query: Array, start: Array) -> "_ItemSoftmax":
        """For the rows from `first_query` on."""
        rows = kernel.keys.rows
        rule = kernel.elements.of_item(item, first_query, ROWS)
        operand = kernel.block.products.held(q) if kernel.holds_queries else q
        return _ItemSoftmax(kernel, item, operand, rule, start, item.pieces(rows))

    def run(self) -> _Sums:
        """The softmax over all pieces."""
        products, columns = self.kernel.block.products, self.kernel.config.columns[1]
        softmax = products.hold(self._first, self._shape)
        return products.hold(lambda total: self._rest(total, softmax), (ROWS, columns))

    @property
    def _shape(self) -> tuple[int, int]:
        return ROWS, self.kernel.keys.rows

    def _weigh(self, scores: Array, largest: Array, weight: Array) -> tuple[Array, ...]:
        products = self.kernel.block.products
        return add(self.kernel.config.weights, products, scores, largest=largest, weight=weight)

    def _first(self, accumulator: Ref) -> _Softmax:
        """The softmax of the first piece."""
        keys, products = self.kernel.keys, self.kernel.block.products
        place = keys.receive(self.start)
        products.add(accumulator, self.q, keys.tile(place).transpose((1, 0)))
        scores = self.rule.biased(keys.begins, place, products.read(accumulator))
        # Backwards it is a row's last piece. Most of these are partial, so there is no branch.
        is_partial = None if self.kernel.is_backwards else self.item.full == 0
        scores = self.rule.masked_if(is_partial, keys.begins, place, scores)
        keys.release(self.start)
        initial = self.kernel.config.weights.initial
        weights, *sums, _ = self._weigh(scores, vector(initial, ROWS), vector(0, ROWS))
        return _Softmax(weights.astype(self.q.dtype), *sums)

    def _step(self, i: Array, softmax: _Softmax, *, total: Ref, partial: bool) -> _Softmax:
        """Add piece i to the softmax, and the values of the previous piece to `total`."""
        keys, values = self.kernel.keys, self.kernel.values
        products = self.kernel.block.products
        position = self.start + i
        place = keys.receive(position)

        def overlapped(accumulator: Ref) -> tuple[Array, ...]:
            products.add(accumulator, self.q, keys.tile(place).transpose((1, 0)))
            last = values.receive(position - 1)
            products.add(total, softmax.weights, values.tile(last))
            scores = self.rule.biased(keys.begins, place, products.read(accumulator, pending=1))
            scores = self.rule.masked(keys.begins, place, scores) if partial else scores
            keys.release(position)
            return self._weigh(scores, softmax.largest, softmax.weight)

        made = products.hold(overlapped, self._shape)
        # Operands in registers must be computed while no product is in flight, or the compiler
        # serializes the products.
        made = lax.optimization_barrier((*made, products.read(total)))
        weights, largest, weight, decay, values_so_far = made
        values.release(position - 1)
        products.write(total, values_so_far * along_rows(decay, values_so_far.shape))
        return _Softmax(weights.astype(self.q.dtype), largest, weight)

    def _rest(self, total: Ref, softmax: _Softmax) -> _Sums:
        """The softmax of all pieces but the first."""
        values, products = self.kernel.values, self.kernel.block.products
        step, rows = functools.partial(self._step, total=total), self.kernel.keys.rows
        any_partial = not self.kernel.is_backwards
        softmax = self.rule.each_piece(step, softmax, rows=rows, first=1, any_partial=any_partial)
        last = values.receive(self.start + self.count - 1)
        products.add(total, softmax.weights, values.tile(last))
        result = products.read(total)
        values.release(self.start + self.count - 1)
        return _Sums(result, softmax.largest, products.joined(softmax.weight))
