"""Draws a run over shapes; the one module of this package that needs matplotlib.

`_report` has the figures.
"""

# matplotlib has partly unknown types.
# pyright: reportUnknownMemberType=false

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from shapeexec.tools.benchmark.shapes._report import ShapesReport


def save_plot(report: ShapesReport, path: Path) -> None:
    """Draw speed-ups, and the memory of a run.

    Args:
        report: The figures.
        path: The file to write; its ending sets the format.
    """
    names = [row.name for row in report.rows]
    panels = {
        "speed-up, compiles included": [report.speed_up(row) for row in report.rows],
        "speed-up once compiled": [report.speed_up(row, is_cold=False) for row in report.rows],
        "memory of a run, MB": [row.run_bytes / 1e6 for row in report.rows],
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(12, 3.5), layout="constrained")
    for (title, heights), one in zip(panels.items(), axes, strict=True):
        one.bar_label(one.bar(names, heights, color="#2f6f9f"), fmt="%.3g")
        one.set_title(title, loc="left", fontsize="medium")
        one.tick_params(axis="x", rotation=20)
    figure.savefig(path, dpi=130)
    plt.close(figure)
