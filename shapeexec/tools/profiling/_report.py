"""The figures of a profile, as text for people and as JSON for programs.

It measures nothing, and draws nothing: `_profile` and `_plot` do.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from shapeexec.execution._row import GraphSeconds
from shapeexec.execution._table import grid_lines
from shapeexec.tools._clock import seconds_text

_PARTS = ("trace", "check", "mask", "lower", "compile", "load")
_HEADS = ("bucket", "calls", "making", *_PARTS[:-1], "a call", "padding")
_MUCH = 0.4
"""From this share on, padding is reported as slow."""


@dataclasses.dataclass(frozen=True)
class ProfileRow:
    """The calls of one bucket.

    Attributes:
        bucket: The sizes of its graph.
        calls: The number of calls that ran in it.
        seconds: The median seconds of a compiled call, without the profiler.
        making: The seconds of making the graph, by part.
        waste: The share of padding among all elements that run, 0 to 1.
        operations: XLA's slowest operations with JAX's primitive, and the seconds of each in one
            call under the profiler; an operation that runs others, such as a loop, includes them.
        trace: The folder of its trace.

    Example:
        >>> row = ProfileRow("s=8", 2, 1e-3, GraphSeconds(), 0.1, (("sort.0 (sort)", 5e-4),), "x")
        >>> Profile((row,), "traces").slow[0]
        'calls: 100% of their time in s=8, 1 ms each'
    """

    bucket: str
    calls: int
    seconds: float
    making: GraphSeconds
    waste: float
    operations: tuple[tuple[str, float], ...]
    trace: str


@dataclasses.dataclass(frozen=True)
class Profile:
    """Calls bucket by bucket; `print` it.

    Attributes:
        rows: The buckets, in the order in which calls came.
        directory: The directory of the traces.

    Example:
        >>> Profile((), "traces").slow
        ()
    """

    rows: tuple[ProfileRow, ...]
    directory: str

    @property
    def slow(self) -> tuple[str, ...]:
        """The slow parts in words: the bucket with the most time, and the reasons."""
        return tuple(_slow(self.rows))

    def __str__(self) -> str:
        grid = [list(_HEADS), *map(_cells, self.rows)]
        lines = grid_lines(grid, ("bucket",))
        return "\n".join([*lines, *self.slow, f"traces: {self.directory}"])

    def to_markdown(self) -> str:
        """Write a page: the table, what was slow, and each bucket's operations."""
        rule = ["---"] * len(_HEADS)
        table = "\n".join(
            f"| {' | '.join(row)} |" for row in (_HEADS, rule, *map(_cells, self.rows))
        )
        parts = ["# Profile", table, "\n".join(f"- {text}" for text in self.slow)]
        for row in self.rows:
            spent = "\n".join(f"- `{name}`: {seconds_text(took)}" for name, took in row.operations)
            times = f"{row.calls} x {seconds_text(row.seconds)}; made in {row.making}"
            parts += [f"## {row.bucket}", f"{times}; trace in `{row.trace}`", spent]
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"directory": self.directory, "slow": list(self.slow), "rows": rows}


def _slow(rows: tuple[ProfileRow, ...]) -> Iterator[str]:
    if not rows:
        return
    running = sum(row.calls * row.seconds for row in rows)
    most = max(rows, key=lambda row: row.calls * row.seconds)
    share = most.calls * most.seconds / running
    yield f"calls: {share:.0%} of their time in {most.bucket}, {seconds_text(most.seconds)} each"
    for name, spent in most.operations[:1]:
        yield f"operations: in {most.bucket} {name} takes most, {seconds_text(spent)} a call"
    making = max(rows, key=lambda row: row.making.total)
    part, took = max(((part, getattr(making.making, part)) for part in _PARTS), key=lambda p: p[1])
    calls = making.making.total / making.seconds
    yield (
        f"making graphs: {seconds_text(making.making.total)} for {making.bucket}, the time of "
        f"{calls:.0f} of its calls; {part} took {seconds_text(took)} of it"
    )
    for row in rows:
        if row.waste >= _MUCH:
            yield f"padding: {row.waste:.0%} of what runs in {row.bucket}"


def _cells(row: ProfileRow) -> list[str]:
    making = [seconds_text(getattr(row.making, part)) for part in _PARTS[:-1]]
    return [
        row.bucket,
        str(row.calls),
        seconds_text(row.making.total),
        *making,
        seconds_text(row.seconds),
        f"{row.waste:.1%}",
    ]
