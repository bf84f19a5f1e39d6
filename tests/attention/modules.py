"""Modules of lowered Mosaic GPU kernels, as bytes."""

import contextlib

from jax._src.interpreters import mlir
from jax._src.lib import mosaic_gpu_dialect
from jaxlib.mlir import ir, passmanager


@contextlib.contextmanager
def parsed(module):
    context = mlir.make_ir_context()
    mosaic_gpu_dialect.register_dialect(context)
    with context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        whole = ir.Module.parse(module)
        plan = "builtin.module(mosaic_gpu-serde{serialize=false})"
        passmanager.PassManager.parse(plan).run(whole.operation)
        yield whole


def text_of(module):
    """The operations of a module, without the places in the source that they come from."""
    with parsed(module) as whole:
        return str(whole)
