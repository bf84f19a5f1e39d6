"""The command line of `tune`. What is measured, and what is kept, is in `_tune`."""

import argparse
import os
from pathlib import Path
from typing import Any

from shapeexec.tools import _output
from shapeexec.tools._given import names_of

_ABOUT = """\
Measures the tilings (queries and keys of a tile) that attention can have on this device, and keeps
those that gain over 3 percent in a file, which attention reads when it is lowered. Results are
compared with the formula in f32. They differ in the rounding of sums alone.
"""


def add_command(tools: Any) -> None:
    """Add `tune` to the tools of the command line.

    Args:
        tools: What `argparse.ArgumentParser.add_subparsers` returns.
    """
    parser = tools.add_parser("tune", help="find the fastest tiles for this device")
    names = parser.add_subparsers(required=True, metavar="NAME")
    attention = names.add_parser(
        "attention",
        help="of sx.dot_product_attention",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("shapes", "masks"):
        about = f"as benchmark attention takes {name}"
        attention.add_argument(f"--{name}", metavar="NAME,...", help=about)
    attention.add_argument(
        "--implementation",
        metavar="NAME",
        default="default",
        help="a back end; by default what is chosen by itself",
    )
    attention.add_argument(
        "--file",
        type=Path,
        help="where to keep them; by default where attention looks: SHAPEEXEC_TUNING, or "
        "shapeexec/tuning.json in the user's folder for caches",
    )
    attention.add_argument("--dry", action="store_true", help="keep nothing")
    attention.add_argument("--minutes", type=float, default=8.0, help="then nothing new is begun")
    _output.add_json(attention)
    attention.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from shapeexec.tools.tuning import _tune  # noqa: PLC0415 - it is heavy

    _output.check(options)
    report = _tune.tune_attention(
        shapes=names_of(options.shapes),
        masks=names_of(options.masks),
        implementation=options.implementation,
        file=options.file,
        keep=not options.dry,
        minutes=options.minutes,
        tell=None,
    )
    print(f"\n{report}")
    _output.write(options, {"command": options.command, **report.to_dict()})
    return int(report.has_failed)
