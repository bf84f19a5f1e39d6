"""The kernel of `_few`: a program attends to its share of the keys of all heads and examples."""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _any_length
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._branches import when
from shapeexec.attention.backends.mosaic_gpu._config import Config, Sparsity
from shapeexec.attention.backends.mosaic_gpu._elements import Elements
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products, along_rows, vector
from shapeexec.attention.backends.mosaic_gpu._ring import Source, Stream
from shapeexec.attention.backends.mosaic_gpu._shares import Shares
from shapeexec.attention.backends.mosaic_gpu._tiles import (
    ROWS,
    TILE,
    Item,
    Packing,
    Table,
    free_all,
)
from shapeexec.attention.backends.mosaic_gpu._weights import add

_PARTS = 4  # parts of a piece across the valid length, of which those behind it are not copied


def parts_of(config: Config) -> int:
    """The parts of a piece that may be copied one by one."""
    return _PARTS if config.signature.is_ragged else 1


class _Segment(NamedTuple):
    """The part of a list that is in a program's share.

    Attributes:
        item: The list.
        number: The number of the list, as they were given.
        place: The place of its results.
        first, end: The first of its pieces within the list, and the piece behind its last one.
    """

    item: Item
    number: Array
    place: Array
    first: Array
    end: Array

    @property
    def pieces(self) -> Array:
        """The number of its pieces."""
        return self.end - self.first


def kernel(
    config: Config,
    packing: Packing,
    readers: int,
    *,
    sparsity: Sparsity,
    queries: dict[str, Ref],
    keys: dict[str, Ref],
    values: dict[str, Ref],
    pool: list[Ref] | None = None,
    axes: dict[str, Any] | None,
    **refs: Any,
) -> None:
    """The kernel, of references by name: see `_few.forward_of_few`.

    Args:
        config: The static part of the call.
        packing: The queries and heads that the rows hold.
        readers: The number of warpgroups that compute.
        sparsity: The tiles.
        queries: The ring of queries.
        keys: The ring of keys.
        values: The ring of values.
        pool: The accumulators of the interpreter; None: on the device.
        axes: The merged axes of the operands; None: there are none.
        **refs: The other operands and the results.
    """
    if axes is not None:
        named = _told_apart(config, packing, axes, {"sparsity": sparsity, **refs})
        sparsity, refs = named.pop("sparsity"), named
    warpgroup = lax.axis_index("warpgroup")
    products = Products() if pool is None else InterpretedProducts(list(pool), warpgroup)
    rings, parts = [Stream(**queries, products=products)], parts_of(config)
    rings += [Stream(**x, products=products, parts=parts) for x in (keys, values)]
    columns = rings[1].vectors
    elements = sparsity.elements(config, products, side="query", columns=columns, packing=packing)
    statistics = [refs.pop(name) for name in sorted(refs) if name.startswith("statistics")]
    running = _Kernel(
        *(config, packing, sparsity, elements, products, warpgroup, readers, *rings),
        statistics=statistics,
        **refs,
    )

    @when(warpgroup < readers)
    def _compute() -> None:
        free_all(*(ring.free for ring in rings))
        running.walk(running.attend)

    @when(warpgroup == readers)
    def _memory() -> None:
        running.drain(*running.walk(running.send))


def _told_apart(
    config: Config, packing: Packing, axes: dict[str, Any], named: dict[str, Any]
) -> dict[str, Any]:
    """See `_any_length.told_apart`."""
    examples, _, keys, longest = (named["sparsity"].sizes[i] for i in range(4))
    sizes = {"S": keys, "longest": longest}
    if (page_size := config.signature.page_size) is not None:
        sizes["pages"] = lax.div(keys, i32.constant(page_size))
    named = _any_length.told_apart(axes, named, sizes=sizes)
    shares, heads = named["shares"], config.signature.query_heads // packing.heads
    groups = examples * (heads // shares.alike)
    return {**named, "shares": dataclasses.replace(shares, groups=groups)}


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The kernel's state: streams, operands in device memory, and scratch in shared memory."""

    config: Config
    packing: Packing
    sparsity: Sparsity
    elements: Elements
    products: Products | InterpretedProducts
    warpgroup: Array
    readers: int
    queries: Stream
    keys: Stream
    values: Stream
    statistics: list[Ref]
    shares: Shares
    q: Ref
    k: Ref
    v: Ref
    pages: Ref | None
    out: Ref
    cleared: Ref

    @property
    def _table(self) -> Table:
        return self.sparsity.table(self.config, side="query", in_order=True)

    def walk(self, visit: Callable[[_Segment, Array, Array], None]) -> tuple[Array, Array]:
        """Call `visit` for each segment of this program's share.

        Args:
            visit: Called as visit(segment, number, ring), with the segment's number in this share,
                and the position in the ring of its first piece.

        Returns:
            The number of segments, and the position in the ring after the last piece.
        """
        me, shares, per_tile = lax.axis_index("program"), self.shares, TILE // self.keys.rows
        size = shares.size()
        begin = me * size
        end = i32.minimum(begin + size, shares.total())

        def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            which, _, number, ring, (low, tiles, item) = carry
            # What it loads arrives while this list is visited.
            following = self._list(i32.minimum(which + 1, shares.lists - 1))
            first, stop = (shares.tiles_before(x, low, tiles) for x in (begin, end))
            pieces = i32.minimum(stop * per_tile, item.pieces(self.keys.rows))
            segment = _Segment(item, shares.given(which), me + which, first * per_tile, pieces)

            @when(first < stop)
            def _() -> None:
                visit(segment, number, ring)

            visited = i32.where(first < stop, 1, 0)
            ring += visited * segment.pieces
            return which + 1, shares.end(low, tiles), number + visited, ring, following

        zero, first = i32.constant(0), shares.holder(begin)
        initial = (first, begin, zero, zero, self._list(first))
        *_, number, ring, _ = lax.while_loop(lambda carry: carry[1] < end, step, initial)
        return number, ring

    def _list(self, which: Array) -> tuple[Array, Array, Item]:
        """The bounds of a list (see `Shares.bounds`), and its item."""
        heads = i32.constant(self.config.signature.query_heads // self.packing.heads)
        given = self.shares.given(which)
        batch, head = lax.div(given, heads), lax.rem(given, heads)
        return *self.shares.bounds(which), self._table.first_item(batch, head)

    def send(self, segment: _Segment, number: Array, ring: Array) -> None:
        """Send the operands of a segment; for the warpgroup that moves memory."""
        item = segment.item
        sources = self._queries_of(segment)
        rows = self.packing.pitch if self.packing.by_head else self.queries.rows
        self.queries.send_together(sources, number, rows=rows)
        shared = self.config.signature.group // self.packing.heads
        head = lax.div(item.head, i32.constant(shared))
        columns = self.elements.sources(item)
        of_item = functools.partial(Source, batch=item.batch, head=head, length=item.key_length)
        key = of_item(self.k, vectors=columns, pages=self.pages).located()
        value = of_item(self.v, pages=self.pages).located()

        @pl.loop(0, segment.pieces)
        def _(i: Array) -> None:
            # Backwards, so that the pieces with a mask are first.
            first = self._table.first_column(item, segment.end - 1 - i, self.keys.rows)
            self.keys.send(key, first, ring + i)
            self.values.send(value, first, ring + i)

    def _queries_of(self, segment: _Segment) -> list[Source]:
        """The sources of a segment's queries; see `packed_queries`."""
        heads, rows = self.packing.heads, i32.constant(self.packing.rows)
        if not self.packing.by_head:
            return [Source(self.q, segment.number, segment.number * 0, rows)]
        first = segment.item.head * heads
        return [Source(self.q, segment.item.batch, first + i, rows) for i in range(heads)]

    def drain(self, number: Array, ring: Array) -> None:
        """See `Products.drain`; for the arguments see the results of `walk`."""
        self.queries.drain(number)
        self.keys.drain(ring)
        self.values.drain(ring)

    def attend(self, segment: _Segment, number: Array, ring: Array) -> None:
        """Compute a segment; for a warpgroup that computes."""
        slot = self.queries.receive(number)
        rows = pl.ds(self.warpgroup * ROWS, ROWS)
        sums = functools.partial(self._sums, segment, self.queries.tile(slot, rows), ring)
        values, largest, weight = self.products.hold(sums, (ROWS, self.config.columns[1]))
        self.queries.release(number)
        form = self.config.weights
        alive = form.is_alive(largest, weight)
        share = jnp.where(alive, 1 / weight, 0.0)
        values = values * along_rows(share, values.shape)
        statistics = form.statistics(largest, weight, alive)
        places = [ref.at[segment.place] for ref in (self.out, *self.statistics)]
        # From registers: few of the rows hold a query, and shared memory is for keys and values.
        self.products.store_rows(
            self.packing.holds_query, self.warpgroup * ROWS, places, [values, *statistics]
        )

    def _sums(self, segment: _Segment, q: Ref, ring: Array, total: Ref) -> tuple[Array, ...]:
        """The weighted sum of values, the largest score and the sum of weights, of each row."""
        products, shape = self.products, (ROWS, self.keys.rows)
        rule = self.elements.of_item(segment.item, self.warpgroup * ROWS, ROWS)
        partial = segment.end - segment.item.full_pieces(self.keys.rows)

        def step(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            place = self.keys.receive(ring + i)

            def scored(accumulator: Ref) -> Array:
                products.add(accumulator, q, self.keys.tile(place).transpose((1, 0)))
                return products.read(accumulator)

            scores = rule.biased(self.keys.begins, place, products.hold(scored, shape))
            scores = rule.masked_if(i < partial, self.keys.begins, place, scores)
            self.keys.release(ring + i)
            weights, largest, weight, decay = add(
                self.config.weights, products, scores, largest=sums[0], weight=sums[1]
            )
            so_far = products.read(total)
            products.write(total, so_far * along_rows(decay, so_far.shape))
            place = self.values.receive(ring + i)
            self._clear(segment, place)
            products.add(total, weights.astype(q.dtype), self.values.tile(place))
            products.wait()
            self.values.release(ring + i)
            return largest, weight

        initial = vector(self.config.weights.initial, ROWS), vector(0, ROWS)
        largest, weight = lax.fori_loop(0, segment.pieces, step, initial)
        return products.read(total), largest, products.joined(weight)

    def _clear(self, segment: _Segment, place: Array) -> None:
        """Clear values behind the valid length, as 0 * padding may be NaN.

        The warpgroup that moves memory would have to wait for the copy, instead of starting others.
        """
        if not self._table.overhangs:
            return
        rows = self.values.rows // self.readers
        first = self.warpgroup * rows
        valid = segment.item.key_length - self.values.begin(place)

        @when(valid < self.values.rows)
        def _() -> None:
            self.products.clear(self.values.tile(place, pl.ds(first, rows)), valid - first)
            plgpu.commit_smem()
            if self.readers > 1:  # else this warpgroup has cleared all rows
                plgpu.barrier_arrive(self.cleared)
                plgpu.barrier_wait(self.cleared)
