"""Tensor-core products into accumulators.

`_interpreted` has the same methods for the interpreter. Kernels choose the operands.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from jax import Array, lax

from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _i32 as i32
from shapeexec.attention.backends.mosaic_gpu import _reals, _threads
from shapeexec.attention.backends.mosaic_gpu._memory import Memory
from shapeexec.attention.backends.mosaic_gpu._pallas import pl, plgpu


@dataclasses.dataclass(frozen=True)
class Products(Memory):
    """Accumulators in registers, as the hardware has them."""

    def hold(self, body: Callable[..., Any], *shapes: tuple[int, int]) -> Any:
        """Run body(*accumulators) with accumulators f32[shape] that are 0."""
        accumulator = functools.partial(plgpu.WGMMAAccumulatorRef, dtype=jnp.float32)
        return pl.run_scoped(body, *map(accumulator, shapes))

    def add(self, accumulator: Ref, left: Ref | Array, right: Ref) -> None:
        """Start accumulator += left @ right, which runs asynchronously."""
        plgpu.wgmma(accumulator, left, right)

    def read(self, accumulator: Ref, *, pending: int = 0) -> Array:
        """The accumulator, once all but the last `pending` products are done."""
        return plgpu.wgmma_accumulator_load(accumulator, wait_n=pending)

    def write(self, accumulator: Ref, value: Array) -> None:
        """Overwrite the accumulator."""
        accumulator[...] = value

    def wait(self) -> None:
        """Wait until every product is done."""
        plgpu.wgmma_wait(0)

    def release(self, free: Ref) -> None:
        """Signal at a barrier that a copy may overwrite the operands.

        Products and copies use the same proxy, so they need no fence. PTX requires a fence after
        ordinary loads. It is left out here, as in CUTLASS and FlashAttention-3: loads of vectors
        are done when their values are used.
        """
        plgpu.barrier_arrive(free)

    def shares_of_sums(self, x: Array) -> Array:
        """Each thread's share of the sums of rows, of the columns that it holds.

        They may be added, and multiplied by numbers per row; then `joined` makes sums of them.

        Args:
            x: f32[rows, columns], laid out as an accumulator.

        Returns:
            f32[rows], laid out as numbers per row are: there all threads of a row hold the same.
        """
        made = plgpu.ShapeDtypeStruct(x.shape[:1], x.dtype, layout=plgpu.Layout.WGMMA.reduce(1))

        @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA,), return_type=made)
        def add_up(_: Any, x: Any) -> Any:
            return _reals.as_rows(_reals.sums_of_rows(x.registers))

        return add_up(x)

    def joined(self, shares: Array) -> Array:
        """The sums of rows from the threads' shares, f32[rows]."""
        layout = plgpu.Layout.WGMMA.reduce(1)
        made = plgpu.ShapeDtypeStruct(shares.shape, shares.dtype, layout=layout)

        @plgpu.inline_mgpu(arg_types=(layout,), return_type=made)
        def join(_: Any, shares: Any) -> Any:
            of_rows = _reals.from_rows(shares.registers)
            return _reals.as_rows([_threads.sum_of(x, _threads.OF_ROW) for x in of_rows])

        return join(shares)


def in_loop(index: Array, carried: Array) -> Array:
    """The index, made to depend on the loop, so that addresses are recomputed in each step.

    The compiler would hoist each loop-invariant address into a register, and spill: loading it back
    is slower than computing it.

    Args:
        index: The index of a tile in shared memory.
        carried: A value that the loop carries, i32[]; not negative, unknown to the compiler.
    """
    return index + lax.shift_right_logical(carried, i32.constant(31))


def vector(value: float, rows: int) -> Array:
    """f32[rows], laid out as the row maxima of an accumulator are."""
    return plgpu.layout_cast(jnp.full((rows,), value, jnp.float32), plgpu.Layout.WGMMA.reduce(1))


def load(
    ref: Ref, *, of: Literal["rows", "columns", "pairs"], where: Literal["shared", "device"]
) -> Array:
    """Load one number per row, per column or per element of an accumulator.

    Args:
        ref: [rows], [columns] or [rows, columns].
        of: The kind of `ref`.
        where: The memory that `ref` is in.
    """
    layout = {
        "rows": plgpu.Layout.WGMMA.reduce(1),
        "columns": plgpu.Layout.WGMMA.reduce(0),
        "pairs": plgpu.Layout.WGMMA,
    }[of]
    # Mosaic refuses loads from device memory that are not vectorized unless `optimized=False`.
    return plgpu.load(ref, layout=layout, optimized=where == "shared")  # pyright: ignore[reportCallIssue] - jax 0.10 wants an index


def positions(count: int, *, of: Literal["rows", "columns"]) -> Array:
    """0, 1, ... for the rows or the columns of an accumulator, i32[count]."""
    layout = plgpu.Layout.WGMMA.reduce(1 if of == "rows" else 0)
    return plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=layout)


def clear_rows(valid: Array, x: Array) -> Array:
    """A warpgroup's `x` with 0 in the rows from `valid` on, which may hold NaN."""
    is_valid = positions(x.shape[0], of="rows") < valid
    return jnp.where(along_rows(is_valid, x.shape), x, jnp.zeros_like(x))


def mask_columns(end: Array, first: Array, scores: Array, masked: float) -> Array:
    """Scores whose columns begin at position `first`, with `masked` from position `end` on."""
    is_valid = positions(scores.shape[1], of="columns") < end - first
    return jnp.where(along_columns(is_valid, scores.shape), scores, masked)


def along_rows(column: Array, shape: tuple[int, ...]) -> Array:
    """column[rows] for each column of [rows, columns]."""
    return lax.broadcast_in_dim(column, shape, [0])


def along_columns(row: Array, shape: tuple[int, ...]) -> Array:
    """row[columns] for each row of [rows, columns]."""
    return lax.broadcast_in_dim(row, shape, [1])
