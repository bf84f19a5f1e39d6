"""Tools for users' models, such as `validate`. Nothing else in the library imports them.

Benchmarks are imported when they are asked for: who serves a model needs none of them.
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
    from shapeexec.tools.benchmark.levels import LevelsReport, benchmark_levels
    from shapeexec.tools.benchmark.shapes import ClaimRow, ShapesReport, benchmark_shapes

__all__ = [
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
    "Target",
    "Validation",
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
    "validate",
]

_LATE = {
    "ContestRow": "benchmark",
    "LevelsReport": "benchmark.levels",
    "benchmark_levels": "benchmark.levels",
    "ClaimRow": "benchmark.shapes",
    "ShapesReport": "benchmark.shapes",
    "benchmark_shapes": "benchmark.shapes",
}
"""By name the package that has it."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        # As Python tells it, so that `hasattr` works.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
