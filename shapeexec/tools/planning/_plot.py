"""Draws a plan of lengths; the one module of this package that imports matplotlib.

`_plan` computes the figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

_DATA, _BUCKETS, _PADDING = "#2f6f9f", "#b04a3a", "#f0a35e"


def drawn(
    counts: Mapping[int, float],
    wastes: Mapping[str, float],
    *,
    buckets: Sequence[int],
    figure: Any = None,
) -> Any:
    """Draw lengths with the buckets of a ladder, and the padding of each strategy.

    Args:
        counts: How often each length occurs.
        wastes: The share of padding, 0 to 1, by the name of the strategy.
        buckets: The ladder.
        figure: A matplotlib figure; None makes a new one.

    Returns:
        The figure.
    """
    if figure is None:
        figure = plt.figure(figsize=(9, 5.5), layout="constrained")  # pyright: ignore[reportUnknownMemberType] - other keywords have no type
    above, below = figure.subplots(2, 1, height_ratios=(3, 1 + 0.3 * len(wastes)))
    bins = min(80, 4 * len(counts))
    above.hist(list(counts), bins=bins, weights=[*counts.values()], color=_DATA)
    for bucket in buckets:
        above.axvline(bucket, color=_BUCKETS, linewidth=0.8)
    above.set(title="lengths, and the buckets that are fitted to them", xlabel="length")
    above.set_ylabel("count")
    bars = below.barh(list(wastes), [*wastes.values()], color=_PADDING)
    below.bar_label(bars, labels=[f"{waste:.1%}" for waste in wastes.values()], padding=3)
    below.invert_yaxis()
    below.xaxis.set_major_formatter(PercentFormatter(1))
    below.set_xlim(0, 1.15 * max(0.01, *wastes.values()))
    below.set(title="padding, of all elements that run")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
