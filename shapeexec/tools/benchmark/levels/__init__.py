"""A model at each level of compiling: `python -m shapeexec benchmark levels`.

The levels go from op by op to the user's own kernels; the models are in `models`.
"""

from shapeexec.tools.benchmark.levels._report import LevelsReport
from shapeexec.tools.benchmark.levels._run import benchmark_levels

__all__ = ["LevelsReport", "benchmark_levels"]
