"""The command line of `plan`. What its figures mean is known to `_plan`."""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.tools.planning._plan import COMPARED, plan_lengths
from shapeexec.tools.planning._read import read_lengths

_ABOUT = """\
Reads lengths, compares bucketing strategies on them, and fits the ladder that pads them least.

LENGTHS is a text file with a length on each line, a CSV file, or - for the standard input.
"""


def add_command(tools: Any) -> None:
    """Add `plan` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser(
        "plan",
        help="the best buckets for recorded lengths",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lengths", metavar="LENGTHS", help="a file, or -")
    parser.add_argument("--graphs", type=int, default=16, help="of the fitted ladder; default 16")
    parser.add_argument(
        "--compare",
        nargs="+",
        default=COMPARED,
        metavar="STRATEGY",
        help=f"such as pow2, linear:128 or fit:8; default {' '.join(COMPARED)}",
    )
    parser.add_argument("--column", help="of a CSV file: that of the lengths")
    parser.add_argument("--count", help="the column of how often each occurs")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=TEXT",
        help="only rows with this text; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them here (matplotlib)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib.", fix="pip install matplotlib")
    counts = read_lengths(
        options.lengths,
        column=options.column,
        count=options.count,
        where=dict(map(_condition, options.where)),
    )
    plan = plan_lengths(counts, graphs=options.graphs, compare=options.compare)
    print(plan)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(plan.to_dict(), indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        plan.plot().savefig(options.plot, dpi=130)
    return 0


def _condition(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not is_there:
        raise ConfigError(f"--where {text} has no =.", option="where", fix="--where kind=context")
    return name, value
