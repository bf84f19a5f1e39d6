"""`Analysis`: what the calls of an Exec were, as a value that prints.

`_analyze` computes it, and `_plot` draws it.
"""

import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Any

from shapeexec._errors import ConfigError, sizes_text
from shapeexec.execution import _table
from shapeexec.execution._drawing import plotter
from shapeexec.execution._stats import Stats
from shapeexec.execution.analysis._uses import BucketUse, TrafficWindow

_MOST_BUCKETS, _MOST_WINDOWS = 24, 12
_TEXTS = ("bucket", "calls from")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A report on the calls of an `Exec`; `print` it.

    The record behind it is bounded: at most 32 windows, and sizes that are rounded up where there
    are too many different ones. Examples of maps count as calls.

    Attributes:
        name: The function's name.
        stats: The counters.
        symbols: The symbols of its sizes, sorted.
        sizes: How often each combination of sizes occurred, in the order of `symbols`. A symbol
            that a call does not have, or not yet, is 0. `sx.fit` takes `padded_sizes`.
        uses: One per combination of buckets, those with most calls first.
        waste: By symbol the share of the buckets that was padding, 0 to 1.
        entropy: Of the combinations of sizes, in bits: the sum of -p log2 p over their shares p. 2
            to its power is how many equally frequent combinations are as uncertain.
        bucket_entropy: The same measure for the combinations of buckets.
        windows: The stream from the first call on, in windows of 256 calls or somewhat more, twice
            that and so on in a longer stream; the last may have fewer.
        hours: By hour of the day, 0 to 23 in UTC, where there was a call.
        rounded: By symbol the step to whose multiples its sizes were rounded up.
        left_out: Calls that are not in `sizes`, because there were too many different sizes.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",), buckets=sx.Linear(8))
        >>> for size in (3, 5, 9, 5):
        ...     _ = run(np.ones(size, np.float32))
        >>> found = run.analysis()
        >>> found.sizes, found.entropy
        ({(3,): 1, (5,): 2, (9,): 1}, 1.5)
    """

    name: str
    stats: Stats
    symbols: tuple[str, ...]
    sizes: Mapping[tuple[int, ...], int]
    uses: tuple[BucketUse, ...]
    waste: Mapping[str, float]
    entropy: float
    bucket_entropy: float
    windows: tuple[TrafficWindow, ...]
    hours: Mapping[int, TrafficWindow]
    rounded: Mapping[str, int]
    left_out: int

    @property
    def calls(self) -> int:
        """How many calls, and examples of maps, are in `sizes`."""
        return sum(self.sizes.values())

    @property
    def padded_sizes(self) -> Mapping[tuple[int, ...], int]:
        """Those of `sizes` that run in buckets: an empty axis has a graph of its own."""
        count = len(self.symbols)
        return {key: n for key, n in self.sizes.items() if len(key) == count and all(key)}

    @property
    def graph_seconds(self) -> float:
        """The mean time that making a graph took, in seconds; 0 if none was made."""
        stats = self.stats
        made = stats.mask_seconds + stats.lower_seconds + stats.compile_seconds
        return made / stats.compiles if stats.compiles else 0.0

    def __str__(self) -> str:
        lines: list[str] = []
        for part in _parts(self):
            lines += [part] if isinstance(part, str) else _table.grid_lines(part, _TEXTS)
        return "\n".join(lines)

    def __rich__(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - rich asked for it
        from rich.text import Text  # noqa: PLC0415 - rich may not be installed

        parts = _parts(self)
        return Group(
            *(Text(p) if isinstance(p, str) else _table.rich_table(p, _TEXTS) for p in parts)
        )

    def to_json(self) -> str:
        """Write all of it as JSON: times in seconds, entropy in bits, `sizes` as rows."""
        fields = dataclasses.asdict(self)
        rows = [
            {**dict(zip(self.symbols, k, strict=True)), "calls": n} for k, n in self.sizes.items()
        ]
        return json.dumps(fields | {"sizes": rows, "hit_rate": self.stats.hit_rate}, indent=2)

    def plot(self, figure: Any = None) -> Any:
        """Draw per bucket its calls and padding, and per window how far sizes have moved.

        Args:
            figure: A matplotlib figure to draw in; None makes a new one.

        Returns:
            The figure; `figure.savefig("analysis.png")` writes it.

        Raises:
            ConfigError: No call had a size, `figure` is not one, or matplotlib is not installed.
        """
        if not self.symbols:
            raise ConfigError("plot: no call had a size.", fix="call the Exec before")
        drawing = plotter(
            "shapeexec.execution.analysis._plot", figure=figure, instead="print the analysis"
        )
        return drawing.plot_analysis(self.uses, self.windows, symbols=self.symbols, figure=figure)


def _parts(found: Analysis) -> list[str | list[list[str]]]:
    stats = found.stats
    parts: list[str | list[list[str]]] = [
        f"{found.name}: {found.calls} calls, {stats.hit_rate:.1%} hits, {stats.graphs} graphs,"
        f" {stats.evictions} evictions, {1 - stats.efficiency:.1%} padding"
    ]
    if not found.symbols:
        return parts
    padding = ", ".join(f"{symbol} {share:.1%}" for symbol, share in found.waste.items())
    parts.append(f"  padding by symbol: {padding}")
    parts.append(
        f"  entropy: {found.entropy:.2f} bits of sizes ({len(found.sizes)} of them),"
        f" {found.bucket_entropy:.2f} bits of buckets"
    )
    if found.rounded:
        steps = ", ".join(f"{symbol} to {step}" for symbol, step in found.rounded.items())
        parts.append(f"  sizes are rounded up: {steps}")
    parts.append(_buckets(found))
    if (more := len(found.uses) - _MOST_BUCKETS) > 0:
        parts.append(f"  ... and {more} buckets more")
    return parts if len(found.windows) < 2 else [*parts, _windows(found)]


def _buckets(found: Analysis) -> list[list[str]]:
    grid = [["bucket", "calls", "share", "padding", "graphs", "hits", "made", "a hit"]]
    calls = found.calls or 1
    for use in found.uses[:_MOST_BUCKETS]:
        each = f"{use.run_seconds / use.hits * 1e3:.3g} ms" if use.hits else "-"
        shares = ", ".join(f"{share:.0%}" for share in use.waste.values()) or "-"
        sizes = sizes_text(use.buckets)
        share = f"{use.calls / calls:.1%}"
        made = f"{use.made_seconds:.2f} s" if use.graphs else "-"
        row = [sizes, str(use.calls), share, shares, str(use.graphs), str(use.hits), made, each]
        grid.append(row)
    return grid


def _windows(found: Analysis) -> list[list[str]]:
    heads = ["calls from", "calls", "entropy"]
    heads += [f"{symbol} {what}" for symbol in found.symbols for what in ("mean", "shift")]
    step = -(-len(found.windows) // _MOST_WINDOWS)
    return [heads, *(_row(window, found) for window in found.windows[::step])]


def _row(window: TrafficWindow, found: Analysis) -> list[str]:
    began = datetime.datetime.fromtimestamp(window.began, datetime.UTC)
    cells = [f"{began:%Y-%m-%d %H:%M} UTC", str(window.calls), f"{window.entropy:.2f}"]
    for symbol in found.symbols:
        has = symbol in window.mean
        cells += [f"{window.mean[symbol]:.4g}", f"{window.shift[symbol]:.0%}"] if has else ["-"] * 2
    return cells
