"""Arrays whose first axes are one in device memory, so that a kernel's text has no sizes of them.

Where T and S are whole tiles no copy overhangs an example, so the rows of all examples can be those
of one array. How long the axes are a kernel is told when it runs.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownVariableType=false

import dataclasses
from typing import Any

from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._pallas import pl

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
        sizes: The sizes of the merged axes; None: a first one of any size, which no place needs.
        begin: The place of the array in the merged axis, i32[].
    """

    ref: Ref
    sizes: tuple[Size | Kept | None, ...]
    begin: Size = 0

    @property
    def shape(self) -> tuple[Size | Kept | None, ...]:
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
        rest = self.sizes[len(index) :]
        if rest:
            return Merged(self.ref, rest, self._place((*index, *(0 for _ in rest))))
        return self.ref.at[self.index(index)]

    def only(self, first: Any) -> "Merged":
        """The part at an index into the first axis, as an array in which it is the only one."""
        rest = self.sizes[1:]
        return Merged(self.ref, (1, *rest), self._place((first, *(0 for _ in rest))))

    def index(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """The index into `ref`; of the merged axes only the last one may have a slice."""
        merged, others = index[: len(self.sizes)], index[len(self.sizes) :]
        last = merged[-1]
        if not isinstance(last, pl.Slice):
            return (self._place(merged), *others)
        return (pl.ds(self._place((*merged[:-1], last.start)), last.size), *others)

    def _place(self, index: tuple[Any, ...]) -> Size:
        """The place of an element in the merged axis."""
        place: Any = 0
        for i, size in zip(index, self.sizes, strict=True):
            if not _is_0(place):
                place *= size.read() if isinstance(size, Kept) else size
            place = _sum(place, i)
        return _sum(self.begin, place)


def located(ref: Ref, batch: Array) -> tuple[Ref, Any]:
    """An array, and the index of an example in it, whose place is computed once."""
    return (ref.only(batch), 0) if isinstance(ref, Merged) else (ref, batch)


def _is_0(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _sum(a: Any, b: Any) -> Any:
    return b if _is_0(a) else a if _is_0(b) else a + b


@dataclasses.dataclass(frozen=True)
class _At:
    merged: Merged

    def __getitem__(self, index: Any) -> Any:
        return self.merged.part(_as_tuple(index))


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)
