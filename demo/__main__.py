"""Real text of every length through a transformer: exact shapes against buckets."""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import track

from demo import contest, model, report, text
from shapeexec import ConfigError, ShapeExecError
from shapeexec.tools._device import add_device, on_device
from shapeexec.tools._strategies import split

_FULL = {"requests": 300, "layers": 2, "sample": 16}
_QUICK = {"requests": 4, "layers": 1, "sample": 3}


def main(arguments: Sequence[str] | None = None) -> list[contest.Run]:
    """Run the contest, and show it."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("plot", nargs="?", type=Path, default=Path("demo_plot.png"))
    parser.add_argument("--requests", type=int, metavar="N", help="default 300")
    parser.add_argument("--layers", type=int, metavar="N", help="default 2")
    parser.add_argument("--sample", type=int, metavar="N", help="exact shapes to try; default 16")
    parser.add_argument("--quick", action="store_true", help="few requests: seconds, no proof")
    parser.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="STRATEGY",
        help="of lengths, such as pow2,linear:64,fit:8; default: three that suit the text",
    )
    add_device(parser)
    options = parser.parse_args(arguments)
    for name, count in (_QUICK if options.quick else _FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, count)
        if (given := getattr(options, name)) < 1:
            raise ConfigError(f"--{name} {given} is none.", option=name, fix="1 or more")
    with on_device(options.device) as device:
        return _run(options, device.platform)


def _run(options: argparse.Namespace, platform: str) -> list[contest.Run]:
    compare = split(options.compare)
    started = time.perf_counter()
    console = Console()

    def progress(items: Iterable, what: str) -> Iterable:
        return track(list(items), f"{what:24}", console=console)

    history = text.requests(options.requests, seed=0)
    ways = contest.contestants(history, compare=compare)
    requests = text.requests(options.requests, seed=1)
    console.print(
        f"A byte-level transformer reads {len(requests)} requests: 1 to {text.LARGEST_BATCH} "
        f"docstrings of Python's standard library each, 1 to {model.LONGEST} bytes long, in "
        f"{len({tokens.shape for tokens in requests})} different shapes "
        f"(jax {jax.__version__} on {platform})."
    )
    params = model.init(jax.random.key(0), layers=options.layers)
    sample = contest.sample_exact(params, requests, count=options.sample, track=progress)
    runs = [contest.extrapolate(sample, requests)]
    for name, buckets in ways.items():
        runs.append(
            contest.run_exec(
                name, buckets, params=params, requests=requests, sample=sample, track=progress
            )
        )
    unmasked = contest.difference_without_masks(
        next(iter(ways.values())), params, sample=sample, track=progress
    )
    console.print(report.table(runs, unmasked))
    report.save_plot(runs, options.plot)
    console.print(f"Plot: {options.plot} ({time.perf_counter() - started:.0f} s in all)")
    console.print(report.verdict(runs), style="bold", highlight=False, soft_wrap=True)
    return runs


if __name__ == "__main__":
    try:
        main()
    except ShapeExecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
