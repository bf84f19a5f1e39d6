"""A plot of an analysis. `Analysis.plot` imports it when it is called, for it needs matplotlib."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from shapeexec._errors import sizes_text
from shapeexec.execution.analysis._uses import BucketUse, TrafficWindow

_MOST = 30
_CALLS, _LINES = "#2f6f9f", ("#f0a35e", "#5b6770", "#7fae6b", "#b2617a")


def plot_analysis(
    uses: Sequence[BucketUse],
    windows: Sequence[TrafficWindow],
    *,
    symbols: Sequence[str],
    figure: Any,
) -> Any:
    """Draw calls and padding by bucket to the left, the shift of sizes by window to the right.

    Args:
        uses: By bucket, those with most calls first; 30 are drawn.
        windows: By time.
        symbols: Those of the sizes.
        figure: A matplotlib figure; None makes a new one.

    Returns:
        The figure.
    """
    uses = sorted(uses[:_MOST], key=lambda use: [*use.buckets.values()])
    if figure is None:
        figure = plt.figure(figsize=(10, 2.4 + 0.25 * len(uses)), layout="constrained")  # pyright: ignore[reportUnknownMemberType] - other keywords have no type
    left, right = figure.subplots(1, 2)
    labels = [sizes_text(use.buckets) for use in uses]
    places = range(len(uses))
    left.barh(places, [use.calls for use in uses], color=_CALLS)
    shares = [", ".join(f"{share:.0%}" for share in use.waste.values()) for use in uses]
    left.bar_label(left.containers[0], labels=shares, padding=3)
    left.set_yticks(places, labels)
    left.invert_yaxis()
    left.set(title="calls, and their padding", xlim=(0, 1.25 * max(use.calls for use in uses)))
    left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for number, symbol in enumerate(symbols):
        shifts = [100 * window.shift.get(symbol, 0.0) for window in windows]
        color = _LINES[number % len(_LINES)]
        right.plot(range(len(shifts)), shifts, marker="o", color=color, label=symbol)
    right.set(title="distance from all sizes, % of their mean", xlabel="window", ylim=(0, None))
    right.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
