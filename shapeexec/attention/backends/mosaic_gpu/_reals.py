"""Real numbers of single threads. `_threads` has the integers, and all else that threads do."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shapeexec.attention.backends.mosaic_gpu._pallas import arith, ir, memref, mgpu, vector
from shapeexec.attention.backends.mosaic_gpu._pallas import math as mlir_math
from shapeexec.attention.backends.mosaic_gpu._threads import Number, index_of


@dataclasses.dataclass(frozen=True)
class Real:
    """An f32 of each thread."""

    value: Any

    def __add__(self, other: "float | Real") -> "Real":
        return Real(arith.addf(self.value, _value(other)))

    def __sub__(self, other: "float | Real") -> "Real":
        return Real(arith.subf(self.value, _value(other)))

    def __mul__(self, other: "float | Real") -> "Real":
        return Real(arith.mulf(self.value, _value(other)))

    def __truediv__(self, other: "float | Real") -> "Real":
        return Real(arith.divf(self.value, _value(other)))

    def is_not(self, other: float) -> Number:
        """Whether it is another number than a constant, or NaN."""
        return Number(arith.cmpf(arith.CmpFPredicate.UNE, self.value, _value(other)))

    def at_least(self, other: "float | Real") -> "Real":
        """The greater of both; NaN if one is."""
        return Real(arith.maximumf(self.value, _value(other)))

    def exp(self) -> "Real":
        """The exponential."""
        return Real(mlir_math.exp2((self * math.log2(math.e)).value))


def real(value: float) -> Real:
    """A constant."""
    return Real(arith.constant(_f32(), ir.FloatAttr.get(_f32(), value)))


def sums_of_rows(registers: Any) -> list[Real]:
    """The sums of what a thread holds of its two rows of an accumulator (`_threads.store_rows`).

    Args:
        registers: The registers of an array f32[64, columns].
    """
    return [_sum_of_pairs(map(_elements, pairs)) for pairs in registers.reshape(-1, 2).T]


def _sum_of_pairs(pairs: Iterator[tuple[Real, Real]]) -> Real:
    first, second = next(pairs)
    for one, other in pairs:
        first, second = first + one, second + other
    return first + second


def _elements(pair: Any) -> tuple[Real, Real]:
    one, other = (Real(vector.extract(pair, [], [i])) for i in range(2))
    return one, other


def from_rows(registers: Any) -> list[Real]:
    """The numbers of a thread's two rows, from the registers of an array f32[64]."""
    return [Real(vector.extract(x, [], [0])) for x in registers.flat]


def as_rows(numbers: Sequence[Real]) -> Any:
    """The inverse of `from_rows`: an array f32[64]."""
    layout = mgpu.WGMMA_ROW_LAYOUT
    registers = np.empty(layout.registers_shape((64,)), dtype=object)
    one = ir.VectorType.get((1,), _f32())
    registers.reshape(-1)[:] = [vector.broadcast(one, x.value) for x in numbers]
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def choose(condition: Number, one: "float | Real", other: "float | Real") -> Real:
    """One number where a bool is true, else the other one."""
    return Real(arith.select(condition.value, _value(one), _value(other)))


def load_real(ref: Any, *at: "int | Number") -> Real:
    """ref[at], of f32."""
    return Real(memref.load(ref, [index_of(i) for i in at]))


def store_rounded(ref: Any, x: Real, *at: "int | Number") -> None:
    """ref[at] = x, of a dtype with 16 bits."""
    rounded = arith.truncf(ir.MemRefType(ref.type).element_type, x.value)
    memref.store(rounded, ref, [index_of(i) for i in at])


def _value(x: "float | Real") -> Any:
    return x.value if isinstance(x, Real) else real(x).value


def _f32() -> Any:
    return ir.F32Type.get()
