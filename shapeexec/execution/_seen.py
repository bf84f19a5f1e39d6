"""`Exec.analysis` and `Exec.advise`: reports on the calls so far, which `analysis` computes."""

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
    """A function that reports on its calls, and advises how to make them cheaper."""

    def analysis(self) -> Analysis:
        """Report the calls so far: their sizes and buckets, and how they change over time."""
        return analysis_of(self._runner)

    def advise(self, speed: Speed | None = None, *, timed: Timed | None = None) -> Advice:
        """Say which changes would have made the calls so far cheaper, and by how much.

        Args:
            speed: The speed of the device, for prices in seconds. None: it is measured, once per
                process, in a few seconds.
            timed: `"masks"`: copies of the graph that ran most elements, each without the masks of
                one primitive, are compiled and timed on made-up data; `notes` says why if they
                cannot be. No call runs in a copy. None: nothing runs.

        Returns:
            Lines to `print`; `apply` makes the Exec that follows them.

        Raises:
            ConfigError: There was no call, `speed` is not a `Speed`, or `timed` is not known.
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
