"""Amounts of work of one equation, or of many: what a device is timed by.

How much a primitive does is in `_table`, and how long a device takes in `_speed`.
"""

import dataclasses

from shapeexec.costing._polynomial import NOTHING, Polynomial


@dataclasses.dataclass(frozen=True)
class Work:
    """How much of each kind of work is done, as polynomials in sizes.

    Attributes:
        flops: Additions, multiplications, comparisons and the like; 2 for each product of a matrix
            product or a convolution.
        transcendentals: Exponentials, logarithms, tanh, divisions by a root and the like.
        bytes: Bytes that are read from and written to memory, outside of fusions.
        launches: Loops, matrix products and other kernels that are started one after another.
    """

    flops: Polynomial = NOTHING
    transcendentals: Polynomial = NOTHING
    bytes: Polynomial = NOTHING
    launches: Polynomial = NOTHING

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
            self.launches + other.launches,
        )

    def times(self, count: Polynomial) -> "Work":
        """The work of doing it `count` times."""
        return Work(
            self.flops * count,
            self.transcendentals * count,
            self.bytes * count,
            self.launches * count,
        )
