"""What all methods named `plot` have in common: matplotlib is optional, and may get a figure.

Modules named `_plot` draw; they import matplotlib.
"""

import importlib
from typing import Any

from shapeexec._errors import ConfigError


def plotter(module: str, *, figure: Any, instead: str) -> Any:
    """The module that draws a plot, imported now.

    Args:
        module: Its name.
        figure: What the caller passed to draw in; None: nothing.
        instead: What shows the same without matplotlib.

    Raises:
        ConfigError: It is no figure, or matplotlib is not installed.
    """
    if figure is not None and not hasattr(figure, "subplots"):
        raise ConfigError(
            f"plot: {figure!r:.80} is not a figure.",
            option="figure",
            why="it draws two axes side by side",
            fix="plot(plt.figure()), a subfigure, or plot() for a figure of its own",
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "plot: matplotlib is not installed.", fix=f"pip install matplotlib, or {instead}"
        ) from error
