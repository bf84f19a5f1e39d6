"""Attention whose cost follows the mask: masks that compose, and back ends that skip empty tiles."""

from shapeexec.attention import _rule as _rule  # registers the rule of the primitives
from shapeexec.attention._api import dot_product_attention

__all__ = ["dot_product_attention"]
