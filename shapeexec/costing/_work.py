"""Amounts of work, by kind, of one equation or of many.

`_table` has the work of primitives, and `_speed` the time of a device for each kind.
"""

import dataclasses

from shapeexec.costing._polynomial import NOTHING, Polynomial


@dataclasses.dataclass(frozen=True)
class Work:
    """How much of each kind of work is done, as polynomials in sizes.

    Attributes:
        flops: Additions, multiplications, comparisons and the like; 2 for each product of a matrix
            product or a convolution.
        convolved: The FLOPs of convolutions, which are in `flops` too and have a separate speed.
        transcendentals: Exponentials, logarithms, tanh, divisions by a root and the like.
        bytes: Bytes that are read from and written to memory, outside of fusions.
        launches: Loops, matrix products and other kernels that are started one after another.
    """

    flops: Polynomial = NOTHING
    convolved: Polynomial = NOTHING
    transcendentals: Polynomial = NOTHING
    bytes: Polynomial = NOTHING
    launches: Polynomial = NOTHING

    def __add__(self, other: "Work") -> "Work":
        pairs = zip(self.amounts, other.amounts, strict=True)
        return Work(*(one + another for one, another in pairs))

    def times(self, count: Polynomial) -> "Work":
        """The work of doing it `count` times."""
        return Work(*(amount * count for amount in self.amounts))

    @property
    def amounts(self) -> tuple[Polynomial, ...]:
        """How much of each kind, in the order of the fields."""
        return self.flops, self.convolved, self.transcendentals, self.bytes, self.launches
