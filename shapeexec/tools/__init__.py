"""Tools for users' models, such as `validate`. Nothing else in the library imports them.

Benchmarks and the soak are imported on first access: serving a model needs none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from shapeexec.tools._doctor import Diagnosis, Finding, doctor
from shapeexec.tools._fit import fit
from shapeexec.tools._metrics import prometheus_metrics
from shapeexec.tools._optimize import optimize
from shapeexec.tools._target import Target, read_target
from shapeexec.tools._validate import Validation, validate
from shapeexec.tools.comparing import Comparison, ComparisonRow, compare
from shapeexec.tools.planning import LengthPlan, LengthRow, plan_lengths, read_lengths
from shapeexec.tools.profiling import Profile, ProfileRow, profile

if TYPE_CHECKING:
    from shapeexec.tools.benchmark import ContestRow
    from shapeexec.tools.benchmark.attention._main import benchmark_attention
    from shapeexec.tools.benchmark.attention._report import AttentionReport
    from shapeexec.tools.benchmark.levels import LevelsReport, benchmark_levels
    from shapeexec.tools.benchmark.shapes import ClaimRow, ShapesReport, benchmark_shapes
    from shapeexec.tools.soaking._main import soak
    from shapeexec.tools.soaking._report import SoakReport
    from shapeexec.tools.tuning._report import TuningReport, TuningRow
    from shapeexec.tools.tuning._tune import tune_attention

__all__ = [
    "AttentionReport",
    "ClaimRow",
    "Comparison",
    "ComparisonRow",
    "ContestRow",
    "Diagnosis",
    "Finding",
    "LengthPlan",
    "LengthRow",
    "LevelsReport",
    "Profile",
    "ProfileRow",
    "ShapesReport",
    "SoakReport",
    "Target",
    "TuningReport",
    "TuningRow",
    "Validation",
    "benchmark_attention",
    "benchmark_levels",
    "benchmark_shapes",
    "compare",
    "doctor",
    "fit",
    "optimize",
    "plan_lengths",
    "profile",
    "prometheus_metrics",
    "read_lengths",
    "read_target",
    "soak",
    "tune_attention",
    "validate",
]

_LATE = {
    "AttentionReport": "benchmark.attention._report",
    "benchmark_attention": "benchmark.attention._main",
    "ContestRow": "benchmark",
    "LevelsReport": "benchmark.levels",
    "benchmark_levels": "benchmark.levels",
    "ClaimRow": "benchmark.shapes",
    "ShapesReport": "benchmark.shapes",
    "benchmark_shapes": "benchmark.shapes",
    "SoakReport": "soaking._report",
    "soak": "soaking._main",
    "TuningReport": "tuning._report",
    "TuningRow": "tuning._report",
    "tune_attention": "tuning._tune",
}
"""The module of each name. Command lines import each `__init__`, so those import nothing heavy."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        # Python's own error and message, so that `hasattr` works.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
