"""The command line of the soak; what it needs is imported when it runs.

`_main` documents the options.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from shapeexec.tools import _output
from shapeexec.tools._given import names_of

_ABOUT = """\
Random traffic of many threads over many shapes, with every option of sx.Exec, while compilations,
runs, workers, callbacks and saved files are made to fail. Each answer is compared with the unpadded
function.

Ends with 0 if all was right, with 1 after a wrong answer, an undocumented error or a wrong count,
and with 2 after a stall, when the threads' stacks go to stderr. Ctrl-C ends it early with its
report.
"""


def add_command(tools: Any) -> None:
    """Add `soak` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser(
        "soak",
        help="random traffic with failures, each answer checked",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long; default 10")
    parser.add_argument("--threads", type=int, default=32, help="threads that call; default 32")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws; default 0")
    parser.add_argument("--shapes", type=int, default=500, help="number of shapes; default 500")
    parser.add_argument(
        "--stall",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="a call that takes longer is a stall; default 120",
    )
    parser.add_argument("--models", metavar="NAME,...", help="only these")
    parser.add_argument("--ways", metavar="NAME,...", help="only these sets of options")
    _output.add_json(parser)
    _output.add_plot(parser, "memory")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shapeexec.tools.soaking import _main  # noqa: PLC0415 - it is heavy

    _output.check(options)
    report = _main.soak(
        minutes=options.minutes,
        threads=options.threads,
        seed=options.seed,
        shapes=options.shapes,
        stall=options.stall,
        models=names_of(options.models),
        ways=names_of(options.ways),
        tell=lambda line: print(line, flush=True),
    )
    print(f"\n{report}")

    def draw(path: Path) -> None:
        from shapeexec.tools.soaking._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(report.outcome.watch.samples, path)

    _output.write(options, {"command": options.command, **report.to_dict()}, draw=draw)
    if report.outcome.stalls:
        sys.stdout.flush()
        os._exit(2)  # the interpreter would wait for workers that are stuck
    return report.status
