"""Numbers of single threads: what Pallas has no arrays for, such as a count within a warp.

`plgpu.inline_mgpu` calls a function of references while a kernel is lowered; these are its words.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from shapeexec.attention.backends.mosaic_gpu._pallas import (
    arith,
    ir,
    llvm,
    memref,
    mgpu,
    nvvm,
    scf,
    vector,
)

WARP = 32
"""The threads of a warp, which run in step."""

WARPGROUP = 128
"""The threads of a warpgroup."""

OF_ROW = 4
"""The threads that hold a row of an accumulator, neighbours."""

STORED_COLUMNS = 16
"""The columns of a row that four threads store together: `store_rows` stores a multiple of them."""

_BYTES_OF_ROW = 128  # of 64 elements


class _OfThread(Protocol):
    """A value of each thread."""

    def __init__(self, value: Any) -> None: ...

    def __add__(self, other: Any, /) -> Any: ...

    @property
    def value(self) -> Any: ...


T = TypeVar("T", bound=_OfThread)


@dataclasses.dataclass(frozen=True)
class Number:
    """An i32 of each thread; or a bool, from a comparison. `//` and `%` take it as unsigned."""

    value: Any

    def __add__(self, other: "int | Number") -> "Number":
        return Number(arith.addi(self.value, _value(other)))

    def __sub__(self, other: "int | Number") -> "Number":
        return Number(arith.subi(self.value, _value(other)))

    def __mul__(self, other: "int | Number") -> "Number":
        return Number(arith.muli(self.value, _value(other)))

    def __floordiv__(self, other: "int | Number") -> "Number":
        return Number(arith.divui(self.value, _value(other)))

    def __mod__(self, other: "int | Number") -> "Number":
        return Number(arith.remui(self.value, _value(other)))

    def __and__(self, other: "int | Number") -> "Number":
        return Number(arith.andi(self.value, _value(other)))

    def __or__(self, other: "int | Number") -> "Number":
        return Number(arith.ori(self.value, _value(other)))

    def __xor__(self, other: "int | Number") -> "Number":
        return Number(arith.xori(self.value, _value(other)))

    def __lshift__(self, other: "int | Number") -> "Number":
        return Number(arith.shli(self.value, _value(other)))

    def __lt__(self, other: "int | Number") -> "Number":
        return Number(arith.cmpi(arith.CmpIPredicate.slt, self.value, _value(other)))

    def __gt__(self, other: "int | Number") -> "Number":
        return Number(arith.cmpi(arith.CmpIPredicate.sgt, self.value, _value(other)))

    def equals(self, other: "int | Number") -> "Number":
        """Whether they are equal: `==` of a dataclass is for Python."""
        return Number(arith.cmpi(arith.CmpIPredicate.eq, self.value, _value(other)))

    def at_most(self, most: "int | Number") -> "Number":
        """The lesser of both."""
        return Number(arith.minui(self.value, _value(most)))


def number(value: int) -> Number:
    """A constant."""
    return Number(mgpu.utils.c(value, _i32()))


def splat(x: Number) -> Any:
    """A number that all threads have, as Mosaic's array of no axes."""
    return mgpu.FragmentedArray.splat(x.value, (), is_signed=True)


def thread() -> Number:
    """The number of the thread within its warpgroup."""
    return Number(mgpu.utils.thread_idx()) % WARPGROUP


def where(condition: Number, one: "int | Number", other: "int | Number") -> Number:
    """One number where a bool is true, else the other one."""
    return Number(arith.select(condition.value, _value(one), _value(other)))


def divided(number: Number, by: Number) -> tuple[Number, Number]:
    """Quotient and rest; see `_divided`."""
    f32 = ir.F32Type.get()
    one = arith.constant(f32, ir.FloatAttr.get(f32, 1.0))
    inverse = arith.divf(one, arith.sitofp(f32, by.value))
    product = arith.mulf(arith.sitofp(f32, number.value), inverse)
    quotient = Number(arith.fptosi(_i32(), product))
    rest = number - quotient * by
    change = where(rest < 0, -1, where(rest < by, 0, 1))
    return quotient + change, rest - change * by


def ballot(condition: Number) -> Number:
    """The bools of the warp's threads as bits; all 32 threads take part."""
    kind = nvvm.VoteSyncKind.ballot
    return Number(nvvm.vote_sync(_all_of_warp(), condition.value, kind, results=[_i32()]))


def ones(bits: Number) -> Number:
    """How many bits are 1."""
    return Number(llvm.intr_ctpop(bits.value))


def sum_of(x: T, threads: int) -> T:
    """The sum over each `threads` neighbours, a power of two up to a warp; all 32 take part."""
    distance = 1
    while distance < threads:
        x += type(x)(mgpu.utils.shfl_bfly(x.value, distance))
        distance *= 2
    return x


def load(ref: Any, *at: "int | Number") -> Number:
    """ref[at], of u8 or i32."""
    read = memref.load(ref, [index_of(i) for i in at])
    return Number(read if read.type == _i32() else arith.extui(_i32(), read))


def store(ref: Any, x: Number, *at: "int | Number") -> None:
    """ref[at] = x, of i32."""
    memref.store(x.value, ref, [index_of(i) for i in at])


class Words:
    """An array of u8 as words of `width` bytes, 1 or 4: for copies of several elements at a time.

    The array lies row by row without gaps, and begins at a multiple of the width.
    """

    def __init__(self, ref: Any, width: int) -> None:
        self._start, self._width = mgpu.utils.memref_ptr(ref), width

    def load(self, byte: Number) -> Any:
        """The word that begins at a byte, which is a multiple of the width."""
        word = ir.IntegerType.get_signless(8 * self._width)
        return llvm.load(word, self._at(byte), alignment=self._width)

    def store(self, word: Any, byte: Number) -> None:
        """Overwrite the word that begins at a byte, likewise."""
        llvm.store(word, self._at(byte), alignment=self._width)

    def _at(self, byte: Number) -> Any:
        return mgpu.utils.getelementptr(self._start, [byte.value], ir.IntegerType.get_signless(8))


def repeat(
    count: "int | Number",
    take: Callable[[Sequence[Number], Sequence[T]], Sequence[T]],
    start: Sequence[T] = (),
    *,
    at_a_time: int,
) -> Sequence[T]:
    """Carry numbers through rounds: take(steps, carried), of `at_a_time` steps each.

    What a round loads for all of its steps before it stores anything is under way together. The
    last round is whole, too: steps from `count` on must do no harm. All threads that are here have
    the same count.
    """
    if not isinstance(count, Number):
        at_a_time = min(at_a_time, count)
        if count <= at_a_time:
            return take([number(i) for i in range(count)], start)
        count = number(count)
    rounds = (count + (at_a_time - 1)) // at_a_time
    loop: Any = scf.ForOp(_value(0), rounds.value, _value(1), [x.value for x in start])
    with ir.InsertionPoint(loop.body):
        first = Number(loop.induction_variable) * at_a_time
        carried = _like(start, loop.inner_iter_args)
        carried = take([first + i for i in range(at_a_time)], carried)
        scf.yield_([x.value for x in carried])
    return _like(start, loop.results)


@contextlib.contextmanager
def when(condition: Number) -> Generator[None]:
    """What the block writes is done only by threads of which a bool is true."""
    with mgpu.utils.when(condition.value):
        yield


def wait_for_all() -> None:
    """Wait until all threads are here, and see what they have stored in shared memory."""
    mgpu.utils.warpgroup_barrier()


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """What the block writes is done by one thread of the warpgroup.

    Mosaic's `single_thread` keeps in a variable of the process whether such a block is being
    written. If kernels are lowered by several threads of the host at once, some lose the condition.
    """
    with mgpu.utils.when(mgpu.utils.single_thread_predicate(mgpu.utils.ThreadSubset.WARPGROUP)):
        yield


def put(ref: Any, numbers: Sequence[Number]) -> None:
    """ref[:] = numbers in shared memory, by one thread; then all of the warpgroup see them."""
    with one_thread():
        for i, x in enumerate(numbers):
            store(ref, x, i)
    wait_for_all()


def clear_rows(tile: Any, first: Number) -> None:
    """Overwrite the rows of a tile with 0 from `first` on.

    Args:
        tile: [rows / 8, columns / 64, 8, 64] of 16 bits. The elements of 64 columns of a row may be
            in any order, as they are swizzled.
        first: A row; it may be negative, unlike other numbers.
    """
    kind = ir.MemRefType(tile.type)
    words = kind.shape[1] * 8  # of 16 bytes in a row
    vector_type = ir.VectorType.get((8,), kind.element_type)
    zero = ir.FloatAttr.get(kind.element_type, 0.0)
    zeros = arith.constant(vector_type, ir.DenseElementsAttr.get_splat(vector_type, zero))
    # From a row that is known late: else the compiler unrolls the loop, and hoists all addresses.
    begin = Number(arith.maxsi(first.value, _value(0))) * words + thread()
    loop: Any = scf.ForOp(begin.value, _value(kind.shape[0] * 8 * words), _value(WARPGROUP))
    with ir.InsertionPoint(loop.body):
        word = Number(loop.induction_variable)
        row, column = word // words, word % words
        at = row // 8, column // 8, row % 8, column % 8 * 8
        # Without the alignment it would be a store for each element.
        vector.store(zeros, tile, [index_of(i) for i in at], alignment=16)
        scf.yield_([])


def store_tile(tile: Any, registers: Any) -> None:
    """Store an accumulator in a tile that products read.

    A warp stores two groups of 8 columns of its 16 rows at a time: four matrices of 8 by 8, whose
    rows' addresses its threads give, 8 for each matrix (`stmatrix` in the PTX ISA).

    Args:
        tile: [8, columns / 64, 8, 64] of 16 bits, without gaps. Where the 8 elements of a group lie
            in a row of 64 is swizzled: the numbers of group and row are combined by xor.
        registers: The registers of an array [64, columns] of the same dtype; see `store_rows`.
    """
    groups, kind = registers.reshape(-1, 2), ir.MemRefType(tile.type)
    wide = kind.shape[1]
    assert kind.get_strides_and_offset()[0] == [wide * 8 * 64, 8 * 64, 64, 1], "it has gaps"
    lane, warp = thread() % WARP, thread() // WARP
    row, matrix = lane % 8, lane // 8
    first = ((warp * 2 + matrix % 2) * wide * 8 + row) * _BYTES_OF_ROW
    start, swizzled = mgpu.utils.memref_ptr(tile), matrix // 2 ^ row
    shape = ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>")
    for group in range(0, len(groups), 2):
        byte = first + (swizzled ^ group % 8) * 16 + group // 8 * 8 * _BYTES_OF_ROW
        at = mgpu.utils.getelementptr(start, [byte.value], ir.IntegerType.get_signless(8))
        pairs = [mgpu.utils.bitcast(x, _i32()) for x in groups[group : group + 2].reshape(-1)]
        nvvm.stmatrix(at, pairs, nvvm.MMALayout.row, shape, nvvm.LdStMatrixEltType.B16)


def store_rows(
    is_stored: Callable[[Number], Number],
    first: Number,
    places: Sequence[Any],
    registers: Sequence[Any],
) -> None:
    """Store rows of an accumulator, and numbers per row.

    Of two rows, 8 apart, a thread holds two neighbours of each group of 8 columns, and the numbers:
    see the figure of the accumulator of wgmma in the PTX ISA. Neighbours exchange columns, for 16
    bytes at a time are stored faster than 8.

    Args:
        is_stored: Whether to store a row, by its number in `places`.
        first: The number of the first row.
        places: [all rows, columns] and [all rows] ... in device memory; see `STORED_COLUMNS`.
        registers: The registers of arrays [64, columns or more] and [64] ...
    """
    (out, *of_rows), (values, *numbers) = places, [x.reshape(-1, 2) for x in registers]
    lane, warp = thread() % WARP, thread() // WARP
    odd, pairs = lane % 2, ir.MemRefType(out.type).shape[1] // STORED_COLUMNS
    for half in range(2):
        row = first + warp * 16 + lane // 4 + half * 8
        fours = [_four_columns(odd, *values[2 * i : 2 * i + 2, half]) for i in range(pairs)]
        with when(is_stored(row)):
            for i, four in enumerate(fours):
                column = odd * 8 + (lane % 4 // 2) * 4 + i * STORED_COLUMNS
                vector.store(four, out, [index_of(row), index_of(column)], alignment=16)
            for ref, of_row in zip(of_rows, numbers, strict=True):
                vector.store(of_row[0, half], ref, [index_of(row)], alignment=4)


def store_as_held(to: Any, registers: Any) -> None:
    """Store an accumulator in shared memory in an order of its own, 16 bytes at a time.

    Of two rows, a thread holds two neighbours of each group of 8 columns (`store_rows`). Those of
    one row and two groups come together. So the threads of a warp store 512 bytes, one after
    another, for each pair of groups; then come the two rows, and the warps.

    Args:
        to: f32[rows, columns] of 4,096 elements.
        registers: The registers of an array f32[64, 64].
    """
    values, width = registers.reshape(-1, 2), ir.MemRefType(to.type).shape[1]
    pairs = len(values) // 2
    for half in range(2):
        for i in range(pairs):
            one, other = values[2 * i : 2 * i + 2, half]
            four = vector.shuffle(one, other, [0, 1, 2, 3])
            place = ((thread() // WARP * 2 + half) * pairs + i) * WARP + thread() % WARP
            element = place * 4
            at = index_of(element // width), index_of(element % width)
            vector.store(four, to, at, alignment=16)


def _four_columns(odd: Number, one: Any, other: Any) -> Any:
    """Four columns of a group from two of one group and two of another, of each thread.

    An even thread gets its neighbour's of the first group, an odd one those of the second group.
    """
    is_odd = odd.equals(1).value
    got = mgpu.utils.shfl_bfly(arith.select(is_odd, one, other), 1)
    low, high = arith.select(is_odd, got, one), arith.select(is_odd, other, got)
    return vector.shuffle(low, high, [0, 1, 2, 3])


def index_of(x: "int | Number") -> Any:
    """A number as an index of MLIR's."""
    return arith.index_cast(ir.IndexType.get(), _value(x))


def _like(start: Sequence[T], values: Any) -> list[T]:
    return [type(x)(value) for x, value in zip(start, values, strict=True)]


def _value(x: "int | Number") -> Any:
    return x.value if isinstance(x, Number) else mgpu.utils.c(x, _i32())


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _all_of_warp() -> Any:
    return mgpu.utils.c(0xFFFFFFFF, _i32())
