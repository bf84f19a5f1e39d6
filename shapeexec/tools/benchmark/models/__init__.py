"""Ready-made models for benchmarks, written as users write them: without masks for padding.

Each benchmark decides what it measures.
"""

from shapeexec.tools.benchmark.models._configs import CONFIGS, Config, config_target

__all__ = ["CONFIGS", "Config", "config_target"]
