"""A model at each level of compiling: `python -m shapeexec benchmark levels`.

From op by op to kernels of one's own; the models are those of `models`.
"""

from shapeexec.tools.benchmark.levels._report import LevelsReport
from shapeexec.tools.benchmark.levels._run import benchmark_levels

__all__ = ["LevelsReport", "benchmark_levels"]
