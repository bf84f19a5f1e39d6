"""Arrays whose first axes are one in device memory, so that a kernel's text has no sizes of them.

Where T and S are whole tiles no copy overhangs an example, so the rows of all examples can be those
of one array. How long the axes are a kernel is told when it runs.
"""

# Pallas has partly unknown types.
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

from jax import Array
from jax.experimental import pallas as pl

from shapeexec.attention.backends._base import Ref

Size = int | Array


@dataclasses.dataclass(frozen=True)
class Kept:
    """A size that lies in shared memory, and is read where it is needed.

    The warpgroups that compute have no register for it: holding it made forward 4 % slower.

    Attributes:
        ref: i32[sizes] in shared memory.
        place: The place of the size.
    """

    ref: Ref
    place: int

    def read(self) -> Array:
        """The size, i32[]."""
        return self.ref[self.place]


@dataclasses.dataclass(frozen=True)
class Merged:
    """An array with merged axes, which is indexed as if it had all of them.

    Attributes:
        ref: [the merged axes, ...] in device memory.
        sizes: The sizes of the merged axes.
        begin: The place of the array in the merged axis, in units of its size, i32[].
    """

    ref: Ref
    sizes: tuple[Size | Kept, ...]
    begin: Size = 0

    @property
    def shape(self) -> tuple[Size | Kept, ...]:
        """The sizes of all axes."""
        return (*self.sizes, *self.ref.shape[1:])

    @property
    def at(self) -> "_At":
        """As that of a reference: at[index] is a part of it."""
        return _At(self)

    def __getitem__(self, index: Any) -> Array:
        return self.ref[self.index(_as_tuple(index))]

    def part(self, index: tuple[Any, ...]) -> Any:
        """The part at an index into some of the merged axes, or into all and others."""
        if len(index) < len(self.sizes):
            return Merged(self.ref, self.sizes[len(index) :], self._place(index))
        return self.ref.at[self.index(index)]

    def index(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """The index into `ref`; of the merged axes only the last one may have a slice."""
        merged, others = index[: len(self.sizes)], index[len(self.sizes) :]
        last = merged[-1]
        if not isinstance(last, pl.Slice):
            return (self._place(merged), *others)
        return (pl.ds(self._place((*merged[:-1], last.start)), last.size), *others)

    def _place(self, index: tuple[Any, ...]) -> Size:
        """The place of an element of the first axes, in units of what it holds."""
        place = self.begin
        for i, size in zip(index, self.sizes, strict=False):
            is_first = isinstance(place, int) and place == 0
            place = i if is_first else place * (size.read() if isinstance(size, Kept) else size) + i
        return place


@dataclasses.dataclass(frozen=True)
class _At:
    merged: Merged

    def __getitem__(self, index: Any) -> Any:
        return self.merged.part(_as_tuple(index))


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)
