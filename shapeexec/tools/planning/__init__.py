"""Buckets for lengths that were recorded: `python -m shapeexec plan LENGTHS`, and `plan_lengths`.

One axis is known here. `sx.fit` chooses for several, by what a function costs.
"""

from shapeexec.tools.planning._plan import LengthPlan, LengthRow, plan_lengths
from shapeexec.tools.planning._read import read_lengths

__all__ = ["LengthPlan", "LengthRow", "plan_lengths", "read_lengths"]
