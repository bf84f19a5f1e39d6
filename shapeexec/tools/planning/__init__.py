"""Buckets for recorded lengths: `python -m shapeexec plan LENGTHS`, and `plan_lengths`.

It plans for one axis. `sx.fit` chooses buckets for several, by the cost of a function.
"""

from shapeexec.tools.planning._plan import LengthPlan, LengthRow, plan_lengths
from shapeexec.tools.planning._read import read_lengths

__all__ = ["LengthPlan", "LengthRow", "plan_lengths", "read_lengths"]
