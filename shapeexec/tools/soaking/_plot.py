"""Draws a soak; the one module of this package that needs matplotlib.

`_run` takes the samples.
"""

# Some of matplotlib's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from shapeexec.tools.soaking._outcome import PHASES
from shapeexec.tools.soaking._watch import Sample


def save_plot(samples: Sequence[Sample], path: Path) -> None:
    """Draw resident memory and the graphs that are kept over time, phase by phase.

    Args:
        samples: The samples, in order of time.
        path: The file to write; its ending sets the format.
    """
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(9, 6), height_ratios=(2, 1), layout="constrained"
    )
    minutes = [sample.seconds / 60 for sample in samples]
    above.plot(minutes, [sample.mib for sample in samples], color="tab:blue")
    above.set_ylabel("resident memory, MiB")
    above.set_ylim(bottom=0)
    below.plot(minutes, [sample.compiles for sample in samples], label="compiled")
    below.plot(minutes, [sample.graphs for sample in samples], label="kept")
    below.set_ylabel("graphs")
    below.set_xlabel("minutes")
    below.legend(loc="upper left")
    for name in PHASES:
        own = [sample.seconds / 60 for sample in samples if sample.phase == name]
        if own:
            for axes in (above, below):
                axes.axvline(own[0], color="tab:gray", linewidth=0.8, linestyle=":")
            above.annotate(name, (own[0], 0), (3, 3), textcoords="offset points", fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)
