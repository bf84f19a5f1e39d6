"""What all benchmarks share: taking turns, own processes, counting compilations, tables and JSON.

It knows no benchmark.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

import shapeexec as sx
from shapeexec import _compat
from shapeexec.tools._machine import machine

WIDTH = 132


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, the columns' heads, and rows of strings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A promised figure, and the measured one.

    Attributes:
        text: The promise, with its number.
        measured: The number that this run gave.
        holds: Whether it is kept.
    """

    text: str
    measured: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What a benchmark hands back.

    Attributes:
        tables: For people.
        figures: For programs; JSON.
        claims: The promised figures.
    """

    tables: Sequence[Table]
    figures: Mapping[str, Any]
    claims: Sequence[Claim] = ()


def run_benchmark(
    name: str,
    about: str | None,
    *,
    run: Callable[[argparse.Namespace], Report],
    arguments: Sequence[str] | None,
    add_options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> Report:
    """Run a benchmark as a program: parse options, print tables, write JSON.

    Args:
        name: The module's name within this package.
        about: What `--help` says.
        run: From parsed options to the report; `options.tiny` asks for a run of seconds.
        arguments: The command line; None: that of the process.
        add_options: Adds the benchmark's own options to a parser.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--tiny", action="store_true", help="seconds, not minutes: proves nothing")
    add_options(parser)
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    report = run(options)
    record = {
        "benchmark": name,
        "command": " ".join([parser.prog, *arguments]),
        "machine": machine(),
        "seconds": round(time.perf_counter() - started, 1),
        "claims": [dataclasses.asdict(claim) for claim in report.claims],
        "figures": report.figures,
    }
    show(report, record["machine"])
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return report


def run_contestants(
    name: str,
    about: str | None,
    *,
    one: Callable[[argparse.Namespace], Any],
    run: Callable[[argparse.Namespace], Report],
    arguments: Sequence[str] | None,
    add_options: Callable[[argparse.ArgumentParser], object],
) -> Report | None:
    """As `run_benchmark`, for one whose contestants run in processes of their own.

    Args:
        name: See `run_benchmark`.
        about: See `run_benchmark`.
        one: From parsed options to the figures of one contestant, which are printed as JSON if the
            command line has `--one`; then nothing else happens.
        run: See `run_benchmark`.
        arguments: See `run_benchmark`.
        add_options: Adds the benchmark's own options to a parser, `--one` among them.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    options, _ = parser.parse_known_args(arguments)
    if options.one is not None:
        print(json.dumps(one(options)))
        return None
    return run_benchmark(name, about, run=run, arguments=arguments, add_options=add_options)


def in_a_process(
    module: str, *arguments: str, flags: str = "", variables: Mapping[str, str] | None = None
) -> Any:
    """The last line that a module of this package prints, which is JSON, in a process of its own.

    Args:
        module: The module's name within this package.
        *arguments: Its command line.
        flags: Flags of XLA, beside those of this process.
        variables: Variables of the environment, likewise.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": with_flags(flags), **(variables or {})},
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout.splitlines()[-1])


def with_flags(flags: str) -> str:
    """The flags of XLA that this process has, and more: for `XLA_FLAGS`."""
    given = os.environ.get("XLA_FLAGS", "")
    return f"{given} {flags}".strip()  # XLA takes what does not begin with a dash for a file


def show(report: Report, where: Mapping[str, Any]) -> None:
    """Print a report."""
    console = Console()
    console.width = max(console.width, WIDTH)  # a log's 80 columns would wrap every cell
    console.print(", ".join(f"{key} {value}" for key, value in where.items()), highlight=False)
    for table in report.tables:
        shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if i else "left", no_wrap=not i)
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for claim in report.claims:
        state = "[green]holds[/green]" if claim.holds else "[red]does not hold[/red]"
        console.print(f"{claim.text}: {claim.measured:.3g}, {state}", highlight=False)


def show_progress(row: Sequence[str]) -> None:
    """Print a row as soon as it is measured: the table comes at the end only."""
    print("; ".join(cell for cell in row if cell), flush=True)


# Compilations


class _Compilations:
    """How often XLA compiled, by JAX's own event."""

    count = 0
    seconds = 0.0


_listened = _Compilations()


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    if event == _compat.COMPILE_EVENT:
        _listened.count += 1
        _listened.seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_on_event)


@contextlib.contextmanager
def counting_compilations() -> Iterator[_Compilations]:
    """Count XLA's compilations inside the block; the counts are there at its end."""
    inside, count, seconds = _Compilations(), _listened.count, _listened.seconds
    yield inside
    inside.count, inside.seconds = _listened.count - count, _listened.seconds - seconds


def compiled_graph(ex: sx.Exec, *args: Any) -> Any:
    """The graph that a call with these arguments runs, compiled apart.

    It takes (sizes, consts, leaves).
    """
    plan = ex.plan(*args)
    recipe = plan.recipe
    leaves = [
        jax.ShapeDtypeStruct(capacity, aval.dtype, weak_type=aval.weak_type)
        for capacity, aval in zip(plan.in_capacities, recipe.trace.jaxpr.in_avals, strict=True)
    ]

    def run(sizes: Any, consts: Any, leaves: Any) -> Any:
        by_symbol = {symbol: sizes[i] for i, symbol in enumerate(recipe.symbols)}
        return recipe.masked(by_symbol, consts, leaves=leaves)

    consts = tuple(recipe.trace.jaxpr.consts)
    return jax.jit(run).lower(plan.size_vector, consts, leaves).compile()


def count_ops(hlo: str, op: str) -> int:
    """How many instructions of a kind a program has, inside fusions too."""
    return sum(f" {op}(" in line for line in hlo.splitlines())


def largest_difference(result: Any, other: Any) -> float:
    """Of two trees of arrays."""
    gaps = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), result, other)
    return float(max(jax.tree.leaves(gaps)))


# Time


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call over many rounds: the median and the quartiles."""

    median: float
    lower: float
    upper: float
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """Sum up rounds."""
        lower, median, upper = np.percentile(seconds, (25, 50, 75)).tolist()
        return cls(median, lower, upper, len(seconds))

    def __str__(self) -> str:
        scale, unit = (1e3, "ms") if self.median >= 1e-3 else (1e6, "us")
        spread = f"{scale * self.lower:.3g} to {scale * self.upper:.3g}"
        return f"{scale * self.median:.3g} {unit} ({spread})"


def take_turns(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, repeats: int = 1
) -> dict[str, list[float]]:
    """Time calls in turns, in the opposite order every other round.

    Args:
        calls: Each returns its result, which is waited for.
        rounds: How often each has its turn.
        repeats: How many calls make one turn.

    Returns:
        Per name the seconds per call of each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            call = calls[name]
            start = time.perf_counter()
            for _ in range(repeats):
                jax.block_until_ready(call())
            seconds[name].append((time.perf_counter() - start) / repeats)
        order.reverse()
    return seconds


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure of a few runs: the median, the least and the greatest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Sum up runs, too few for quartiles."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g})"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One contestant's time over another's: that of the medians, and the quartiles by round."""

    ratio: float
    lower: float
    upper: float

    @classmethod
    def of(cls, seconds: Sequence[float], baseline: Sequence[float]) -> "Ratio":
        """Compare rounds that took turns."""
        by_round = np.asarray(seconds) / np.asarray(baseline)
        lower, upper = np.percentile(by_round, (25, 75)).tolist()
        return cls(statistics.median(seconds) / statistics.median(baseline), lower, upper)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.lower:.2f} to {self.upper:.2f})"
