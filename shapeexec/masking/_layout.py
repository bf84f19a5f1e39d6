"""Keeps XLA from turning a whole model's arrays on a GPU, for the sake of one reduction.

See docs/adr/0019. Which operands are meant is for the rules to say.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jax.interpreters import batching, mlir

from shapeexec import _compat

GPUS = ("cuda", "rocm")


def row_major(x: Array, *, reduced: Sequence[int]) -> Array:
    """`x`, which a reduction reads, with its last axis adjacent in the memory of a GPU.

    Nothing changes elsewhere, nor where the last axis is among `reduced`, nor in a program of
    several devices, for which JAX 0.10 gathers what has a layout.

    Args:
        x: Of any shape.
        reduced: The axes that are reduced.
    """
    return x if x.ndim - 1 in reduced else _row_major.bind(x)


def _constrained(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _lowered_on_gpu(ctx: Any, operand: Any) -> Sequence[Any]:
    # `num_devices`: within a `jax.shard_map` there is none.
    if getattr(ctx.module_context.axis_context, "num_devices", None) != 1:
        return [operand]
    return mlir.lower_fun(_constrained, multiple_results=False)(ctx, operand)


def _batched(operands: Sequence[Any], axes: Sequence[int]) -> tuple[Array, int]:
    return _row_major.bind(jax.numpy.moveaxis(operands[0], axes[0], 0)), 0


_row_major = _compat.Primitive("shapeexec_row_major")
_row_major.def_impl(lambda operand: operand)
_row_major.def_abstract_eval(lambda aval: aval)
batching.primitive_batchers[_row_major] = _batched
mlir.register_lowering(_row_major, lambda _, operand: [operand])
for platform in GPUS:
    mlir.register_lowering(_row_major, _lowered_on_gpu, platform=platform)
