"""Buckets beside `jax.jit` at exact shapes: `python -m shapeexec benchmark shapes`.

The models are in `models`.
"""

from shapeexec.tools.benchmark.shapes._report import ClaimRow, ShapesReport
from shapeexec.tools.benchmark.shapes._run import benchmark_shapes

__all__ = ["ClaimRow", "ShapesReport", "benchmark_shapes"]
