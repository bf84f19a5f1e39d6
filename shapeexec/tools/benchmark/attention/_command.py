"""The command line of the benchmark; its requirements are imported when it runs.

`_main` says what is measured.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from shapeexec.tools import _output
from shapeexec.tools._given import names_of

_ABOUT = """\
Attention on this device: the back ends of shapeexec.dot_product_attention and their rivals.

Each result is compared with the formula in f32 before it is timed. Times are medians of sums of
kernel times where the device reports them, else of the host's clock. TFLOP/s count unmasked pairs
only: four operations for each pair and element of a head forward, 2.5 times as many backward.
"""


def add_command(names: Any) -> None:
    """Add `attention` to the benchmarks of the command line."""
    parser = names.add_parser(
        "attention",
        help="attention, beside its rivals",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    lists = {
        "shapes": "by name (4k_128), or as BxTxNxKxD:dtype (1x512x4x2x64:float32)",
        "masks": "full, causal, window, documents, randomP (P percent of the tiles), elementsP "
        "(P percent of the single pairs), alibi",
        "implementations": "default, any_bits (deterministic=False), or a name that "
        "implementation= takes; all that can run, if left out",
        "rivals": "by name; all, if left out; none",
        "studies": "lists (the cost of making them), padding, memory, decode, short, launches, "
        "compile, bytes; none",
    }
    for name, about in lists.items():
        parser.add_argument(f"--{name}", metavar="NAME,...", help=about)
    parser.add_argument(
        "--only",
        metavar="REGEX",
        default="",
        help="only cells shape/mask/name/pass that match this; the pass is forward or both",
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="start nothing new after these")
    _output.add_json(parser)
    _output.add_plot(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Other processes of the run need the device's memory too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from shapeexec.tools.benchmark.attention import _main  # noqa: PLC0415 - it is heavy

    _output.check(options)
    report = _main.benchmark_attention(
        shapes=names_of(options.shapes),
        masks=names_of(options.masks),
        implementations=names_of(options.implementations),
        rivals=names_of(options.rivals),
        studies=names_of(options.studies),
        only=options.only,
        minutes=options.minutes,
        tell=None,
    )
    print(f"\n{report}")

    def draw(path: Path) -> None:
        from shapeexec.tools.benchmark.attention._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(report.rows, path)

    _output.write(options, {"command": options.command, **report.to_dict()}, draw=draw)
    return int(report.has_failed)
