"""The contest as a table, a plot and one line."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from rich import box
from rich.table import Table

from demo.contest import Run

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def table(runs: Sequence[Run], unmasked: float) -> Table:
    """One column per contestant."""
    shown = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption_justify="left",
        caption="* from a sample of the shapes, scaled to all requests",
    )
    shown.add_column("", no_wrap=True)
    for run in runs:
        shown.add_column(run.name.replace(", ", "\n", 1), justify="right")
    shown.add_column("jax.jit\npadded,\nno masks", justify="right", style="dim")

    def row(label: str, cell: Callable[[Run], str], *, last: str = "") -> None:
        shown.add_row(label, *map(cell, runs), last)

    def timed(text: str, run: Run) -> str:
        return f"{text} *" if run.is_extrapolated else text

    row("graphs compiled", lambda run: f"{run.graphs[-1]}")
    row("compiling, s", lambda run: timed(f"{run.compile_seconds:.1f}", run))
    row("requests/s cold", lambda run: timed(f"{run.cold_rate:.2f}", run))
    row("requests/s warm", lambda run: timed(f"{run.warm_rate:.1f}", run))
    row("padding", lambda run: f"{run.waste:.1%}")
    row(
        "difference, most",
        lambda run: "the truth" if run.difference is None else f"{run.difference:.1e}",
        last=f"[red]{unmasked:.1e}[/red]",
    )
    return shown


def verdict(runs: Sequence[Run]) -> str:
    """The gain, in one line."""
    exact, *bucketed = runs
    best = max(bucketed, key=lambda run: run.cold_rate)
    shapes, graphs = exact.graphs[-1], best.graphs[-1]
    cold, warm = best.cold_rate / exact.cold_rate, best.warm_rate / exact.warm_rate
    return (
        f"{best.name}: {graphs} graphs instead of {shapes} for {len(exact.graphs)} requests, "
        f"{cold:.1f} times as many requests per second from a cold start and {warm:.2f} times "
        f"once all is compiled; no result is off by more than {best.difference:.0e}."
    )


def save_plot(runs: Sequence[Run], path: Path) -> None:
    """Draw the seconds and the graphs that the requests took so far."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for run in runs:
        style = "--" if run.is_extrapolated else "-"
        label = f"{run.name} (extrapolated)" if run.is_extrapolated else run.name
        served = np.arange(1, len(run.graphs) + 1)
        left.plot(served, np.cumsum(run.cold_seconds), style, label=label)
        right.plot(served, run.graphs, style, label=label)
    left.set(xlabel="requests served", ylabel="seconds", yscale="log", title="Time, cold start")
    right.set(xlabel="requests served", ylabel="graphs", yscale="log", title="Graphs compiled")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)
