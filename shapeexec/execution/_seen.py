"""What an Exec tells of the calls that it has seen. `analysis` computes it, `Exec` inherits it."""

from collections.abc import Mapping
from typing import Any

from shapeexec.costing import Speed
from shapeexec.execution import _options
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._function import Function
from shapeexec.execution._settings import changed
from shapeexec.execution.analysis._advice import Advice
from shapeexec.execution.analysis._advise import Timed, advise
from shapeexec.execution.analysis._analysis import Analysis
from shapeexec.execution.analysis._analyze import analysis_of


class Observed(Function):
    """A function that tells what its calls were, and what would make them cheaper."""

    def analysis(self) -> Analysis:
        """Tell what the calls were: their sizes and buckets, and how they change over time."""
        return analysis_of(self._runner)

    def advise(self, speed: Speed | None = None, *, timed: Timed | None = None) -> Advice:
        """Tell what would have made the calls that were seen cheaper, by how much, and how.

        Args:
            speed: That of the device, for prices in seconds. None: it is measured, once per
                process, in a few seconds.
            timed: `"masks"`: copies of the graph that ran most elements, each without the masks of
                one primitive, are compiled and timed on made-up data. No call meets a copy. None:
                nothing runs.

        Returns:
            Lines to `print`; `apply` makes the Exec that follows them.

        Raises:
            ConfigError: There was no call, `speed` is none, or `timed` is not known.
        """
        return advise(self._runner, speed, timed=timed, make=self._changed)

    def _changed(self, changes: Mapping[str, Any]) -> Any:
        """See `Exec.variant`."""
        own = dict(changes)
        limits = own.pop("limits", None)
        _options.check_kind(
            "limits", limits, kind=CacheLimits, fix="limits=sx.CacheLimits(graphs=256)"
        )
        return self._like(changed(self._runner.current, own), limits=limits)
