"""The figures of a run over levels, as text for people and as JSON for programs.

It measures nothing, and draws nothing: `_run` and `_plot` do.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from shapeexec.execution._table import bytes_text, grid_lines
from shapeexec.tools._clock import seconds_text
from shapeexec.tools.benchmark._contest import ContestRow

_HEADS = ("", *"programs,compiling,a pass,speed-up,a run,process,equal".split(","))


@dataclasses.dataclass(frozen=True)
class LevelsReport:
    """A model at each level of compiling; `print` it.

    Attributes:
        config: The model.
        rows: The levels.
        sizes: The sizes of each call.

    Example:
        >>> rows = (
        ...     ContestRow("op by op", "", warm_seconds=4.0),
        ...     ContestRow("jax.jit", "", warm_seconds=1.0),
        ... )
        >>> report = LevelsReport("small_transformer", rows, ({"b": 2},))
        >>> report.speed_up(rows[0])
        0.25
    """

    config: str
    rows: tuple[ContestRow, ...]
    sizes: tuple[Mapping[str, int], ...]

    @property
    def are_equal(self) -> bool:
        """Whether all results equal those of `jax.jit`, up to rounding."""
        return not any(row.differences for row in self.rows)

    def speed_up(self, row: ContestRow) -> float | None:
        """Compare a level with `jax.jit` at exact shapes, once all is compiled.

        Args:
            row: The level.

        Returns:
            How many times as fast it is; None: one of them was not timed.
        """
        exact = next((one for one in self.rows if one.name == "jax.jit"), row)
        if row.warm_seconds is None or exact.warm_seconds is None:
            return None
        return exact.warm_seconds / row.warm_seconds

    def __str__(self) -> str:
        wrong = [f"{row.name} differs at {text}" for row in self.rows for text in row.differences]
        lines = [
            f"{self.config}, {len(self.sizes)} shapes",
            *grid_lines([_HEADS, *map(self._cells, self.rows)], ("", "equal")),
            *(f"{row.name}: {row.note}" for row in self.rows if row.note),
            *wrong,
            "all answers equal" if self.are_equal else f"{len(wrong)} answers differ",
        ]
        return "\n".join(lines)

    def _cells(self, row: ContestRow) -> list[str]:
        speed_up, compiling = self.speed_up(row), row.compile_seconds
        return [
            row.name,
            "-" if row.graphs is None else str(row.graphs),
            "-" if compiling is None else f"{compiling:.2f} s",
            "-" if row.warm_seconds is None else seconds_text(row.warm_seconds),
            "-" if speed_up is None else f"{speed_up:.2f}",
            "-" if row.graphs is None else bytes_text(row.run_bytes),
            bytes_text(max(row.process_bytes, 0)),
            "NO" if row.differences else "yes",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        rows = [
            {
                **dataclasses.asdict(row),
                "compile_seconds": row.compile_seconds,
                "speed_up": self.speed_up(row),
            }
            for row in self.rows
        ]
        return {
            "config": self.config,
            "are_equal": self.are_equal,
            "sizes": [dict(at) for at in self.sizes],
            "rows": rows,
        }
