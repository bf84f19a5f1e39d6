"""`Products` and `Memory` in Pallas' GPU interpreter, which runs on the CPU and looks for races.

It supports neither a product whose left operand is in registers nor a store into an accumulator, so
accumulators are plain shared memory. It knows no single threads, and asks that each barrier is
waited for as often as it completes.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _threads
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import clear_rows
from shapeexec.attention.backends.mosaic_gpu._tiles import place_of


class InterpretedMemory:
    """See `Memory`."""

    def meet(self) -> None:
        """See `Memory`. Here a warpgroup is one thread."""

    def part(self, tiles: Ref, place: Array, rows: Any = None) -> Ref:
        """See `Memory`."""
        return tiles.at[place] if rows is None else tiles.at[place, rows]

    def held(self, tile: Ref) -> Array:
        """See `Memory`."""
        return tile[...]

    def store(self, to: Ref, value: Array) -> None:
        """See `Memory`."""
        to[...] = value

    def clear(self, tile: Ref, first: Array) -> None:
        """See `Memory`."""
        tile[...] = clear_rows(first, tile[...])

    def put(self, to: Ref, numbers: Sequence[Array]) -> None:
        """See `Memory`."""
        for i, x in enumerate(numbers):
            to[i] = x

    def numbers(self, ref: Ref, count: int) -> list[Array]:
        """See `Memory`."""
        return [ref[i] for i in range(count)]

    def store_rows(
        self,
        is_stored: Callable[[Any], Any],
        first: Array,
        places: Sequence[Ref],
        arrays: Sequence[Array],
    ) -> None:
        """See `Memory`. Rows without a query are stored as NaN, so that nobody relies on them."""
        rows = min(arrays[0].shape[0], places[0].shape[0])
        stored = is_stored(first + jnp.arange(rows))
        for place, array in zip(places, arrays, strict=True):
            value = array[(slice(rows), *map(slice, place.shape[1:]))]
            whose = stored.reshape(rows, *[1] * (value.ndim - 1))
            place[pl.ds(first, rows)] = jnp.where(whose, value, jnp.nan)

    def look_up(self, table: Ref, index: Array) -> Array:
        """See `Memory`."""
        return jnp.take(table[...], index, mode="clip")

    def drain(self, free: Ref, first: Array, end: Array) -> None:
        """See `Memory`. The interpreter asks for it."""

        @pl.loop(first, end)
        def _(i: Array) -> None:
            plgpu.barrier_wait(free.at[place_of(i, free.shape[0])])


@dataclasses.dataclass(frozen=True)
class InterpretedProducts(InterpretedMemory):
    """Accumulators in shared memory, for the interpreter.

    Attributes:
        pool: f32 references [warpgroups, ...], one for each accumulator that is held at a time.
        warpgroup: The number of the warpgroup.
    """

    pool: list[Ref]
    warpgroup: Array

    def hold(self, body: Callable[..., Any], *shapes: tuple[int, int]) -> Any:
        """See `Products`."""
        with self._taken(shapes) as accumulators:
            for accumulator, shape in zip(accumulators, shapes, strict=True):
                accumulator[...] = jnp.zeros(shape, jnp.float32)
            return body(*accumulators)

    def add(self, accumulator: Ref, left: Ref | Array, right: Ref) -> None:
        """See `Products`."""
        product = jnp.dot(left[...], right[...], preferred_element_type=jnp.float32)
        accumulator[...] = accumulator[...] + product

    def read(self, accumulator: Ref, *, pending: int = 0) -> Array:
        """See `Products`."""
        del pending
        return accumulator[...]

    def write(self, accumulator: Ref, value: Array) -> None:
        """See `Products`."""
        accumulator[...] = value

    def wait(self) -> None:
        """See `Products`."""

    def release(self, free: Ref) -> None:
        """See `Products`. Here the loads are ordinary, and the race detector requires the fence."""
        plgpu.commit_smem()
        plgpu.barrier_arrive(free)

    def shares_of_sums(self, x: Array) -> Array:
        """See `Products`."""
        return x.sum(axis=1) / _threads.OF_ROW

    def joined(self, shares: Array) -> Array:
        """See `Products`."""
        return shares * _threads.OF_ROW

    @contextlib.contextmanager
    def _taken(self, shapes: Sequence[tuple[int, int]]) -> Generator[list[Ref]]:
        taken = []
        for shape in shapes:
            place = next(i for i, ref in enumerate(self.pool) if ref.shape[1:] == shape)
            taken.append(self.pool.pop(place))
        try:
            yield [ref.at[self.warpgroup] for ref in taken]
        finally:
            self.pool.extend(taken)
