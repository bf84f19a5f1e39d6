"""Tensor-core products into accumulators, and what else is done another way in the interpreter.

`_interpreted` has the same methods for the interpreter. Kernels choose the operands.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref

from shapeexec import _compat
from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _reals, _threads
from shapeexec.attention.backends.mosaic_gpu._tiles import WIDE


@dataclasses.dataclass(frozen=True)
class Products:
    """Accumulators in registers, as the hardware has them."""

    def hold(self, body: Callable[..., Any], *shapes: tuple[int, int]) -> Any:
        """Run body(*accumulators) with accumulators f32[shape] that are 0."""
        accumulator = functools.partial(plgpu.WGMMAAccumulatorRef, dtype=jnp.float32)
        return pl.run_scoped(body, *map(accumulator, shapes))

    def add(self, accumulator: Ref, left: Ref | Array, right: Ref) -> None:
        """Start accumulator += left @ right, which runs asynchronously."""
        plgpu.wgmma(accumulator, left, right)

    def read(self, accumulator: Ref, *, pending: int = 0) -> Array:
        """The accumulator, once all but the last `pending` products are done."""
        return plgpu.wgmma_accumulator_load(accumulator, wait_n=pending)

    def write(self, accumulator: Ref, value: Array) -> None:
        """Overwrite the accumulator."""
        accumulator[...] = value

    def wait(self) -> None:
        """Wait until every product is done."""
        plgpu.wgmma_wait(0)

    def release(self, free: Ref) -> None:
        """Signal at a barrier that a copy may overwrite the operands.

        Products and copies use the same proxy, so they need no fence. PTX requires a fence after
        ordinary loads. It is left out here, as in CUTLASS and FlashAttention-3: loads of vectors
        are done when their values are used.
        """
        plgpu.barrier_arrive(free)

    def drain(self, free: Ref, first: Array, end: Array) -> None:
        """Wait for the releases of positions that no copy has waited for, if someone asks for it.

        Args:
            free: Barriers; a position's is the one that `Stream.place` tells.
            first: The first position.
            end: The one behind the last position.
        """

    def clear(self, tile: Ref, first: Array) -> None:
        """Overwrite the rows of a tile in shared memory with 0, from row `first` on.

        Nothing is read, so it takes a tenth of the code of a select, and of its time to compile.

        Args:
            tile: [rows, columns] of 16 bits, laid out as products read it.
            first: i32[]; it may be negative, or behind the last row.
        """
        types = (plgpu.RefType(WIDE), plgpu.Layout.WG_SPLAT)

        @plgpu.inline_mgpu(arg_types=types)
        def clear(_: Any, tile: Any, first: Any) -> None:
            _threads.clear_rows(tile, _threads.Number(first.registers.item()))

        clear(tile, first)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def meet(self) -> None:
        """Wait until all threads of the warpgroup are here.

        Before `store`, if other threads may still read what is overwritten.
        """

        @plgpu.inline_mgpu()
        def meet(_: Any) -> None:
            _threads.wait_for_all()

        meet()  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def part(self, tiles: Ref, place: Array, rows: Any = None) -> Ref:
        """tiles[place] or tiles[place, rows], as a reference.

        Args:
            tiles: [places, rows, columns] in shared memory, laid out as products read them.
            place: i32[].
            rows: A slice of whole groups of rows; None: all.
        """
        return _compat.part_of_tiles(tiles, place, rows=rows)

    def held(self, tile: Ref) -> Array:
        """A left operand of products in registers: from shared memory each product reads it anew.

        That memory's bandwidth limits the products, too. See docs/adr/0009.

        Args:
            tile: [64, columns] of 16 bits, laid out as products read it.
        """
        made = plgpu.ShapeDtypeStruct(tile.shape, tile.dtype, layout=plgpu.Layout.WGMMA)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(WIDE),), return_type=made)
        def load(_: Any, tile: Any) -> Any:
            return mgpu.FragmentedArray.load_tiled(tile, swizzle=128)

        return load(tile)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def store(self, to: Ref, value: Array) -> None:
        """Store an accumulator in a tile, which others read after the next `commit_smem`.

        A store by Pallas has a barrier before and after it, and takes twice as long to lower, since
        it loads the tile, too.

        Args:
            to: [64, columns] of 16 bits, laid out as products read it.
            value: [64, columns] of the same dtype, laid out as an accumulator.
        """

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(WIDE), plgpu.Layout.WGMMA))
        def store(_: Any, to: Any, value: Any) -> None:
            _threads.store_tile(to, value.registers)

        store(to, value)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def put(self, to: Ref, numbers: Sequence[Array]) -> None:
        """Store numbers in shared memory, for other warpgroups: what `to` held, none may read.

        All threads of the warpgroup call it. By Pallas each number takes two barriers: eight of
        them 550 cycles (H100).

        Args:
            to: i32[numbers or more] in shared memory.
            numbers: i32[] each.
        """
        types = (plgpu.RefType(), *[plgpu.Layout.WG_SPLAT] * len(numbers))

        @plgpu.inline_mgpu(arg_types=types)
        def put(_: Any, to: Any, *numbers: Any) -> None:
            _threads.put(to, [_threads.Number(x.registers.item()) for x in numbers])

        put(to, *numbers)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def numbers(self, ref: Ref, count: int) -> list[Array]:
        """The first `count` numbers of i32[numbers or more] in shared memory, as one operation."""
        scalar = plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=[scalar] * count)
        def get(_: Any, ref: Any) -> Any:
            loaded = [_threads.load(ref, i) for i in range(count)]
            return [mgpu.FragmentedArray.splat(x.value, (), is_signed=True) for x in loaded]

        return get(ref)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def store_rows(
        self,
        is_stored: Callable[[Any], Any],
        first: Array,
        places: Sequence[Ref],
        arrays: Sequence[Array],
    ) -> None:
        """Store some rows of an accumulator, and numbers per row, in device memory.

        Args:
            is_stored: Whether to store a row, from its number in `places`; others may be stored.
            first: The number of the first row.
            places: f32[all rows, columns] and f32[all rows] ...
            arrays: f32[rows, columns or more] and f32[rows] ..., laid out as `read` and `vector`
                return them.
        """
        layouts = [plgpu.Layout.WGMMA] + [plgpu.Layout.WGMMA.reduce(1)] * (len(arrays) - 1)
        types = (plgpu.Layout.WG_SPLAT, *(plgpu.RefType() for _ in places), *layouts)

        @plgpu.inline_mgpu(arg_types=types)
        def store(_: Any, first: Any, *given: Any) -> None:
            to, values = given[: len(places)], given[len(places) :]
            registers = [x.registers for x in values]
            _threads.store_rows(is_stored, _threads.Number(first.registers.item()), to, registers)

        store(first, *places, *arrays)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def shares_of_sums(self, x: Array) -> Array:
        """Each thread's share of the sums of rows, of the columns that it holds.

        They may be added, and multiplied by numbers per row; then `joined` makes sums of them.

        Args:
            x: f32[rows, columns], laid out as an accumulator.

        Returns:
            f32[rows], laid out as numbers per row are: there all threads of a row hold the same.
        """
        made = plgpu.ShapeDtypeStruct(x.shape[:1], x.dtype, layout=plgpu.Layout.WGMMA.reduce(1))

        @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA,), return_type=made)
        def add_up(_: Any, x: Any) -> Any:
            return _reals.as_rows(_reals.sums_of_rows(x.registers))

        return add_up(x)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def joined(self, shares: Array) -> Array:
        """The sums of rows from the threads' shares, f32[rows]."""
        layout = plgpu.Layout.WGMMA.reduce(1)
        made = plgpu.ShapeDtypeStruct(shares.shape, shares.dtype, layout=layout)

        @plgpu.inline_mgpu(arg_types=(layout,), return_type=made)
        def join(_: Any, shares: Any) -> Any:
            of_rows = _reals.from_rows(shares.registers)
            return _reals.as_rows([_threads.sum_of(x, _threads.OF_ROW) for x in of_rows])

        return join(shares)  # pyright: ignore[reportCallIssue] - it is a wrapper now

    def look_up(self, table: Ref, index: Array) -> Array:
        """table[index], element by element, from device memory.

        Args:
            table: [entries] of 32 bits.
            index: i32[shape] within the table, laid out as an accumulator.
        """
        layout = plgpu.Layout.WGMMA
        made = plgpu.ShapeDtypeStruct(index.shape, table.dtype, layout=layout)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), layout), return_type=made)
        def gather(_: Any, table: Any, index: Any) -> Any:
            def element(i: Any, _: Any) -> Any:
                return memref.load(table, [arith.index_cast(ir.IndexType.get(), i)])

            return index.foreach(element, create_array=True)

        return gather(table, index)  # pyright: ignore[reportCallIssue] - it is a wrapper now


def in_loop(index: Array, carried: Array) -> Array:
    """The index, made to depend on the loop, so that addresses are recomputed in each step.

    The compiler would hoist each loop-invariant address into a register, and spill: loading it back
    is slower than computing it.

    Args:
        index: The index of a tile in shared memory.
        carried: A value that the loop carries, i32[]; not negative, unknown to the compiler.
    """
    return index + lax.shift_right_logical(carried, jnp.int32(31))


def vector(value: float, rows: int) -> Array:
    """f32[rows], laid out as the row maxima of an accumulator are."""
    return plgpu.layout_cast(jnp.full((rows,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))


def load(
    ref: Ref, *, of: Literal["rows", "columns", "pairs"], where: Literal["shared", "device"]
) -> Array:
    """Load one number per row, per column or per element of an accumulator.

    Args:
        ref: [rows], [columns] or [rows, columns].
        of: The kind of `ref`.
        where: The memory that `ref` is in.
    """
    layout = {
        "rows": plgpu.Layout.WGMMA.reduce(1),
        "columns": plgpu.Layout.WGMMA.reduce(0),
        "pairs": plgpu.Layout.WGMMA,
    }[of]
    # Mosaic refuses loads from device memory that are not vectorized unless `optimized=False`.
    return plgpu.load(ref, layout=layout, optimized=where == "shared")  # pyright: ignore[reportCallIssue] - jax 0.10 wants an index


def positions(count: int, *, of: Literal["rows", "columns"]) -> Array:
    """0, 1, ... for the rows or the columns of an accumulator, i32[count]."""
    layout = plgpu.Layout.WGMMA.reduce(1 if of == "rows" else 0)
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=layout)


def clear_rows(valid: Array, x: Array) -> Array:
    """A warpgroup's `x` with 0 in the rows from `valid` on, which may hold NaN."""
    is_valid = positions(x.shape[0], of="rows") < valid
    return jnp.where(along_rows(is_valid, x.shape), x, jnp.zeros_like(x))


def mask_columns(end: Array, first: Array, scores: Array, masked: float) -> Array:
    """Scores whose columns begin at position `first`, with `masked` from position `end` on."""
    is_valid = positions(scores.shape[1], of="columns") < end - first
    return jnp.where(along_columns(is_valid, scores.shape), scores, masked)


def along_rows(column: Array, shape: tuple[int, ...]) -> Array:
    """column[rows] for each column of [rows, columns]."""
    return lax.broadcast_in_dim(column, shape, [0])


def along_columns(row: Array, shape: tuple[int, ...]) -> Array:
    """row[columns] for each row of [rows, columns]."""
    return lax.broadcast_in_dim(row, shape, [1])
