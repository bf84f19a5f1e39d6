"""The figures of a run over shapes, as text for people and as JSON for programs.

It measures nothing, and draws nothing: `_run` and `_plot` do.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from shapeexec.execution._table import bytes_text, grid_lines
from shapeexec.tools.benchmark._contest import ContestRow


@dataclasses.dataclass(frozen=True)
class ClaimRow:
    """A usual claim of libraries that pad to buckets, beside the measurement.

    Attributes:
        claim: The claim.
        name: The strategy that comes nearest to it.
        measured: The figure of that strategy.
        holds: Whether the claim holds here.

    Example:
        >>> ClaimRow("3x as fast, compiles included", "pow2", 3.6, holds=True).holds
        True
    """

    claim: str
    name: str
    measured: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class ShapesReport:
    """Strategies beside `jax.jit` at exact shapes; `print` it.

    Attributes:
        rows: The contestants, `jax.jit` first.
        sizes: The sizes of each call.
        flops: The FLOPs of one pass over all calls, unpadded.
        peak_flops: The FLOP/s of a large matrix product in the same run.

    Example:
        >>> rows = (
        ...     ContestRow("jax.jit", "jax.jit(fn)", cold_seconds=9.0, warm_seconds=1.0),
        ...     ContestRow("pow2", "s: sx.Pow2()", cold_seconds=3.0, warm_seconds=1.25),
        ... )
        >>> report = ShapesReport(rows, ({"s": 3},), 1e6, 1e9)
        >>> report.speed_up(rows[1]), report.speed_up(rows[1], is_cold=False)
        (3.0, 0.8)
    """

    rows: tuple[ContestRow, ...]
    sizes: tuple[Mapping[str, int], ...]
    flops: float
    peak_flops: float

    @property
    def are_equal(self) -> bool:
        """Whether all results equal those of `jax.jit`, up to rounding."""
        return not any(row.differences for row in self.rows)

    def speed_up(self, row: ContestRow, *, is_cold: bool = True) -> float:
        """Compare a contestant with `jax.jit`.

        Args:
            row: The contestant.
            is_cold: Whether compiling counts.

        Returns:
            How many times as fast it is.
        """
        exact = self.rows[0]
        if is_cold:
            return exact.cold_seconds / row.cold_seconds
        return (exact.warm_seconds or 0.0) / (row.warm_seconds or 1.0)

    def utilisation(self, row: ContestRow) -> float:
        """Compute the share of the device's peak that a contestant reaches.

        Args:
            row: The contestant.

        Returns:
            FLOP/s of the unpadded function, divided by the FLOP/s of the matrix product.
        """
        return self.flops / (row.warm_seconds or math.inf) / self.peak_flops

    def claims(self) -> tuple[ClaimRow, ...]:
        """Compare the usual claims with the strategy that comes nearest, if there is any."""
        exact, *others = self.rows
        if not others:
            return ()
        found: list[ClaimRow] = []
        for is_cold, when in ((True, "compiles included"), (False, "once compiled")):
            best = max(others, key=lambda row: self.speed_up(row, is_cold=is_cold))
            ratio = self.speed_up(best, is_cold=is_cold)
            found.append(ClaimRow(f"3x as fast, {when}", best.name, ratio, ratio >= 3))
        least = min(others, key=lambda row: row.run_bytes)
        more = least.run_bytes / exact.run_bytes - 1 if exact.run_bytes else 0.0
        found.append(ClaimRow("memory of a run: below 10 % more", least.name, more, more < 0.1))
        return tuple(found)

    def __str__(self) -> str:
        grid = [_HEADS, *(self._cells(row) for row in self.rows)]
        promised = [["usual claim", "nearest", "measured", "holds"], *map(_promise, self.claims())]
        sources = [f"{row.name}: {row.source}" for row in self.rows[1:]]
        wrong = [f"{row.name} differs at {text}" for row in self.rows for text in row.differences]
        verdict = "all answers equal" if self.are_equal else f"{len(wrong)} answers differ"
        lines = [
            f"{len(self.sizes)} shapes, {self.flops:.3g} FLOPs without padding; a matrix product "
            f"runs {self.peak_flops:.3g} a second",
            *grid_lines(grid, ("",)),
            *grid_lines(promised, ("usual claim", "nearest", "holds")),
            *sources,
            *wrong,
            verdict,
        ]
        return "\n".join(lines)

    def _cells(self, row: ContestRow) -> list[str]:
        return [
            row.name,
            str(row.graphs),
            f"{row.compile_seconds or 0:.2f} s",
            f"{self.speed_up(row):.2f}",
            f"{self.speed_up(row, is_cold=False):.2f}",
            f"{row.waste:.1%}",
            f"{self.utilisation(row):.1%}",
            bytes_text(row.run_bytes),
            bytes_text(row.code_bytes) if row.code_bytes else "-",
            bytes_text(max(row.process_bytes, 0)),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        rows = [
            {
                **dataclasses.asdict(row),
                "compile_seconds": row.compile_seconds,
                "utilisation": self.utilisation(row),
                "speed_up_cold": self.speed_up(row),
                "speed_up_warm": self.speed_up(row, is_cold=False),
            }
            for row in self.rows
        ]
        return {
            "are_equal": self.are_equal,
            "flops": self.flops,
            "peak_flops": self.peak_flops,
            "sizes": [dict(at) for at in self.sizes],
            "rows": rows,
            "claims": [dataclasses.asdict(claim) for claim in self.claims()],
        }


_HEADS = ("", *"graphs,compiling,cold x,warm x,padding,of peak,a run,code,process".split(","))


def _promise(claim: ClaimRow) -> list[str]:
    is_share = "%" in claim.claim
    figure = f"{claim.measured:+.1%}" if is_share else f"{claim.measured:.2f}x"
    return [claim.claim, claim.name, figure, "yes" if claim.holds else "no"]
