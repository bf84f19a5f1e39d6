"""An example of a user's own kernels: layer norm and GELU in Pallas, each one pass over a row.

Each is a primitive with a rule for padding; docs/add_a_rule.md explains how. Except on a GPU,
Pallas interprets them, which checks their results but not their speed.
"""

# Pallas and cuDNN have partly unknown types, and JAX's C extension has no stubs.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import contextlib
import functools
import math
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.core
from jax.experimental import pallas as pl
from jax.interpreters import mlir

from shapeexec import _compat, masking
from shapeexec.masking import _registry
from shapeexec.tools.benchmark.models._transformer import layer_norm

norm_p = _compat.Primitive("pallas_layer_norm")
gelu_p = _compat.Primitive("pallas_gelu")


def norm(x: Any, scale: Any) -> Any:
    """Normalise the last axis, in one pass over each row."""
    return norm_p.bind(x, scale)


def gelu(x: Any) -> Any:
    """GELU, in one pass over each row."""
    return gelu_p.bind(x)


def _norm_kernel(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:  # noqa: PLR0917 - refs, in Pallas' order
    out_ref[...] = layer_norm(x_ref[...], scale_ref[...])


def _gelu_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = jax.nn.gelu(x_ref[...])


def _by_rows(kernel: Callable[..., None], x: Any, *others: Any) -> Any:
    """Run a kernel on each row of the last axis; each run sees all of `others`."""
    width, rows = x.shape[-1], math.prod(x.shape[:-1])
    row = pl.BlockSpec((1, width), lambda i: (i, 0))
    whole = [pl.BlockSpec(each.shape, lambda i: (0,)) for each in others]
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, width), x.dtype),
        grid=(rows,),
        in_specs=[row, *whole],
        out_specs=row,
        interpret=is_interpreted(),
    )(x.reshape(rows, width), *others)
    return out.reshape(x.shape)


def is_interpreted() -> bool:
    """Whether Pallas would interpret the kernels here."""
    return _compat.default_device().platform != "gpu"


def _define(primitive: Any, kernel: Callable[..., None]) -> None:
    compute = functools.partial(_by_rows, kernel)
    primitive.def_impl(compute)
    primitive.def_abstract_eval(lambda x, *_: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))


_define(norm_p, _norm_kernel)
_define(gelu_p, _gelu_kernel)


def by_row(ctx: masking.RuleContext, *operands: Any) -> Any:
    """Keep: each row is computed by itself, and the last axis is static."""
    if not isinstance(ctx.operands[0].lengths[-1], int):
        raise ctx.unsupported_error("its last axis is ragged: padding would be normalised")
    return ctx.bind(*operands)


@contextlib.contextmanager
def rules() -> Generator[None]:
    """Register the kernels' rules while a benchmark runs: they are not part of the library."""
    masking.register(norm_p, gelu_p)(by_row)
    try:
        yield
    finally:
        for primitive in (norm_p, gelu_p):
            _registry.RULES.pop(primitive.name, None)
