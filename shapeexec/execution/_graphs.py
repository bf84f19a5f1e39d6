"""The cache as a table: one row per compiled graph.

`_table` and `_plot` draw rows, and `_store` keeps graphs.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shapeexec._errors import ConfigError, GraphIndexError, sizes_text
from shapeexec.execution import _table
from shapeexec.execution._compile import Graph
from shapeexec.execution._drawing import plotter
from shapeexec.execution._exactness import Exactness
from shapeexec.execution._key import Base, kind_of
from shapeexec.execution._options import as_size
from shapeexec.execution._plan import Planned
from shapeexec.execution._row import GraphRow, volume
from shapeexec.execution._stats import Counters
from shapeexec.masking._extents import Extents
from shapeexec.shape import Dim


@dataclasses.dataclass(frozen=True)
class Graphs:
    """The graphs that an `Exec` held at the time of the query, in the order of their creation.

    Printing shows a table of at most 110 columns, drawn with rich if it is installed. `len` and
    iteration are over the rows. `graphs[0]` is the first row, `graphs[-1]` the last; `graphs[{"b":
    3, "s": 100}]` is the graph in which a call of these sizes runs.

    Attributes:
        rows: One per graph.

    Example:
        >>> run = Exec(lambda x: x.sum(), ("s",), buckets=8)
        >>> _ = run(jax.numpy.ones(5)), run(jax.numpy.ones(6)), run(jax.numpy.ones(9))
        >>> [(row.sizes, row.hits) for row in run.graphs]
        [('s=8', 1), ('s=16', 0)]
    """

    rows: tuple[GraphRow, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[GraphRow]:
        return iter(self.rows)

    def __getitem__(self, which: int | Mapping[Any, int]) -> GraphRow:
        """A row by its number, or by sizes that it serves, by name or by `Dim`.

        Raises:
            GraphIndexError: There is no row of this number.
            ConfigError: `which` is neither, no graph serves the sizes, or more than one does.
        """
        try:
            asked = _by_symbol(which) if isinstance(which, Mapping) else as_size(which)
        except TypeError:
            raise ConfigError(
                f"graphs[{which!r}] names no graph.",
                option="which",
                fix='a number, graphs[0], or sizes, graphs[{"s": 100}]',
            ) from None
        if isinstance(asked, dict):
            return self._at(asked)
        if not -len(self.rows) <= asked < len(self.rows):
            known = f"they are numbered 0 to {len(self.rows) - 1}" if self.rows else "there is none"
            # An IndexError as of any sequence: iteration and `reversed` rely on it.
            raise GraphIndexError(
                f"graphs[{asked}] is not among {len(self.rows)} graphs: {known}.",
                index=asked,
                count=len(self.rows),
                fix=f"graphs[0] to graphs[{len(self.rows) - 1}]"
                if self.rows
                else "call the Exec, or warmup(), and look at its graphs then",
            )
        return self.rows[asked]

    def _at(self, sizes: Mapping[str, int]) -> GraphRow:
        asked = sizes_text(sizes) or "no sizes"
        found = [number for number, row in enumerate(self.rows) if row.serves(sizes)]
        if len(found) > 1:  # graphs that serve all sizes up to their buckets: the least one runs
            found.sort(key=lambda number: -volume(self.rows[number]))
            found = sorted({kind_of(self.rows[number].key): number for number in found}.values())
        if len(found) == 1:
            return self.rows[found[0]]
        held = "; ".join(f"{i}: {row.sizes}" for i, row in enumerate(self.rows))
        if not found:
            raise ConfigError(
                f"graphs: none serves {asked}.",
                option="which",
                got=f"{held:.200}" or "no graphs",
                fix="a size for each symbol, in a bucket that a call has used or warmup() made",
            )
        raise ConfigError(
            f"graphs: {asked} are sizes of {len(found)} graphs.",
            option="which",
            got="; ".join(f"{i}: {', '.join(self.rows[i].named)}" for i in found),
            why="they differ in dtypes, fixed dims, constants or settings of JAX",
            fix=f"choose by number, such as graphs[{found[0]}]",
        )

    def table(self, *columns: str) -> str:
        """Print the table as a string of at most 110 columns.

        Args:
            *columns: Which columns, in this order: `"buckets"`, `"parts"` (the other differences
                between graphs: dtypes, fixed dims, constants, guards, devices), `"hits"`, `"last
                use"`, `"waste"`, `"bytes"`, `"seconds"`, `"origin"`. None: all of them.

        Returns:
            Lines of text: one for each graph, below the heads of the columns.

        Raises:
            ConfigError: A column is not one of these.
        """
        return _table.drawn(self.rows, columns)

    def __str__(self) -> str:
        return self.table()

    def __rich__(self) -> Any:
        return _table.renderable(self.rows)

    def to_json(self) -> str:
        """Write all rows as JSON: `{"graphs": [...]}`, bytes in bytes and times in seconds."""
        return json.dumps({"graphs": [row.to_dict() for row in self.rows]}, indent=2)

    def plot(self, figure: Any = None) -> Any:
        """Draw per graph its hits, and the elements that ran in it: data and padding.

        Args:
            figure: A matplotlib figure to draw in; None makes a new one.

        Returns:
            The figure; `figure.savefig("graphs.png")` writes it.

        Raises:
            ConfigError: There are no graphs, `figure` is not a figure, or matplotlib is not
                installed.
        """
        if not self.rows:
            raise ConfigError("plot: there are no graphs.", fix="call the Exec, or warm it up")
        drawing = plotter("shapeexec.execution._plot", figure=figure, instead="print the table")
        return drawing.plot_rows(self.rows, figure)


def _by_symbol(sizes: Mapping[Any, Any]) -> dict[str, int]:
    return {
        symbol.name or str(symbol) if isinstance(symbol, Dim) else symbol: as_size(size)
        for symbol, size in sizes.items()
    }


def row_of(planned: Planned, origin: str) -> GraphRow:
    """The row of a graph before it is compiled.

    Args:
        planned: The call, or the examples, that it is compiled for.
        origin: See `GraphRow`.
    """
    plan, ranges = planned.first, planned.recipe.ranges
    trace, base = plan.recipe.trace, plan.base
    extents = Extents(ranges, {}, substitution=trace.substitution)
    exact, inward = dict(kind_of(planned.key).exact), trace.substitution.inward
    buckets = {
        symbol: exact[symbol] if symbol in exact else extents.capacity(inward(symbol))
        for symbol in plan.sizes
    }
    leaves = zip(base.paths, base.leaves, strict=True)
    return GraphRow(
        buckets=buckets,
        least={s: ranges[s][0] if s in ranges else size for s, size in buckets.items()},
        signature=tuple(f"{path}: {leaf}" for path, leaf in leaves),
        constants={place: text for place, (_, text) in base.constants.items()},
        guards=tuple(map(str, plan.guards)),
        exact=exact,
        examples=planned.examples,
        reduce=planned.reduce,
        shardings=kind_of(planned.key).sharding_texts,
        origin=origin,
        key=planned.key,
        is_ragged=base.is_ragged,
        has_zero_results=kind_of(planned.key).zero_results,
        trace=trace,
    )


def graphs_of(
    graphs: Sequence[Graph], counters: Counters, *, exactness: Callable[[Base], Exactness]
) -> Graphs:
    """The table of these graphs, with what has run in them.

    Args:
        graphs: What the cache holds.
        counters: What has run.
        exactness: Which symbols are exact in calls of one kind.
    """
    exactness = functools.cache(exactness)
    graphs = sorted(graphs, key=lambda graph: graph.number)
    counts = counters.read([graph.tally for graph in graphs])
    return Graphs(
        tuple(
            dataclasses.replace(
                graph.row,
                hits=hits,
                last_use=last_use,
                valid_elements=valid,
                bucket_elements=bucket,
                run_seconds=seconds,
                exactness=exactness(kind_of(graph.row.key).base),
                compiled=graph.compiled,
            )
            for graph, (hits, last_use, valid, bucket, seconds) in zip(graphs, counts, strict=True)
        )
    )
