"""What an Exec tells of the calls that it has seen. `analysis` computes it, `Exec` inherits it."""

from shapeexec.execution._function import Function
from shapeexec.execution.analysis._analysis import Analysis
from shapeexec.execution.analysis._analyze import analysis_of


class Observed(Function):
    """A function that tells what its calls were, and what would make them cheaper."""

    def analysis(self) -> Analysis:
        """Tell what the calls were: their sizes and buckets, and how they change over time."""
        return analysis_of(self._runner)
