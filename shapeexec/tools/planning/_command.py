"""The command line of `plan`. `_plan` computes the figures."""

import argparse
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.tools import _output
from shapeexec.tools._strategies import split
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
    parser.add_argument("--graphs", type=int, default=16, help="for the fitted ladder; default 16")
    parser.add_argument(
        "--compare",
        nargs="+",
        default=COMPARED,
        metavar="STRATEGY",
        help=f"such as pow2,linear:128,fit:8; default {' '.join(COMPARED)}",
    )
    parser.add_argument("--column", help="the column of the lengths in a CSV file")
    parser.add_argument("--count", help="the column of each length's count")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=TEXT",
        help="only rows with this text; may be repeated",
    )
    _output.add_json(parser)
    _output.add_plot(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _output.check(options)
    counts = read_lengths(
        options.lengths,
        column=options.column,
        count=options.count,
        where=dict(map(_condition, options.where)),
    )
    plan = plan_lengths(counts, graphs=options.graphs, compare=split(options.compare))
    print(plan)
    _output.write(options, plan.to_dict(), draw=lambda path: plan.plot().savefig(path, dpi=130))
    return 0


def _condition(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not is_there:
        raise ConfigError(f"--where {text} has no =.", option="where", fix="--where kind=context")
    return name, value
