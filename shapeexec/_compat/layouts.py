"""The layout of an array in memory, where XLA chooses one that costs; see docs/adr/0019.

Which arrays need it is up to the rules.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jax.interpreters import batching, mlir

from shapeexec._compat.primitives import Primitive


def row_major(x: Array) -> Array:
    """`x`, of any shape, with its last axis adjacent in the memory of a GPU.

    Nothing changes elsewhere, nor in a program of several devices, for which JAX 0.10 gathers what
    has a layout.
    """
    return _row_major.bind(x)


def _constrained(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _lowered_on_gpu(ctx: Any, operand: Any) -> Sequence[Any]:
    # Within a `jax.shard_map` the context has no `num_devices`.
    if getattr(ctx.module_context.axis_context, "num_devices", None) != 1:
        return [operand]
    return mlir.lower_fun(_constrained, multiple_results=False)(ctx, operand)


def _batched(operands: Sequence[Any], axes: Sequence[int]) -> tuple[Array, int]:
    return row_major(jax.numpy.moveaxis(operands[0], axes[0], 0)), 0


_row_major = Primitive("shapeexec_row_major")
_row_major.def_impl(lambda operand: operand)
_row_major.def_abstract_eval(lambda aval: aval)
batching.primitive_batchers[_row_major] = _batched
mlir.register_lowering(_row_major, lambda _, operand: [operand])
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(_row_major, _lowered_on_gpu, platform=_platform)
