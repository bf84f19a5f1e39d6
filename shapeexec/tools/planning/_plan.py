"""`plan_lengths`: compares strategies with the best ladder, on recorded lengths.

It counts padded elements, and knows neither functions nor files.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shapeexec._code import code
from shapeexec.bucketing import Ladder, Strategy, checked_bucket
from shapeexec.bucketing._checks import as_int, histogram
from shapeexec.bucketing._laws import buckets_of
from shapeexec.execution._drawing import plotter
from shapeexec.tools._strategies import FIT, strategy_of

COMPARED = ("pow2", "geometric:1.5", "linear:128")


@dataclasses.dataclass(frozen=True)
class LengthRow:
    """The figures of one strategy.

    Attributes:
        name: The text that named it.
        strategy: The strategy.
        graphs: The number of buckets that the lengths use: one graph each.
        waste: The share of padding among all elements that run, 0 to 1.
        most: The greatest padding of one length, in elements.

    Example:
        >>> plan_lengths([3, 4, 9], graphs=2).rows[0].graphs
        2
    """

    name: str
    strategy: Strategy
    graphs: int
    waste: float
    most: int

    @property
    def source(self) -> str:
        """The strategy as source text: `sx.Ladder([30, 60])`."""
        return code(self.strategy) or self.name

    @property
    def padding(self) -> float:
        """The padded elements divided by the elements of data."""
        return self.waste / (1 - self.waste)


@dataclasses.dataclass(frozen=True)
class LengthPlan:
    """Strategies for recorded lengths, the one with the least padding first; `print` it.

    Attributes:
        counts: How often each length occurs.
        rows: The strategies.

    Example:
        >>> plan = plan_lengths({10: 50, 12: 20, 90: 1}, graphs=2)
        >>> plan.best.source
        'sx.Ladder((12, 90))'
    """

    counts: Mapping[int, float]
    rows: tuple[LengthRow, ...]

    @property
    def best(self) -> LengthRow:
        """The ladder that is fitted to the lengths."""
        return next(row for row in self.rows if row.name.startswith(FIT))

    def __str__(self) -> str:
        total, lengths = sum(self.counts.values()), list(self.counts)
        heads = ("strategy", "graphs", "padding / data", "padding / all", "most for one")
        cells = [heads, *map(_cells, self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
        lines = [f"{total:,.0f} lengths of {len(lengths):,} sizes, {lengths[0]} to {lengths[-1]}"]
        for first, *others in cells:
            aligned = (cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))
            lines.append("  ".join((first.ljust(widths[0]), *aligned)))
        return "\n".join((*lines, "", f"buckets={self.best.source}"))

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        rows = [
            {
                "name": row.name,
                "strategy": row.source,
                "buckets": list(buckets_of(row.strategy, self.counts)),
                "graphs": row.graphs,
                "waste": row.waste,
                "padding": row.padding,
                "most": row.most,
            }
            for row in self.rows
        ]
        return {"counts": {str(size): n for size, n in self.counts.items()}, "rows": rows}

    def plot(self, figure: Any = None) -> Any:
        """Draw the lengths with the buckets of the fitted ladder, and the padding of each strategy.

        Args:
            figure: A matplotlib figure; None makes a new one.

        Returns:
            The figure.

        Raises:
            ConfigError: `figure` is not a figure, or matplotlib is not installed.
        """
        drawing = plotter("shapeexec.tools.planning._plot", figure=figure, instead="print the plan")
        wastes = {f"{row.name}, {row.graphs} graphs": row.waste for row in self.rows}
        return drawing.drawn(
            self.counts, wastes, buckets=buckets_of(self.best.strategy, self.counts), figure=figure
        )


def plan_lengths(
    lengths: Iterable[int] | Mapping[int, float],
    *,
    graphs: int = 16,
    compare: Sequence[str | Strategy] = COMPARED,
) -> LengthPlan:
    """Compare strategies on recorded lengths, and fit a ladder to the lengths.

    Args:
        lengths: The lengths, or a mapping from length to count.
        graphs: How many graphs the fitted ladder may have.
        compare: Strategies beside it, as `Exec(buckets=)` takes them; `"fit:8"` is a ladder fitted
            with 8 graphs.

    Returns:
        The strategies, the one with the least padding first.

    Raises:
        ConfigError: There is no length, a length is not an integer of at least 1, or an item of
            `compare` is not a strategy.
        BucketOverflowError: A length lies past the last bucket of a strategy.

    Example:
        >>> print(plan_lengths([3, 4, 4, 9, 30], graphs=2, compare=["pow2"]))
        5 lengths of 4 sizes, 3 to 30
        strategy  graphs  padding / data  padding / all  most for one
        pow2           3           20.0%          16.7%             7
        fit:2          2           32.0%          24.2%             6
        <BLANKLINE>
        buckets=sx.Ladder((9, 30))
    """
    counts = {size: count for size, count in histogram(lengths).items() if count}
    names = dict.fromkeys((f"{FIT}:{as_int(graphs, 'graphs')}", *compare))
    rows = [_row(name, counts) for name in names]
    return LengthPlan(counts, tuple(sorted(rows, key=lambda row: (row.waste, row.graphs))))


def _row(given: str | Strategy, counts: Mapping[int, float]) -> LengthRow:
    name = given if isinstance(given, str) else repr(given)
    strategy = strategy_of(given, fitted={FIT: lambda graphs: Ladder.fit(counts, graphs)})
    most = max(checked_bucket(strategy, size) - size for size in counts)
    waste = strategy.expected_waste(counts)
    return LengthRow(name, strategy, len(buckets_of(strategy, counts)), waste, most)


def _cells(row: LengthRow) -> tuple[str, ...]:
    shares = (f"{row.padding:.1%}", f"{row.waste:.1%}")
    return (row.name, str(row.graphs), *shares, str(row.most))
