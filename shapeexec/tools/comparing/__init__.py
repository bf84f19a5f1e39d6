"""Compares two implementations of one function: `python -m shapeexec validate`.

For an Exec, the command also calls `shapeexec.validate`, which finds effects of padding.
"""

from shapeexec.tools.comparing._compare import Comparison, ComparisonRow, compare

__all__ = ["Comparison", "ComparisonRow", "compare"]
