"""The options `--json` and `--plot`, which write the figures of a command to files.

The command decides what the figures are.
"""

import argparse
import contextlib
import errno
import importlib.util
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError

Draw = Callable[[Path], object]


def add_json(parser: argparse.ArgumentParser, what: str = "all figures") -> None:
    """Add `--json` to a command.

    Args:
        parser: The command's parser.
        what: What the command writes, for the help text.
    """
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} here")


def add_plot(parser: argparse.ArgumentParser, what: str = "them") -> None:
    """Add `--plot` to a command.

    Args:
        parser: The command's parser.
        what: What the command draws, for the help text.
    """
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"draw {what} here (matplotlib)")


def check(options: argparse.Namespace) -> None:
    """Check, before anything is measured, that the figures can be drawn and written.

    Args:
        options: The parsed command line.

    Raises:
        ConfigError: matplotlib is not installed or knows no such format, or a file cannot be
            written there.
    """
    given = {name: getattr(options, name, None) for name in ("json", "plot", "html")}
    if given["plot"] is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib.", option="plot", fix="pip install matplotlib")
    if given["plot"] is not None:
        _check_format(given["plot"])
    for name, path in given.items():
        if path is not None:
            with _os_errors_as_config_errors(path, f"--{name}"):
                _check_place(path)


def _check_format(path: Path) -> None:
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - optional

    known = FigureCanvasBase.get_supported_filetypes()
    # Without an ending, matplotlib would write to another file: the name and `.png`.
    if path.suffix[1:].lower() not in known:
        raise ConfigError(
            f"--plot {path} does not end in the name of a format.",
            option="plot",
            fix=f"{path.stem or 'plot'}.png, or another of {', '.join(sorted(known))}",
        )


def _check_place(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        # Writing to it would raise this later.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        # Writing to it would raise this later.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write(options: argparse.Namespace, figures: Any, *, draw: Draw | None = None) -> None:
    """Write figures where the options say.

    Args:
        options: The parsed command line.
        figures: Values of JSON's types.
        draw: Writes a picture to a path; None: the command has no `--plot`.

    Raises:
        ConfigError: A file cannot be written.
    """
    if options.json is not None:
        write_text(options.json, json.dumps(figures, indent=1) + "\n")
    if draw is not None and options.plot is not None:
        with _os_errors_as_config_errors(options.plot, "--plot"):
            draw(options.plot)


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: It cannot be written.
    """
    with _os_errors_as_config_errors(path, "the output"):
        path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _os_errors_as_config_errors(path: Path, name: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{name} {path} cannot be written: {error}.",
            option=name.removeprefix("--"),
            fix="a path that can be written",
        ) from error
