"""Run all benchmarks, each in a process of its own, and draw one plot of their results.

Results go to `benchmarks/results/NAME.json` and `benchmarks/results/benchmarks.png`. `ladders` runs
if `--data` names its histograms.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BENCHMARKS = (
    "compilations",
    "hit_overhead",
    "tracing",
    "masks",
    "cold_stream",
    "ragged_batch",
    "loops",
    "restart",
)
RESULTS = Path(__file__).parent / "results"


def save_plot(figures: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw each benchmark's main figures as bars; a line shows where a target lies."""
    bars = {
        "XLA compilations, batches 1 to 100": (
            {name: one["compilations"] for name, one in figures["compilations"].items()},
            None,
        ),
        "cache hit / bare call": (
            {name: one["ratio"]["ratio"] for name, one in figures["hit_overhead"].items()},
            1.5,
        ),
        "symbolic trace / plain trace": (
            {name: one["ratio"] for name, one in figures["tracing"].items()},
            3.0,
        ),
        "masks: time / hand-written masks, graphs alone": (
            {name: one["ratio"]["ratio"] for name, one in figures["masks"].items()},
            1.03,
        ),
        "masks: selects / hand-written masks": (
            {
                name: one["selects"]["exec"] / one["selects"]["by hand"]
                for name, one in figures["masks"].items()
            },
            2.0,
        ),
        "cold requests per second / exact shapes": (
            {
                name: one["cold_over_exact"]["median"]
                for name, one in figures["cold_stream"].items()
            },
            5.0,
        ),
        "temporaries of a ragged batch / by hand": (
            {
                name: one["temporary_bytes"] / figures["ragged_batch"]["by hand"]["temporary_bytes"]
                for name, one in figures["ragged_batch"].items()
            },
            1.2,
        ),
        "a step of a loop / by hand, fixed size": (
            {name: one["ratio"]["ratio"] for name, one in figures["loops"].items()},
            None,
        ),
    }
    if "ladders" in figures:
        bars["padding / valid, in percent"] = (
            {
                f"{lengths}: {strategy}": 100 * one["padding_per_valid"]
                for lengths, strategies in figures["ladders"].items()
                for strategy, one in strategies.items()
            },
            None,
        )
    heights = [len(values) + 1.5 for values, _ in bars.values()]
    figure, panels = plt.subplots(
        len(bars),
        figsize=(9, 0.34 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
    )
    for axes, (title, (values, target)) in zip(panels, bars.items(), strict=True):
        drawn = axes.barh(list(values), list(values.values()), height=0.6)
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize="small")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(title, loc="left", fontsize="medium")
        if target is not None:
            axes.axvline(target, color="black", linestyle=":")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_all", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIRECTORY", help="see benchmarks.ladders")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIRECTORY")
    parser.add_argument("--tiny", action="store_true", help="seconds, not minutes: proves nothing")
    options = parser.parse_args(arguments)
    names = BENCHMARKS if options.data is None else (*BENCHMARKS, "ladders")
    figures = {}
    for name in names:
        print(f"\n{name}", flush=True)
        path = options.out / f"{name}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
        command += ["--tiny"] if options.tiny else []
        command += ["--data", str(options.data)] if name == "ladders" else []
        subprocess.run(command, check=True)
        figures[name] = json.loads(path.read_text())["figures"]
    if options.data is None:
        print("\nladders: left out; --data names its histograms")
    save_plot(figures, options.out / "benchmarks.png")
    print(f"\n{options.out}: {', '.join(figures)} as JSON, and benchmarks.png")


if __name__ == "__main__":
    main()
