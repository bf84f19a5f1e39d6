"""Two implementations of one function beside each other: `python -m shapeexec validate`.

What padding changes in an Exec, and where, is for `shapeexec.validate`, which the command calls.
"""

from shapeexec.tools.comparing._compare import Comparison, ComparisonRow, compare

__all__ = ["Comparison", "ComparisonRow", "compare"]
