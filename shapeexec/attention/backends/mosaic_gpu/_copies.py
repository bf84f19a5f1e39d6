"""Copies of tiles between device memory and shared memory.

The TMA unit fills the part of a tile behind an array's end with 0 and does not store it; rows
behind a valid length inside an array are cleared here.
"""

import functools
from typing import Any

from jax import Array

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._branches import branch, when
from shapeexec.attention.backends.mosaic_gpu._interpreted import InterpretedProducts
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu
from shapeexec.attention.backends.mosaic_gpu._products import Products


def copy_in(ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref) -> None:
    """Start the copy of ref[at] to `shared`, which arrives at `ready` when it is done.

    Args:
        ref: [B, T, N, H] in device memory.
        at: The index into the first three axes; the slice of T may extend past the end.
        shared: [rows, columns], with H columns or more.
        ready: A barrier.
    """
    plgpu.copy_gmem_to_smem(ref.at[(*at, _columns(at, shared))], shared, ready)


def copy_in_parts(
    ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array | None, *, parts: int
) -> None:
    """Start the copies of the parts of a tile that hold valid rows; each part arrives at `ready`.

    Args:
        ref: See `copy_in`.
        at: The example, the first row and the head.
        shared: See `copy_in`; where a part is left out, it keeps what it holds.
        ready: See `copy_in`.
        valid: The number of valid rows; it may be negative, or exceed the number of rows. None:
            all are.
        parts: The number of parts.
    """
    rows = shared.shape[0] // parts
    for part in range(parts):
        _copy_in_part(ref, at, shared, ready, valid, first=part * rows, rows=rows)


def _copy_in_part(
    ref: Ref,
    at: tuple[Any, ...],
    shared: Ref,
    ready: Ref,
    valid: Array | None,
    *,
    first: Any,
    rows: int,
) -> None:
    batch, begin, head = at
    place = batch, pl.ds(begin + first, rows), head
    copy = functools.partial(copy_in, ref, place, shared.at[pl.ds(first, rows)], ready)
    if valid is None:
        copy()
    else:
        branch(valid > first, copy, lambda: plgpu.barrier_arrive(ready))


def copy_in_first(
    ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, valid: Array, *, parts: int
) -> None:
    """Start a copy as `copy_in_parts` does, in one piece if its last part has valid rows.

    Args:
        ref: See `copy_in`.
        at: The example, the slice of rows and the head.
        shared: See `copy_in_parts`.
        ready: See `copy_in`; as many arrive at it as there are parts.
        valid: The number of valid rows; it may be negative, or exceed the number of rows.
        parts: The number of parts, taken in a loop: each copy that is written out takes time to
            compile.
    """
    if parts == 1:
        copy_in(ref, at, shared, ready)
        return
    (batch, whole, head), rows = at, shared.shape[0] // parts

    def in_one() -> None:
        copy_in(ref, at, shared, ready)
        for _ in range(parts - 1):
            plgpu.barrier_arrive(ready)

    def in_parts() -> None:
        @pl.loop(0, parts)
        def _(part: Array) -> None:
            begin = batch, whole.start, head
            _copy_in_part(ref, begin, shared, ready, valid, first=part * rows, rows=rows)

    branch(valid > shared.shape[0] - rows, in_one, in_parts)


def copy_in_valid(
    ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, landed: Ref, valid: Array
) -> None:
    """Start a copy as `copy_in` does, whose rows from `valid` on `clear_copied` is to clear.

    Args:
        ref: See `copy_in`.
        at: See `copy_in`.
        shared: See `copy_in`.
        ready: See `copy_in`. If there are rows to clear, `clear_copied` arrives at it.
        landed: A barrier that only the warpgroup uses that copies.
        valid: The number of valid rows; it may exceed the number of rows.
    """
    branch(
        valid < shared.shape[0],
        lambda: copy_in(ref, at, shared, landed),
        lambda: copy_in(ref, at, shared, ready),
    )


def clear_copied(
    products: Products | InterpretedProducts,
    shared: Ref,
    ready: Ref,
    landed: Ref,
    valid: Array,
) -> None:
    """Wait for a copy of `copy_in_valid`, and clear its rows, if any are not valid."""

    @when(valid < shared.shape[0])
    def _() -> None:
        plgpu.barrier_wait(landed)
        products.clear(shared, valid)
        plgpu.commit_smem()
        plgpu.barrier_arrive(ready)


def copy_out(shared: Ref, ref: Ref, at: tuple[Any, ...]) -> None:
    """Start the copy of `shared` to ref[at], in the next committed group; see `copy_in`."""
    plgpu.copy_smem_to_gmem(shared, ref.at[(*at, _columns(at, shared))], commit_group=False)


def _columns(at: tuple[Any, ...], shared: Ref) -> Any:
    # Where the start is known, JAX refuses columns behind the array's end.
    return pl.ds(at[-1] * 0, shared.shape[1])
