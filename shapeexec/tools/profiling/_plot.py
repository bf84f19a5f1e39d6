"""Draws a profile; the one module of this package that needs matplotlib.

`_report` has the figures.
"""

# matplotlib has partly unknown types.
# pyright: reportUnknownMemberType=false

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from shapeexec.execution._row import GraphSeconds
from shapeexec.tools.profiling._report import Profile

_BELOW = ("outside lower left", "outside lower right")
_ONE_BY_ONE = ("trace", "mask", "lower", "compile", "load")


def save_plot(profile: Profile, path: Path) -> None:
    """Draw the time of making each graph, by part, and of its calls, as data and padding.

    Args:
        profile: The figures.
        path: The file to write; its ending sets the format.
    """
    rows = profile.rows
    names = [row.bucket for row in rows]
    running = np.array([row.calls * row.seconds * 1e3 for row in rows])
    waste = np.array([row.waste for row in rows])
    panels = {
        "making the graph, s": making([row.making for row in rows]),
        "its calls once compiled, ms; by the shares of elements": {
            "data": running * (1 - waste),
            "padding": running * waste,
        },
    }
    figure, axes = plt.subplots(
        1, 2, sharey=True, figsize=(12, 2 + 0.35 * len(names)), layout="constrained"
    )
    for (title, parts), one in zip(panels.items(), axes, strict=True):
        left = np.zeros(len(names))
        for part, widths in parts.items():
            one.barh(names, widths, left=left, label=part)
            left += widths
        one.bar_label(one.containers[-1], labels=[f"{end:.3g}" for end in left], padding=3)
        one.set_title(title, loc="left", fontsize="medium")
        one.margins(x=0.15)
    for one, side in zip(axes, _BELOW, strict=True):
        handles = one.get_legend_handles_labels()
        figure.legend(*handles, loc=side, ncols=len(handles[0]))
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def making(seconds: list[GraphSeconds]) -> dict[str, np.ndarray]:
    """For each part its seconds in each graph; the parts add up to the total.

    Args:
        seconds: The seconds of each graph.
    """
    parts = {part: np.array([getattr(one, part) for one in seconds]) for part in _ONE_BY_ONE}
    # The trace is checked while XLA compiles or a file is read; only a longer check adds time.
    checking = np.array([one.check - one.compile - one.load for one in seconds])
    parts["check, after that"] = np.maximum(checking, 0)
    return {part: took for part, took in parts.items() if took.any()} or parts
