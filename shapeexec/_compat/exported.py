"""Calls of programs that `jax.export` has read, whose results stand where those of `jax.jit` do.

`Exported.call` commits them to a device even if no argument is (jax 0.10 to 0.12).
"""

# The functions that this takes of JAX are private, and have no types.
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from typing import Any

from jax._src.export import _export
from jax.interpreters import mlir

from shapeexec._compat.avals import ShapedArray
from shapeexec._compat.primitives import Primitive


def call_exported(program: Any, leaves: Sequence[Any]) -> Sequence[Any]:
    """Call a `jax.export.Exported` of one device within a trace.

    Args:
        program: The program, without effects.
        leaves: Its arguments, flat.

    Returns:
        Its results, flat.

    Raises:
        ValueError: It takes other arguments.
    """
    wanted = [(aval.shape, aval.dtype) for aval in program.in_avals]
    if wanted != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise ValueError("the program takes other arguments")  # the caller turns it into a warning
    return _called.bind(*leaves, exported=program)


_called = Primitive("shapeexec_exported")
_called.multiple_results = True
_called.def_abstract_eval(
    lambda *_, exported: [ShapedArray(aval.shape, aval.dtype) for aval in exported.out_avals]
)
mlir.register_lowering(_called, _export._call_exported_lowering)
