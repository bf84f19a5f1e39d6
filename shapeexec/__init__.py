"""Run one JAX function at every input size, from a handful of compiled graphs.

The answer is exactly that of the unpadded function: see `Exec`.
"""

from shapeexec import attention, bucketing, masking, shape
from shapeexec._errors import (
    BackendError,
    BucketOverflowError,
    ConfigError,
    ConstraintError,
    FrozenError,
    GraphIndexError,
    InconclusiveShapeError,
    OutOfMemoryError,
    ShapeExecError,
    SpecError,
    StrategyError,
    UnboundedDimError,
    UnsupportedPrimitiveError,
    ValidationError,
)
from shapeexec.attention import dot_product_attention
from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dilated,
    Documents,
    Full,
    Global,
    MaskFunction,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
)
from shapeexec.bucketing import Exact, Geometric, Hybrid, Ladder, Linear, Pow2, Strategy
from shapeexec.execution import (
    CacheLimits,
    Compiling,
    Event,
    Exec,
    Explanation,
    GraphRow,
    Graphs,
    MapExplanation,
    MapMethod,
    MapPlan,
    Padded,
    Plan,
    Sizes,
    Stats,
    WhyNew,
    bucketed,
    load,
    pad_to_bucket,
    unpad,
)
from shapeexec.program import Equation, Program, trace
from shapeexec.shape import BATCH, SEQ_LEN, UNKNOWN, Dim, Shape, eval_shape
from shapeexec.tools import Validation, prometheus_metrics, validate

__version__ = "0.1.0"

__all__ = [
    "BATCH",
    "SEQ_LEN",
    "UNKNOWN",
    "ALiBi",
    "BackendError",
    "BlockMask",
    "BucketOverflowError",
    "CacheLimits",
    "Causal",
    "Compiling",
    "ConfigError",
    "ConstraintError",
    "Dilated",
    "Dim",
    "Documents",
    "Equation",
    "Event",
    "Exact",
    "Exec",
    "Explanation",
    "FrozenError",
    "Full",
    "Geometric",
    "Global",
    "GraphIndexError",
    "GraphRow",
    "Graphs",
    "Hybrid",
    "InconclusiveShapeError",
    "Ladder",
    "Linear",
    "MapExplanation",
    "MapMethod",
    "MapPlan",
    "MaskFunction",
    "OutOfMemoryError",
    "Padded",
    "Plan",
    "Pow2",
    "PrefixLM",
    "Program",
    "RelativeBias",
    "Shape",
    "ShapeExecError",
    "Sizes",
    "SlidingWindow",
    "SpecError",
    "Stats",
    "Strategy",
    "StrategyError",
    "UnboundedDimError",
    "UnsupportedPrimitiveError",
    "Validation",
    "ValidationError",
    "WhyNew",
    "attention",
    "bucketed",
    "bucketing",
    "dot_product_attention",
    "eval_shape",
    "load",
    "masking",
    "pad_to_bucket",
    "prometheus_metrics",
    "shape",
    "trace",
    "unpad",
    "validate",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # rooms that are not public stay out of sight
