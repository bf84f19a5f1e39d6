"""A function with the sizes that one graph takes: their ranges, and their layout in one vector.

`_compile` makes a graph of them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shapeexec.masking._hosted import host_operands, unpacked
from shapeexec.shape._host import HostOperand, packed
from shapeexec.shape._trace import Trace


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    """The sizes of a call, and the numbers computed from them, as one vector: i32[words].

    Attributes:
        symbols: The symbols; their sizes come first in the vector.
        operands: The numbers that the host computes; their bits follow the sizes.
    """

    symbols: tuple[str, ...]
    operands: tuple[HostOperand, ...]

    def vector(self, sizes: Mapping[str, int]) -> np.ndarray:
        """The vector at some sizes.

        Raises:
            Exception: Whatever the function's own arithmetic raises at these sizes.
        """
        head = np.asarray([sizes[symbol] for symbol in self.symbols], np.int32)
        return np.concatenate([head, packed(self.operands, sizes)]) if self.operands else head

    def read(self, vector: Any) -> tuple[dict[str, Any], dict[HostOperand, Any]]:
        """The sizes and the numbers that a vector holds."""
        count = len(self.symbols)
        sizes = {symbol: vector[i] for i, symbol in enumerate(self.symbols)}
        return sizes, unpacked(self.operands, vector[count:])

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of the vector."""
        words = len(self.symbols) + sum(operand.words for operand in self.operands)
        return jax.ShapeDtypeStruct((words,), np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Sized:
    """A function, and the buckets of one graph.

    Attributes:
        trace: The function at symbolic sizes; for a map, the function of one example.
        symbols: The order of the symbols in the vector of sizes.
        ranges: Per symbol the least size and the bucket.
        poison: See `Masked`.
    """

    trace: Trace
    symbols: tuple[str, ...]
    ranges: Mapping[str, tuple[int, int]]
    poison: str | None

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The layout of the vector of sizes."""
        return Numbers(self.symbols, host_operands(self.trace, self.ranges))
