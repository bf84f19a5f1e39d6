"""Bucketing strategies: the bucket of each size, and the padding that costs.

A strategy only maps sizes to buckets. Arrays and JAX are not known here.
"""

from shapeexec.bucketing._adaptive import Adaptive
from shapeexec.bucketing._base import Strategy
from shapeexec.bucketing._custom import Custom, as_strategy
from shapeexec.bucketing._derived import Aligned, MemoryOptimal
from shapeexec.bucketing._fitted import FitRow, Fitted
from shapeexec.bucketing._fixed import Exact, Geometric, Hybrid, Ladder, Linear, Pow2
from shapeexec.bucketing._improve import BucketChange, Optimized
from shapeexec.bucketing._laws import check_laws, checked_bucket

__all__ = [
    "Adaptive",
    "Aligned",
    "BucketChange",
    "Custom",
    "Exact",
    "FitRow",
    "Fitted",
    "Geometric",
    "Hybrid",
    "Ladder",
    "Linear",
    "MemoryOptimal",
    "Optimized",
    "Pow2",
    "Strategy",
    "as_strategy",
    "check_laws",
    "checked_bucket",
]
