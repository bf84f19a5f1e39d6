"""Draws the results of a run; the one module of the benchmark that needs matplotlib.

`_run` makes the figures.
"""

# matplotlib has partly unknown types.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from shapeexec.tools.benchmark.attention._problems import PASSES
from shapeexec.tools.benchmark.attention._report import contestants
from shapeexec.tools.benchmark.attention._run import Row

_TITLES = {"forward": "forward", "both": "forward with backward"}


def save_plot(rows: Sequence[Row], path: Path) -> None:
    """Draw TFLOP/s as bars, a panel for each shape and pass.

    Args:
        rows: The measurements.
        path: The file to write; its ending sets the format.
    """
    names = contestants(rows)
    figures = {(row.shape, row.mask, row.passes, row.contestant): row.teraflops for row in rows}
    shapes = list(dict.fromkeys(row.shape for row in rows if row.milliseconds)) or [""]
    figure, panels = plt.subplots(
        len(shapes), 2, figsize=(14, 3 * len(shapes)), squeeze=False, layout="constrained"
    )
    for (shape, passes), axes in zip(
        [(shape, passes) for shape in shapes for passes in PASSES], panels.flat, strict=True
    ):
        masks = list(dict.fromkeys(row.mask for row in rows if row.shape == shape))
        width = 0.8 / max(1, len(names))
        for i, name in enumerate(names):
            heights = [figures.get((shape, mask, passes, name)) or 0 for mask in masks]
            axes.bar(np.arange(len(masks)) + (i + 0.5) * width - 0.4, heights, width, label=name)
        axes.set_xticks(range(len(masks)), masks, rotation=20)
        axes.set_title(f"{shape}, {_TITLES[passes]}", loc="left", fontsize="medium")
        axes.set_ylabel("TFLOP/s of unmasked pairs")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    figure.savefig(path, dpi=130)
    plt.close(figure)
