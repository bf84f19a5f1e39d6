"""Pieces of tiles streamed through a ring in shared memory, from one warpgroup to two others.

Each operand has a ring of its own with a few places; a place is reused when both warpgroups have
arrived at its barrier. The callers choose the tiles.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu._copies import (
    clear_copied,
    copy_in,
    copy_in_first,
    copy_in_valid,
)
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._merged import located
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products
from shapeexec.attention.backends.mosaic_gpu._scratch import WIDE, Barriers, Shared
from shapeexec.attention.backends.mosaic_gpu._tiles import WARPGROUPS, place_of


@dataclasses.dataclass(frozen=True)
class Stream:
    """The ring of one operand.

    Attributes:
        tiles: [steps, rows, columns] in shared memory.
        ready, free: Barriers, one a place.
        landed: A barrier of the warpgroup that copies, if rows behind the valid length are to be
            cleared; else None.
        begins: i32[steps] in shared memory: where each piece begins in its array; None: the readers
            do not ask.
        products: The products that read the pieces.
        vectors: [steps, rows] each: numbers per row.
        parts: The number of parts of a piece, of which those behind the valid length are not
            copied, and keep what they hold; 1: all rows are copied.
    """

    tiles: Ref
    ready: Ref
    free: Ref
    products: Products | InterpretedProducts
    begins: Ref | None = None
    landed: Ref | None = None
    vectors: tuple[Ref, ...] = ()
    parts: int = 1

    @property
    def steps(self) -> int:
        """The number of places."""
        return self.tiles.shape[0]

    @property
    def rows(self) -> int:
        """The number of rows in a piece."""
        return self.tiles.shape[1]

    def send(self, source: "Source", first: Array, position: Array) -> None:
        """Start the copies of a piece as soon as its place is free."""
        self.settle(self.send_early(source, first, position))

    def send_early(self, source: "Source", first: Array, position: Array) -> "Owed":
        """Start the copies of a piece, and leave clearing its rows to `settle`.

        Before that no other piece that needs clearing may be sent, and of others fewer than the
        ring has places: a place becomes free when its piece is read, and this one is not read
        until it is cleared. If only a list's last piece may need it, one `settle` after all of
        them suffices.
        """
        place, valid = self._place(position), source.length - first
        plgpu.barrier_wait(self.free.at[place])
        if self.begins is not None:
            # Kept here: reading it from device memory again would stall those that compute.
            self.products.put(self.begins.at[pl.ds(place, 1)], [first])
        rows, at = pl.ds(first, self.rows), source.at(first, self.rows)
        to = (self.tile(place), self.ready.at[place])
        for vector, shared in zip(source.vectors, self.vectors, strict=True):
            plgpu.copy_gmem_to_smem(vector.at[rows], shared.at[place], to[1])
        if self.landed is None:
            copy_in_first(source.ref, at, *to, valid, parts=self.parts)
        else:
            copy_in_valid(source.ref, at, *to, self.landed, valid)
        return Owed(position, valid)

    def send_together(self, sources: Sequence["Source"], position: Array, *, rows: int) -> None:
        """Start the copies of the first rows of several sources into one piece.

        Args:
            sources: As many as the `copies` that its `scratch` was made for.
            position: The position of the piece in the stream.
            rows: The rows of each source.
        """
        place = self._place(position)
        plgpu.barrier_wait(self.free.at[place])
        tile, ready = self.tile(place), self.ready.at[place]
        for i, source in enumerate(sources):
            first = source.head * 0  # traced: JAX rejects a constant start
            copy_in(source.ref, source.at(first, rows), tile.at[pl.ds(i * rows, rows)], ready)

    def nothing_owed(self) -> "Owed":
        """What `settle` has nothing to do for."""
        return Owed(i32.constant(0), i32.constant(self.rows))

    def settle(self, owed: "Owed") -> None:
        """Clear the rows of a piece behind the valid length, when its copy has arrived."""
        if self.landed is not None:
            place = self._place(owed.position)
            shared, ready = self.tile(place), self.ready.at[place]
            clear_copied(self.products, shared, ready, self.landed, owed.valid)

    def tile(self, place: Array, rows: Any = None) -> Ref:
        """The piece at a place, or some of its rows, [rows, columns] in shared memory."""
        return self.products.part(self.tiles, place, rows)

    def begin(self, place: Array) -> Array:
        """Where the piece at a place begins in its array."""
        assert self.begins is not None
        return self.begins[place]

    def receive(self, position: Array) -> Array:
        """Wait for a piece, and return its place."""
        place = self._place(position)
        plgpu.barrier_wait(self.ready.at[place])
        return place

    def release(self, position: Array) -> None:
        """Signal that this warpgroup has read the piece."""
        self.products.release(self.free.at[self._place(position)])

    def drain(self, position: Array) -> None:
        """See `Products.drain`; `position` is the one behind all pieces."""
        self.products.drain(self.free, position, position + self.steps)

    def _place(self, position: Array) -> Array:
        """The place in the ring of a position in the stream."""
        return place_of(position, self.steps)


class Owed(NamedTuple):
    """A piece whose rows behind the valid length may have to be cleared yet. All i32[].

    Attributes:
        position: The position of the piece in its stream.
        valid: The number of its valid rows; if it has no more, nothing is to be cleared.
    """

    position: Array
    valid: Array


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of pieces.

    Attributes:
        ref: [B, T, N, H] in device memory; or pages, [P, rows of a page, N, H].
        batch: The example: an index into `ref`, or into `pages` if there are any.
        head: The head.
        length: The valid length.
        vectors: [whole tiles] each: numbers per row.
        pages: The numbers of each example's pages, i32[B, pages of one] in device memory; None:
            there are no pages.
    """

    ref: Ref
    batch: Any
    head: Array
    length: Array
    vectors: Sequence[Ref] = ()
    pages: Ref | None = None

    def located(self) -> "Source":
        """It, with the place of the example computed once, not for each piece."""
        if self.pages is None:
            ref, batch = located(self.ref, self.batch)
            return dataclasses.replace(self, ref=ref, batch=batch)
        pages, batch = located(self.pages, self.batch)
        return dataclasses.replace(self, pages=pages, batch=batch)

    def at(self, first: Array, rows: int) -> tuple[Any, ...]:
        """The index into the first three axes of `rows` rows, all in one page."""
        if self.pages is None:
            return self.batch, pl.ds(first, rows), self.head
        size = i32.constant(self.ref.shape[1])
        # A tile may extend past the last page. Those keys are masked, but some page must be read.
        page = i32.minimum(lax.div(first, size), self.pages.shape[1] - 1)
        return self.pages[self.batch, page], pl.ds(lax.rem(first, size), rows), self.head


def scratch(
    steps: int,
    *,
    rows: int,
    columns: int,
    dtype: Any,
    tells: bool = False,
    clears: bool = False,
    vectors: Sequence[Any] = (),
    copies: int = 1,
    readers: int = WARPGROUPS,
) -> dict[str, Any]:
    """The scratch that a `Stream` needs, by the names of its attributes.

    Args:
        steps: The number of places.
        rows: The rows of a piece.
        columns: The columns of a piece.
        dtype: The dtype of the tiles.
        tells: Whether the readers may ask where a piece begins.
        clears: Whether rows behind the valid length become 0.
        vectors: The dtypes of the numbers that come with the rows.
        copies: The number of copies that a piece arrives by.
        readers: The number of warpgroups that read each piece.
    """
    needed = {
        "tiles": Shared((steps, rows, columns), dtype, order=WIDE),
        "ready": Barriers(count=steps, arrivals=copies + len(vectors)),
        "free": Barriers(count=steps, arrivals=readers),
        "vectors": tuple(Shared((steps, rows), kind) for kind in vectors),
    }
    begins = {"begins": Shared((steps,), jnp.int32)} if tells else {}
    return {**needed, **begins, **({"landed": Barriers()} if clears else {})}
