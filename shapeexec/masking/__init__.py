"""The invariant: valid elements come first along each axis; what lies behind is unspecified.

`pad_safe` rewrites a function so that it keeps the invariant; `register` adds a rule for a
primitive.
"""

from shapeexec.masking import rules as rules  # registers every rule
from shapeexec.masking._context import RuleContext
from shapeexec.masking._fill import fill, highest, lowest, one, zero
from shapeexec.masking._pad_safe import pad_safe
from shapeexec.masking._poison import POISONS
from shapeexec.masking._registry import register, register_knowledge, register_nested
from shapeexec.masking._values import MaskNote

__all__ = [
    "POISONS",
    "MaskNote",
    "RuleContext",
    "fill",
    "highest",
    "lowest",
    "one",
    "pad_safe",
    "register",
    "register_knowledge",
    "register_nested",
    "zero",
]


def __dir__() -> list[str]:
    return __all__  # rooms that are not public stay out of sight
