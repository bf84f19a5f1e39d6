"""Draws a run over levels; the one module of this package that needs matplotlib.

`_report` has the figures.
"""

# matplotlib has partly unknown types.
# pyright: reportUnknownMemberType=false

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from shapeexec.tools.benchmark.levels._report import LevelsReport


def save_plot(report: LevelsReport, path: Path) -> None:
    """Draw the time of a pass once compiled, and of compiling, level by level.

    Args:
        report: The figures; a level that was not timed has a label instead of bars.
        path: The file to write; its ending sets the format.
    """
    names = [
        row.name if row.warm_seconds is not None else f"{row.name} (not timed)"
        for row in report.rows
    ]
    panels = {
        "a pass once compiled, ms (log)": [(row.warm_seconds or 0) * 1e3 for row in report.rows],
        "compiling, s": [row.compile_seconds or 0 for row in report.rows],
    }
    figure, axes = plt.subplots(
        1, 2, sharey=True, figsize=(11, 1.2 + 0.4 * len(names)), layout="constrained"
    )
    for (title, widths), one in zip(panels.items(), axes, strict=True):
        bars = one.barh(names, widths, color="#2f6f9f")
        labels = [f"{width:.3g}" if width else "" for width in widths]
        one.bar_label(bars, labels=labels, padding=3)
        one.set_title(title, loc="left", fontsize="medium")
        one.margins(x=0.15)
    axes[0].set_xscale("log")  # op by op takes many times as long as all others
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=130)
    plt.close(figure)
