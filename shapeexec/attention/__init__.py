"""Attention whose cost follows the mask: masks that compose, back ends that skip empty tiles.

It does not know `Exec`: `_rule` registers the masking rule of its primitives.
"""

import os

from shapeexec import _compat
from shapeexec.attention import _cost as _cost  # registers the cost of the primitives
from shapeexec.attention import _rule as _rule  # registers the rule of the primitives
from shapeexec.attention._api import dot_product_attention
from shapeexec.attention._flax import flax_attention_fn
from shapeexec.attention._replace import replace_attention

__all__ = ["dot_product_attention", "flax_attention_fn", "replace_attention"]


def __dir__() -> list[str]:
    return __all__  # private modules are not listed


_compat.hide_from_places(os.path.dirname(__file__))
