"""Bucketing: which padded size each size runs at, and what that wastes.

Nothing here is of JAX, and nothing here pads: a strategy only says how far.
"""

from shapeexec.bucketing._base import Strategy
from shapeexec.bucketing._custom import Custom, as_strategy
from shapeexec.bucketing._fixed import Exact, Geometric, Hybrid, Ladder, Linear, Pow2
from shapeexec.bucketing._laws import check_laws, checked_bucket

__all__ = [
    "Custom",
    "Exact",
    "Geometric",
    "Hybrid",
    "Ladder",
    "Linear",
    "Pow2",
    "Strategy",
    "as_strategy",
    "check_laws",
    "checked_bucket",
]
