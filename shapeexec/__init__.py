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
    InconclusiveShapeError,
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
    Exec,
    Explanation,
    GraphRow,
    Graphs,
    Plan,
    Sizes,
    Stats,
    WhyNew,
    bucketed,
    pad_to_bucket,
    unpad,
)
from shapeexec.program import Equation, Program, trace
from shapeexec.shape import BATCH, SEQ_LEN, UNKNOWN, Dim, Shape, eval_shape
from shapeexec.tools import Validation, validate

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
    "ConfigError",
    "ConstraintError",
    "Dilated",
    "Dim",
    "Documents",
    "Equation",
    "Exact",
    "Exec",
    "Explanation",
    "FrozenError",
    "Full",
    "Geometric",
    "Global",
    "GraphRow",
    "Graphs",
    "Hybrid",
    "InconclusiveShapeError",
    "Ladder",
    "Linear",
    "MaskFunction",
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
    "masking",
    "pad_to_bucket",
    "shape",
    "trace",
    "unpad",
    "validate",
]
