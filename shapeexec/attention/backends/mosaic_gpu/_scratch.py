"""Describes the shared memory and the barriers of a kernel without Pallas.

They are part of the key under which a kernel is kept, and who finds one there imports no Pallas.
"""

import dataclasses
import operator
from typing import Any, NamedTuple

import jax

from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu

ROW_GROUP = 8  # rows lie in groups in shared memory; copies take whole groups
_SWIZZLE = 128  # bytes


class Tiled(NamedTuple):
    """An order of the elements in shared memory: tiles, one after the other, swizzled inside.

    Attributes:
        rows, columns: The sizes of a tile, whose rows have 128 bytes.
    """

    rows: int
    columns: int

    def to_pallas(self) -> tuple[Any, ...]:
        """The same in Pallas' terms."""
        return plgpu.TilingTransform(tuple(self)), plgpu.SwizzleTransform(_SWIZZLE)


WIDE = Tiled(ROW_GROUP, 64)
"""The order of tiles that products read, of 16 bits."""

SUMS = Tiled(ROW_GROUP, 32)
"""The order of f32 sums that are copied out: by lane, none is stored in plain rows.

An array that they are copied to has columns in multiples of a tile's.
"""


@dataclasses.dataclass(frozen=True)
class Shared:
    """An array in shared memory.

    Attributes:
        shape, dtype: Its shape and dtype.
        order: The order of its elements along the last two axes; None: row by row.
    """

    shape: tuple[int, ...]
    dtype: Any
    order: Tiled | None = None

    def to_pallas(self) -> Any:
        """The same in Pallas' terms."""
        transforms = () if self.order is None else self.order.to_pallas()
        return plgpu.SMEM(self.shape, self.dtype, transforms=transforms)


@dataclasses.dataclass(frozen=True)
class Barriers:
    """Barriers in shared memory.

    Attributes:
        count: Their number.
        arrivals: How many arrivals complete a phase of each one.
    """

    count: int = 1
    arrivals: int = 1

    def to_pallas(self) -> Any:
        """The same in Pallas' terms."""
        return plgpu.Barrier(num_barriers=self.count, num_arrivals=self.arrivals)


def to_pallas(scratch: Any) -> Any:
    """A pytree of these in Pallas' terms."""
    return jax.tree.map(operator.methodcaller("to_pallas"), scratch)
