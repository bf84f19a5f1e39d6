"""Drawing a plan of lengths; the one module of this package that imports matplotlib."""

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

if TYPE_CHECKING:
    from shapeexec.tools.planning._plan import LengthPlan

_DATA, _BUCKETS, _PADDING = "#2f6f9f", "#b04a3a", "#f0a35e"


def drawn(plan: "LengthPlan", figure: Any) -> Any:
    """Draw the lengths with the buckets of the fitted ladder, and the padding of each strategy.

    Args:
        plan: The plan.
        figure: A matplotlib figure; None makes a new one.

    Returns:
        The figure.
    """
    if figure is None:
        figure = plt.figure(figsize=(9, 5.5), layout="constrained")  # pyright: ignore[reportUnknownMemberType] - other keywords have no type
    above, below = figure.subplots(2, 1, height_ratios=(3, 1 + 0.3 * len(plan.rows)))
    above.hist(
        list(plan.counts),
        bins=min(80, 4 * len(plan.counts)),
        weights=[*plan.counts.values()],
        color=_DATA,
    )
    for bucket in plan.best.strategy.ladder(min(plan.counts), max(plan.counts)):
        above.axvline(bucket, color=_BUCKETS, linewidth=0.8)
    above.set(
        title=f"lengths, and the buckets of {plan.best.name}", xlabel="length", ylabel="count"
    )
    names = [f"{row.name}, {row.graphs} graphs" for row in plan.rows]
    bars = below.barh(names, [row.waste for row in plan.rows], color=_PADDING)
    below.bar_label(bars, labels=[f"{row.waste:.1%}" for row in plan.rows], padding=3)
    below.invert_yaxis()
    below.xaxis.set_major_formatter(PercentFormatter(1))
    below.set(
        title="padding, of all elements that run",
        xlim=(0, 1.15 * max(0.01, *(row.waste for row in plan.rows))),
    )
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
