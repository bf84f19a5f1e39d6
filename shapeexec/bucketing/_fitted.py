"""`Fitted`: ladders that were fitted to requests, with what they cost, as a value that prints.

`_fit_joint` makes it.
"""

import dataclasses
from collections.abc import Mapping

from shapeexec.bucketing._fixed import Ladder

_MOST_SHOWN = 24


@dataclasses.dataclass(frozen=True)
class FitRow:
    """One graph of a fit: the requests that share it.

    Attributes:
        buckets: By symbol.
        requests: How many run in it; the sum of their weights.
        cost: What they cost together.
        exact_cost: What they would cost without padding.

    Example:
        >>> FitRow(buckets={"s": 64}, requests=3.0, cost=30.0, exact_cost=27.0).waste
        0.1
    """

    buckets: Mapping[str, int]
    requests: float
    cost: float
    exact_cost: float

    @property
    def waste(self) -> float:
        """The share of the cost that padding takes."""
        return _share(self.exact_cost, self.cost)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Ladders that were fitted to requests; `print` it.

    Attributes:
        strategies: The ladder of each symbol, to be passed as `buckets=`.
        rows: The graphs that the requests use, the costliest first.
        cost: What the requests cost together: in seconds by a cost model, else in the unit of the
            cost that was given.
        lower_bound: What they cost at least, with as many graphs and under the same constraints.
        exact_cost: What they would cost without padding, in a graph for each.
        requests: How many requests there are; the sum of their weights.
        by_graphs: The cost by the greatest number of graphs, for the numbers that were compared.

    Example:
        >>> cost = lambda b, s: b * s
        >>> fit = sx.fit(None, [{"b": 1, "s": 10}, {"b": 4, "s": 90}], graphs=1, cost=cost)
        >>> fit.strategies, fit.cost, fit.exact_cost
        ({'b': Ladder([4]), 's': Ladder([90])}, 720.0, 370.0)
    """

    strategies: Mapping[str, Ladder]
    rows: tuple[FitRow, ...]
    cost: float
    lower_bound: float
    exact_cost: float
    requests: float
    by_graphs: Mapping[int, float] = dataclasses.field(repr=False)

    @property
    def graphs(self) -> int:
        """How many graphs the requests use."""
        return len(self.rows)

    @property
    def waste(self) -> float:
        """The share of the cost that padding takes."""
        return _share(self.exact_cost, self.cost)

    @property
    def least_waste(self) -> float:
        """The share of padding in the lower bound."""
        return _share(self.exact_cost, self.lower_bound)

    @property
    def is_optimal(self) -> bool:
        """Whether no ladders are cheaper, but for rounding."""
        return self.cost <= self.lower_bound * (1 + 1e-9)

    def __str__(self) -> str:
        known = "the least possible" if self.is_optimal else f"at least {self.least_waste:.1%}"
        lines = [
            f"{self.requests:g} requests in {self.graphs} graphs: padding is {self.waste:.1%} of"
            f" the cost, {known}"
        ]
        lines += [f"  {symbol}: {ladder!r}" for symbol, ladder in self.strategies.items()]
        heads = [*self.strategies, "requests", "cost", "padding"]
        shown = [self._cells(row) for row in self.rows[:_MOST_SHOWN]]
        table = [heads, *shown]
        widths = [max(len(cells[i]) for cells in table) for i in range(len(heads))]
        for cells in table:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append("  " + "  ".join(padded))
        left = len(self.rows) - len(shown)
        return "\n".join(lines + ([f"  ... and {left} graphs more"] if left else []))

    def _cells(self, row: FitRow) -> list[str]:
        sizes = [str(row.buckets[symbol]) for symbol in self.strategies]
        share = row.cost / self.cost if self.cost else 0.0
        return [*sizes, f"{row.requests:g}", f"{share:.1%}", f"{row.waste:.1%}"]


def _share(least: float, cost: float) -> float:
    return max(0.0, (cost - least) / cost) if cost else 0.0
