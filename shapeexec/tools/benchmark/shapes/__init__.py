"""Buckets beside `jax.jit` at exact shapes: `python -m shapeexec benchmark shapes`.

Which models there are is known to `models`.
"""

from shapeexec.tools.benchmark.shapes._report import ShapesReport, ShapesRow
from shapeexec.tools.benchmark.shapes._run import benchmark_shapes

__all__ = ["ShapesReport", "ShapesRow", "benchmark_shapes"]
