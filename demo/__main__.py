"""Real text of every length through a transformer: exact shapes against buckets."""

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import track

from demo import contest, model, report, text


def main(arguments: Sequence[str] | None = None) -> list[contest.Run]:
    """Run the contest, and show it."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("plot", nargs="?", type=Path, default=Path("demo_plot.png"))
    parser.add_argument("--requests", type=int, default=300, metavar="N")
    parser.add_argument("--layers", type=int, default=2, metavar="N")
    parser.add_argument("--sample", type=int, default=16, metavar="N", help="exact shapes to try")
    options = parser.parse_args(arguments)

    started = time.perf_counter()
    console = Console()

    def progress(items: Iterable, what: str) -> Iterable:
        return track(list(items), f"{what:24}", console=console)

    requests = text.requests(options.requests, seed=1)
    console.print(
        f"A byte-level transformer reads {len(requests)} requests: 1 to {text.LARGEST_BATCH} "
        f"docstrings of Python's standard library each, 1 to {model.LONGEST} bytes long, in "
        f"{len({tokens.shape for tokens in requests})} different shapes "
        f"(jax {jax.__version__} on {jax.devices()[0].platform})."
    )
    params = model.init(jax.random.key(0), layers=options.layers)
    sample = contest.sample_exact(params, requests, count=options.sample, track=progress)
    runs = [contest.extrapolate(sample, requests)]
    ways = contest.contestants(history=text.requests(options.requests, seed=0))
    for name, buckets in ways.items():
        runs.append(
            contest.run_exec(
                name, buckets, params=params, requests=requests, sample=sample, track=progress
            )
        )
    unmasked = contest.difference_without_masks(ways["Pow2"], params, sample=sample, track=progress)
    console.print(report.table(runs, unmasked))
    report.save_plot(runs, options.plot)
    console.print(f"Plot: {options.plot} ({time.perf_counter() - started:.0f} s in all)")
    console.print(report.verdict(runs), style="bold", highlight=False, soft_wrap=True)
    return runs


if __name__ == "__main__":
    main()
