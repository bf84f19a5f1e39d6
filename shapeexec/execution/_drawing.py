"""Shared by all methods named `plot`: matplotlib is optional, and a figure may be given.

Modules named `_plot` draw; they import matplotlib.
"""

import importlib
from typing import Any

from shapeexec._errors import ConfigError


def plotter(module: str, *, figure: Any, instead: str) -> Any:
    """The module that draws a plot, imported now.

    Args:
        module: The name of the module.
        figure: The figure that the caller passed; None: none.
        instead: The alternative without matplotlib, for the error.

    Raises:
        ConfigError: `figure` is not a figure, or matplotlib is not installed.
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
