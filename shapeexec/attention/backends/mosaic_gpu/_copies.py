"""Copies of tiles between device memory and shared memory.

The TMA unit fills the part of a tile behind an array's end with 0 and does not store it; rows
behind a valid length inside an array are cleared here.
"""

# Pallas and cuDNN have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from typing import Any

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu._products import clear_rows

_BLOCK = 64  # rows and columns cleared at a time: few registers are left where copies are made


def copy_in(ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref) -> None:
    """Start the copy of ref[at] to `shared`, which arrives at `ready` when it is done.

    Args:
        ref: [B, T, N, H] in device memory.
        at: The index into the first three axes; the slice of T may extend past the end.
        shared: [rows, columns], with H columns or more.
        ready: A barrier.
    """
    plgpu.copy_gmem_to_smem(ref.at[(*at, _columns(at, shared))], shared, ready)


def copy_in_valid(
    ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, landed: Ref, valid: Array
) -> None:
    """Copy as `copy_in` does, with 0 in the rows from `valid` on; for a whole warpgroup.

    Args:
        ref: See `copy_in`.
        at: See `copy_in`.
        shared: See `copy_in`.
        ready: See `copy_in`.
        landed: A barrier that only this warpgroup uses.
        valid: The number of valid rows; it may exceed the number of rows.
    """
    begin_copy_in_valid(ref, at, shared, ready, landed, valid)
    end_copy_in_valid(shared, ready, landed, valid)


def begin_copy_in_valid(
    ref: Ref, at: tuple[Any, ...], shared: Ref, ready: Ref, landed: Ref, valid: Array
) -> None:
    """The first half of `copy_in_valid`, which does not wait."""
    is_whole = valid >= shared.shape[0]
    lax.cond(
        is_whole,
        lambda: copy_in(ref, at, shared, ready),
        lambda: copy_in(ref, at, shared, landed),
    )


def end_copy_in_valid(shared: Ref, ready: Ref, landed: Ref, valid: Array) -> None:
    """The second half of `copy_in_valid`: wait for the copy, and clear rows, if there are any."""
    rows, columns = shared.shape
    across = columns // _BLOCK

    @pl.when(valid < rows)
    def _() -> None:
        plgpu.barrier_wait(landed)

        # A loop, since each copy of its body takes time to compile.
        @pl.loop(0, rows // _BLOCK * across)
        def _(i: Array) -> None:
            row, column = lax.div(i, across) * _BLOCK, lax.rem(i, across) * _BLOCK
            block = shared.at[pl.ds(row, _BLOCK), pl.ds(column, _BLOCK)]
            value = plgpu.layout_cast(block[...], plgpu.Layout.WGMMA)
            block[...] = clear_rows(valid - row, value)

        plgpu.commit_smem()
        plgpu.barrier_arrive(ready)


def copy_out(shared: Ref, ref: Ref, at: tuple[Any, ...]) -> None:
    """Start the copy of `shared` to ref[at], in the next committed group; see `copy_in`."""
    plgpu.copy_smem_to_gmem(shared, ref.at[(*at, _columns(at, shared))], commit_group=False)


def _columns(at: tuple[Any, ...], shared: Ref) -> Any:
    # Where the start is known, JAX refuses columns behind the array's end.
    return pl.ds(at[0] * 0, shared.shape[1])
