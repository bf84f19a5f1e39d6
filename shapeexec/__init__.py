"""Run one JAX function at every input size, from a handful of compiled graphs.

The answer is exactly that of the unpadded function: see `Exec`.
"""

from shapeexec import bucketing, masking, shape
from shapeexec._errors import (
    BucketOverflowError,
    ConfigError,
    ConstraintError,
    FrozenError,
    InconclusiveShapeError,
    ShapeExecError,
    SpecError,
    StrategyError,
    UnboundedDimError,
    UnsupportedPrimitiveError,
    ValidationError,
)
from shapeexec.bucketing import Exact, Geometric, Hybrid, Ladder, Linear, Pow2, Strategy
from shapeexec.execution import CacheLimits, Exec, Explanation, Plan, Stats, bucketed
from shapeexec.shape import BATCH, SEQ_LEN, UNKNOWN, Dim, Shape, eval_shape
from shapeexec.tools import Validation, validate

__version__ = "0.1.0"

__all__ = [
    "BATCH",
    "SEQ_LEN",
    "UNKNOWN",
    "BucketOverflowError",
    "CacheLimits",
    "ConfigError",
    "ConstraintError",
    "Dim",
    "Exact",
    "Exec",
    "Explanation",
    "FrozenError",
    "Geometric",
    "Hybrid",
    "InconclusiveShapeError",
    "Ladder",
    "Linear",
    "Plan",
    "Pow2",
    "Shape",
    "ShapeExecError",
    "SpecError",
    "Stats",
    "Strategy",
    "StrategyError",
    "UnboundedDimError",
    "UnsupportedPrimitiveError",
    "Validation",
    "ValidationError",
    "bucketed",
    "bucketing",
    "eval_shape",
    "masking",
    "shape",
    "validate",
]
