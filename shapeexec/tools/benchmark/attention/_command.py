"""The command line of the benchmark; its requirements are imported when it runs.

What is measured, and how, is in `_main`.
"""

import argparse
import importlib.util
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError

_ABOUT = """\
Attention on this device: the back ends of shapeexec.dot_product_attention and their rivals.

Each result is compared with the formula in f32 before it is timed. Times are sums of kernel times
where the device tells them, else the host's clock; medians. TFLOP/s count unmasked pairs alone:
four operations a pair and element of a head forward, 2.5 times that backward.
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
        "masks": "full, causal, window, documents, randomP (P percent of the tiles), alibi",
        "implementations": "default, any_bits (deterministic=False), or those of implementation=; "
        "all that can run, if left out",
        "rivals": "by name; all, if left out; none",
        "studies": "lists (what making them costs), padding, memory, decode, short; none",
    }
    for name, about in lists.items():
        parser.add_argument(f"--{name}", metavar="NAME,...", help=about)
    parser.add_argument(
        "--only",
        metavar="REGEX",
        default="",
        help="only cells shape/mask/name/pass, the pass forward or both, in which this is found",
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="then nothing new is begun")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them here (matplotlib)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Other processes of the run need the device's memory too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from shapeexec.tools.benchmark.attention import _main  # noqa: PLC0415 - it is heavy

    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib.", option="plot", fix="pip install matplotlib")
    try:
        only = re.compile(options.only)
    except re.error as error:
        raise ConfigError(
            f"--only {options.only!r} is no regular expression.",
            option="only",
            why=str(error),
            fix="4k.*causal",
        ) from None
    deadline = time.monotonic() + 60 * options.minutes
    report = _main.run(
        command=options.command,
        shapes=_names(options.shapes),
        masks=_names(options.masks),
        implementations=_names(options.implementations),
        rivals=_names(options.rivals),
        studies=_names(options.studies),
        only=only,
        deadline=deadline,
    )
    print(f"\n{report.as_text()}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if options.plot is not None:
        from shapeexec.tools.benchmark.attention._plot import save_plot  # noqa: PLC0415 - optional

        save_plot(report.rows, options.plot)
    return int(report.has_failed)


def _names(text: str | None) -> tuple[str, ...] | None:
    """The items of a list option; None: the option was not given."""
    if text is None:
        return None
    return () if text == "none" else tuple(filter(None, text.split(",")))
