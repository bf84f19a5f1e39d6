"""Run all benchmarks, each in a process of its own, and draw one plot of their results.

Results go to `benchmarks/results/NAME.json` and `benchmarks/results/benchmarks.png`. `ladders`,
`fitting` and `adaptive` run if `--data` names their histograms.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
OF_DATA = ("ladders", "fitting", "adaptive")
RESULTS = Path(__file__).parent / "results"


Figures = Mapping[str, Mapping[str, Any]]
"""The figures of one benchmark, by case."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of the plot.

    Attributes:
        title: What its bars measure.
        benchmark: Whose figures they are.
        bars: From these figures to the length of each bar, by name.
        target: Where a line is drawn; None: nowhere.
    """

    title: str
    benchmark: str
    bars: Callable[[Figures], Mapping[str, float]]
    target: float | None = None


def _each(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Figures], Mapping[str, float]]:
    """One bar per case."""
    return lambda figures: {name: value(one) for name, one in figures.items()}


def _temporaries(figures: Figures) -> Mapping[str, float]:
    by_hand = figures["by hand"]["temporary_bytes"]
    return {name: one["temporary_bytes"] / by_hand for name, one in figures.items()}


def _paddings(figures: Figures) -> Mapping[str, float]:
    return {
        f"{lengths}: {strategy}": 100 * one["padding_per_valid"]
        for lengths, strategies in figures.items()
        for strategy, one in strategies.items()
    }


_RATIO = _each(lambda one: one["ratio"]["ratio"])
PANELS = (
    Panel(
        "XLA compilations, batches 1 to 100",
        "compilations",
        _each(lambda one: one["compilations"]),
    ),
    Panel("cache hit / bare call", "hit_overhead", _RATIO, 1.5),
    Panel("symbolic trace / plain trace", "tracing", _each(lambda one: one["ratio"]), 3.0),
    Panel("masks: time / hand-written masks, graphs alone", "masks", _RATIO, 1.03),
    Panel(
        "masks: selects / hand-written masks",
        "masks",
        _each(lambda one: one["selects"]["exec"] / one["selects"]["by hand"]),
        2.0,
    ),
    Panel(
        "cold requests per second / exact shapes",
        "cold_stream",
        _each(lambda one: one["cold_over_exact"]["median"]),
        5.0,
    ),
    Panel("temporaries of a ragged batch / by hand", "ragged_batch", _temporaries, 1.2),
    Panel("a step of a loop / by hand, fixed size", "loops", _RATIO),
    Panel("padding / valid, in percent", "ladders", _paddings),
)


def save_plot(figures: Mapping[str, Figures], path: Path) -> None:
    """Draw each benchmark's main figures as bars; a line shows where a target lies."""
    panels = [panel for panel in PANELS if panel.benchmark in figures]
    bars = [panel.bars(figures[panel.benchmark]) for panel in panels]
    heights = [len(values) + 1.5 for values in bars]
    figure, drawings = plt.subplots(
        len(bars), figsize=(9, 0.34 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for axes, panel, values in zip(drawings, panels, bars, strict=True):
        drawn = axes.barh(list(values), list(values.values()), height=0.6)
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize="small")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(panel.title, loc="left", fontsize="medium")
        if panel.target is not None:
            axes.axvline(panel.target, color="black", linestyle=":")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_all", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIRECTORY", help="see benchmarks.ladders")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIRECTORY")
    parser.add_argument("--tiny", action="store_true", help="seconds, not minutes: proves nothing")
    options = parser.parse_args(arguments)
    names = BENCHMARKS if options.data is None else (*BENCHMARKS, *OF_DATA)
    figures = {}
    for name in names:
        print(f"\n{name}", flush=True)
        path = options.out / f"{name}.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
        command += ["--tiny"] if options.tiny else []
        command += ["--data", str(options.data)] if name in OF_DATA else []
        subprocess.run(command, check=True)
        figures[name] = json.loads(path.read_text())["figures"]
    if options.data is None:
        print(f"\n{', '.join(OF_DATA)}: left out; --data names their histograms")
    save_plot(figures, options.out / "benchmarks.png")
    print(f"\n{options.out}: {', '.join(figures)} as JSON, and benchmarks.png")


if __name__ == "__main__":
    main()
