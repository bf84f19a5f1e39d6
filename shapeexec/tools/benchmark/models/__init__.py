"""Ready-made models for benchmarks, written as people write them: no mask for padding in them.

What is measured of them is up to a benchmark.
"""

from shapeexec.tools.benchmark.models._configs import CONFIGS, Config, config_target

__all__ = ["CONFIGS", "Config", "config_target"]
