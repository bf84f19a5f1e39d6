"""What a warpgroup loads and stores by operations of its own, in place of Pallas'.

They lower faster than Pallas', and have the barriers that are said here, and no others.
`_interpreted` has the same methods for the interpreter.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from shapeexec import _compat
from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._pallas import arith, ir, memref, mgpu, plgpu
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE


class Memory:
    """Shared memory, and what is read and written of device memory without copies."""

    def meet(self) -> None:
        """Wait until all threads of the warpgroup are here.

        Before `store`, if other threads may still read what is overwritten.
        """

        @plgpu.inline_mgpu()
        def meet(_: Any) -> None:
            _threads.wait_for_all()

        meet()

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

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(WIDE.to_pallas()),), return_type=made)
        def load(_: Any, tile: Any) -> Any:
            return mgpu.FragmentedArray.load_tiled(tile, swizzle=128)

        return load(tile)

    def store(self, to: Ref, value: Array) -> None:
        """Store an accumulator in a tile, which others read after the next `commit_smem`.

        A store by Pallas has a barrier before and after it, and takes twice as long to lower, since
        it loads the tile, too.

        Args:
            to: [64, columns] of 16 bits, laid out as products read it.
            value: [64, columns] of the same dtype, laid out as an accumulator.
        """

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(WIDE.to_pallas()), plgpu.Layout.WGMMA))
        def store(_: Any, to: Any, value: Any) -> None:
            _threads.store_tile(to, value.registers)

        store(to, value)

    def clear(self, tile: Ref, first: Array) -> None:
        """Overwrite the rows of a tile in shared memory with 0, from row `first` on.

        Nothing is read, so it takes a tenth of the code of a select, and of its time to compile.

        Args:
            tile: [rows, columns] of 16 bits, laid out as products read it.
            first: i32[]; it may be negative, or behind the last row.
        """
        types = (plgpu.RefType(WIDE.to_pallas()), plgpu.Layout.WG_SPLAT)

        @plgpu.inline_mgpu(arg_types=types)
        def clear(_: Any, tile: Any, first: Any) -> None:
            _threads.clear_rows(tile, _threads.Number(first.registers.item()))

        clear(tile, first)

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

        put(to, *numbers)

    def numbers(self, ref: Ref, count: int) -> list[Array]:
        """The first `count` numbers of i32[numbers or more] in shared memory, as one operation."""
        scalar = plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=[scalar] * count)
        def get(_: Any, ref: Any) -> Any:
            return [_threads.splat(_threads.load(ref, i)) for i in range(count)]

        return get(ref)

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

        store(first, *places, *arrays)

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

        return gather(table, index)

    def drain(self, free: Ref, first: Array, end: Array) -> None:
        """Wait for the releases of positions that no copy has waited for, if someone asks for it.

        Args:
            free: Barriers, each of which positions use in turn: see `place_of`.
            first: The first position.
            end: The one behind the last position.
        """
