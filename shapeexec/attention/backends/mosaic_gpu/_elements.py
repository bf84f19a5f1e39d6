"""The element rules of mask and bias inside the kernels, and the loads of their arrays.

Numbers per row are loaded once per item, numbers per column come with the pieces of the ring, and
elements per pair are loaded where the rule reads them. `_rules` finds the arrays that a rule reads.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shapeexec.attention.backends._base import Ref, Side, whole_tiles
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._branches import branch
from shapeexec.attention.backends.mosaic_gpu._conditions import choose, evaluate
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import load, mask_columns
from shapeexec.attention.backends.mosaic_gpu._rules import (
    ArrayUse,
    Read,
    RecordingPositions,
    Rule,
    trace_rule,
)
from shapeexec.attention.backends.mosaic_gpu._tiles import TILE, Item, Packing, at_or_0


def as_operand(leaf: Array, known: ArrayUse, *, side: Side) -> Array:
    """An array of a mask or a bias as the kernels take it.

    Args:
        leaf: The array.
        known: How the rule reads it.
        side: Whether rows are queries or keys; if keys, arrays of pairs are transposed.

    Returns:
        Integers or floats of 32 bits; for pairs booleans have 8 bits, and floats may have 16. An
        array of one side is [B or 1, length] or [B or 1, N or 1, length]. Lengths are whole tiles,
        for a load, unlike a copy by the TMA unit, is not clipped at an array's end.
    """
    array = jnp.asarray(leaf)
    if known.side is not None:
        if array.ndim == 4:
            array = array.squeeze(3 - known.side)
        along = (array.ndim - 1,)
    else:
        along = (2, 3) if known.role == "of_pairs" and array.shape[2:] != (1, 1) else ()
    is_of_pairs = along and known.side is None
    if jnp.issubdtype(array.dtype, jnp.floating):
        stays = is_of_pairs and array.dtype.itemsize == 2
        array = array if stays else array.astype(jnp.float32)
    elif is_of_pairs:
        array = array.astype(jnp.int8) if known.dtype == "bool" else array
    else:
        array = array.astype(jnp.int32)
    pads = [
        (0, whole_tiles(n, TILE) - n if axis in along else 0) for axis, n in enumerate(array.shape)
    ]
    array = jnp.pad(array, pads) if any(after for _, after in pads) else array
    return array.swapaxes(2, 3) if side == "key" and len(along) == 2 else array


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of a mask or a bias, inside the kernel.

    Attributes:
        ref: The array in device memory.
        use: How the rule reads it.
        vector: Its elements for a tile's rows, in registers; or for the columns, in shared memory.
    """

    ref: Ref
    use: ArrayUse
    vector: Any = None

    def value(self, loaded: Array) -> Array:
        """The loaded values, in the dtype that the mask or bias was given in."""
        return loaded != 0 if self.use.dtype == "bool" else loaded

    def element(self, *index: Array) -> Array:
        """One element; an axis of size 1 broadcasts."""
        return self.value(self.ref[at_or_0(self.ref, *index)])


@dataclasses.dataclass(frozen=True)
class Elements:
    """A mask and a bias in a kernel whose rows are queries, or keys.

    Attributes:
        rule: The static part of both.
        leaves: The arrays of both.
        side: Whether rows are queries or keys.
        columns: For each array with one element per column, [steps, columns] in shared memory.
        look_up: A function that loads table[index], elementwise.
        scale: The factor of scores before their bias; None: there is no bias.
        masked: The value that replaces the score of a pair that is not allowed.
        crosses_ends: Whether keys behind the valid length are to be masked here.
        packing: The queries and heads of the rows; None: rows are queries, or keys, of one head.
    """

    rule: Rule
    leaves: list[Ref]
    side: Side
    columns: list[Ref]
    look_up: Callable[[Ref, Array], Array]
    scale: float | None
    masked: float
    crosses_ends: bool
    packing: Packing | None = None

    @property
    def mask_nothing(self) -> bool:
        """Whether no pair of any tile is to be masked."""
        return self.rule.allows_all and not self.crosses_ends

    def sources(self, item: Item) -> list[Ref]:
        """The source of each of `columns`: the array of an item in device memory."""
        of_columns = [self.leaves[i] for i in self.rule.of_side(int(self.side == "query"))]
        return [_of_item(ref, item) for ref in of_columns]

    def of_item(self, item: Item, first_row: Array, rows: int) -> "ItemElements":
        """Mask and bias for `rows` rows of an item."""
        vectors: dict[int, Any] = dict(
            zip(self.rule.of_side(int(self.side == "query")), self.columns, strict=True)
        )
        for i in self.rule.of_side(int(self.side == "key")):
            of_rows = _of_item(self.leaves[i], item).at[pl.ds(first_row, rows)]
            vectors[i] = load(of_rows, of="rows", where="device")
        return ItemElements(self, item, first_row, vectors)


@dataclasses.dataclass(frozen=True)
class ItemElements:
    """A mask and a bias for some rows of an item.

    Attributes:
        elements: The mask and the bias.
        item: The item.
        first_row: The position of the first row.
        vectors: For an array's number, its elements for the rows, or its item of `columns`.
    """

    elements: Elements
    item: Item
    first_row: Array
    vectors: dict[int, Any]

    def each_piece(
        self,
        step: Callable[..., Any],
        carry: Any,
        *,
        rows: int,
        first: int = 0,
        any_partial: bool = True,
    ) -> Any:
        """Carry through the item's pieces: step(i, carry, partial=whether it may need the mask).

        Full pieces come first, if any piece may be partial. Each kind has a loop of its own then
        (docs/adr/0009).

        Args:
            step: Called as told.
            carry: What the first one gets.
            rows: The rows of a piece.
            first: The number of the first piece.
            any_partial: Whether any piece from there on may need the mask.
        """
        count, full = self.item.pieces(rows), self.item.full_pieces(rows)
        without_mask = functools.partial(step, partial=False)
        if self.elements.mask_nothing or not any_partial:
            return lax.fori_loop(first, count, without_mask, carry)
        carry = lax.fori_loop(first, full, without_mask, carry)
        begin = i32.maximum(full, first) if first else full
        return lax.fori_loop(begin, count, functools.partial(step, partial=True), carry)

    def allows(self, first_column: Array, place: Array, shape: tuple[int, ...]) -> Any:
        """Whether each pair of a tile is allowed, for `choose`.

        Args:
            first_column: The position of the first column.
            place: The place in the ring of the columns' vectors.
            shape: Rows and columns of the tile.
        """
        return self._answer(self.elements.rule.allows, first_column, place, shape)

    def masked(self, begins: Ref, place: Array, scores: Array) -> Array:
        """The scores of a tile, with `Elements.masked` for pairs that are not allowed.

        For the arguments see `biased`.
        """
        begin, masked = begins[place], self.elements.masked
        scores = choose(self.allows(begin, place, scores.shape), scores, masked)
        if not self.elements.crosses_ends:
            return scores
        # Keys behind the valid length may hold anything. If they hold 0, their scores are 0; in the
        # backward pass the weights of those would be infinite if all other scores are far below 0.
        return mask_columns(self.item.key_length, begin, scores, masked)

    def masked_if(self, partial: Array | None, begins: Ref, place: Array, scores: Array) -> Array:
        """`masked` if the tile is partial; else, and if nothing is masked, the scores.

        Args:
            partial: bool[]; None: it is.
            begins: See `biased`.
            place: See `allows`.
            scores: See `biased`.
        """
        if self.elements.mask_nothing:
            return scores
        masked = functools.partial(self.masked, begins, place)
        return masked(scores) if partial is None else branch(partial, masked, lambda x: x, scores)

    def biased(self, begins: Ref, place: Array, scores: Array) -> Array:
        """Scores of a tile, scaled and with their bias; as they are if there is none.

        Args:
            begins: i32[steps] in shared memory: the position of the first column in each place.
            place: See `allows`.
            scores: f32[rows, columns], the result of a product.
        """
        scale = self.elements.scale
        if scale is None:
            return scores
        ask = self.elements.rule.modify
        return self._answer(ask, begins[place], place, scores.shape, scores * scale)

    def _answer(
        self,
        ask: Callable[..., Array],
        first_column: Array,
        place: Array,
        shape: tuple[int, ...],
        *more: Array,
    ) -> Any:
        # `evaluate` traces the rule to rewrite its bool operations, so the rule must not load. All
        # its reads are found by tracing and loaded first; the rule then runs on loaded values.
        leaves, by_key = self._leaves(place), self.elements.side == "key"
        first = (first_column, self.first_row) if by_key else (self.first_row, first_column)
        at = TilePositions(self.item, first, shape, self.elements)
        positions = (at.batch, at.head, at.query_length, at.key_length, at.query, at.key)
        zeros = [np.zeros(x.shape, x.dtype) for x in more]
        _, reads = trace_rule(ask, shape, *zeros)
        loaded: list[Array] = []

        def run(recorded: list[Read], *inputs: Array) -> Array:
            """Run the rule on inputs (*positions, *more, *loaded), and record its reads."""
            where, rest = inputs[: len(positions)], inputs[len(positions) :]
            arguments, values = rest[: len(more)], iter(rest[len(more) :])
            return ask(RecordingPositions(*where, reads=recorded, values=values), *arguments)

        def index(*inputs: Array) -> Array:
            """The index of the next read, of a table: the rule computes it from earlier reads."""
            recorded: list[Read] = []
            run(recorded, *inputs)
            return recorded[len(loaded)].more[0]

        for read in reads:
            arguments = read.more
            if read.role == "of_table":
                arguments = (evaluate(index, *positions, *more, *loaded),)
            load_leaf = getattr(at, read.role)
            loaded.append(load_leaf(leaves[read.number], *arguments))
        return evaluate(functools.partial(run, []), *positions, *more, *loaded)

    def _leaves(self, place: Array) -> list[Leaf]:
        """The arrays, with the vectors of the columns at this place in the ring."""
        rule, vectors = self.elements.rule, dict(self.vectors)
        for i in rule.of_side(int(self.elements.side == "query")):
            vectors[i] = vectors[i].at[place]
        return [
            Leaf(ref, use, vectors.get(i))
            for i, (ref, use) in enumerate(zip(self.elements.leaves, rule.uses, strict=True))
        ]


def _of_item(ref: Ref, item: Item) -> Ref:
    lead = (item.batch, item.head)[: len(ref.shape) - 1]
    return ref.at[at_or_0(ref, *lead)]


class TilePositions:
    """`Positions` of a tile that one warpgroup holds in an accumulator's layout.

    Args:
        item: The example and the query head.
        first: The first query and the first key.
        shape: Rows and columns of the tile.
        elements: The mask and the bias; it knows whether rows are queries, keys or packed heads.
    """

    def __init__(
        self,
        item: Item,
        first: tuple[Array, Array],
        shape: tuple[int, ...],
        elements: Elements,
    ) -> None:
        self.batch, self.head = item.batch, item.head
        self.query_length, self.key_length = item.query_length, item.key_length
        self._list_head = item.head
        self._first = first
        self._shape = shape
        self._look_up = elements.look_up
        self._axes = (1, 0) if elements.side == "key" else (0, 1)  # of queries and of keys
        self.query, self.key = (
            self._counted(axis, begin) for axis, begin in zip(self._axes, first, strict=True)
        )
        if (packing := elements.packing) is not None:
            rows, count = self.query, i32.constant(packing.pitch)
            self.query = lax.rem(rows, count)
            if packing.heads > 1:
                self.head = item.head * packing.heads + lax.div(rows, count)

    def _counted(self, axis: int, begin: Array) -> Array:
        layout = plgpu.Layout.WGMMA.reduce(1 - axis)
        along = plgpu.broadcasted_iota(jnp.int32, (self._shape[axis],), 0, layout=layout) + begin
        # Without the barrier the compiler hoists the positions out of the loop, holds them in
        # registers and spills others.
        return lax.broadcast_in_dim(lax.optimization_barrier(along), self._shape, [axis])

    def of_batch(self, array: Leaf) -> Array:
        """The element of array[B or 1] for this example."""
        return array.element(self.batch)

    def of_head(self, array: Leaf) -> Array:
        """The element of array[B or 1, N or 1] for this head."""
        if array.use.side is not None:
            return self._vector(array)
        return array.element(self.batch, self._list_head)

    def of_queries(self, array: Leaf) -> Array:
        """The elements of array[B or 1, T] at these queries."""
        return self._vector(array)

    def of_keys(self, array: Leaf) -> Array:
        """The elements of array[B or 1, S] at these keys."""
        return self._vector(array)

    def of_pairs(self, array: Leaf) -> Array:
        """The elements of array[B or 1, N or 1, T or 1, S or 1] at these pairs."""
        if array.use.side is not None:
            return self._vector(array)
        if array.ref.shape[2:] == (1, 1):
            return array.element(self.batch, self._list_head, i32.constant(0), i32.constant(0))
        lead = at_or_0(array.ref, self.batch, self._list_head)
        rows, columns = (
            pl.ds(self._first[side], size)
            for side, size in zip(self._axes, self._shape, strict=True)
        )
        ref = array.ref.at[(*lead, rows, columns)]
        return array.value(load(ref, of="pairs", where="device"))

    def of_tile(self, array: Leaf, tile: tuple[int, int]) -> Array:
        """The element of array[B or 1, N or 1, query tiles, key tiles] for this tile."""
        at = (lax.div(first, i32.constant(n)) for first, n in zip(self._first, tile, strict=True))
        return array.value(array.ref[(*at_or_0(array.ref, self.batch, self._list_head), *at)])

    def of_table(self, array: Leaf, index: Array) -> Array:
        """The elements of array[B or 1, N or 1, entries] at `index`."""
        lead = at_or_0(array.ref, self.batch, self._list_head)
        return self._look_up(array.ref.at[lead], index)

    def _vector(self, array: Leaf) -> Array:
        assert array.use.side is not None
        axis = self._axes[array.use.side]
        loaded = array.vector
        if axis == 1:
            loaded = load(array.vector, of="columns", where="shared")
        return array.value(lax.broadcast_in_dim(loaded, self._shape, [axis]))
