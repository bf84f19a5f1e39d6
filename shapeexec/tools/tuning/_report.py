"""What tuning found, as text for people and as JSON for programs. It measures nothing."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class TuningRow:
    """The calls of one kind, and their fastest tiling.

    Attributes:
        cells: What was measured: shape/mask/pass each, as the benchmark of attention has them.
        place: The calls that a tiling is kept for: back end, pass, kind of mask, head sizes, dtype,
            and T and S, each up to a power of 2.
        own: The back end's own tiling, such as `128x128`.
        best: The fastest one that was no slower in any cell.
        milliseconds: Of own and of best, the sum over the cells.
        gain: The mean over the cells of the time of own by that of best; None: not measured.
        pays: Whether it gains more than 3 percent, and so is kept where anything is.
        tried: How many tilings were measured.
        reason: Why there is no gain.
        is_failure: Whether a result was wrong, or a program failed.

    Example:
        >>> TuningRow(("4k_cpu/causal/both",), reason="out of time").name
        '4k_cpu/causal/both'
    """

    cells: tuple[str, ...]
    place: Mapping[str, Any] | None = None
    own: str | None = None
    best: str | None = None
    milliseconds: tuple[float, float] | None = None
    gain: float | None = None
    pays: bool = False
    tried: int = 0
    reason: str | None = None
    is_failure: bool = False

    @property
    def name(self) -> str:
        """The calls, in a line."""
        if self.place is None:
            return ", ".join(self.cells)
        size = "x".join(str(self.place[key]) for key in ("most_queries", "most_keys"))
        passes = "backward" if self.place["is_backward"] else "forward"
        words = (self.place["backend"], passes, self.place["mask"], f"up to {size}")
        return f"{' '.join(words)}, heads of {self.place['head_size']}, {self.place['dtype']}"


@dataclasses.dataclass(frozen=True)
class TuningReport:
    """What tuning found; `print` it.

    Attributes:
        machine: Where: device, processor and versions.
        seconds: How long all of it took.
        rows: The calls of each kind, with their fastest tiling or the reason why there is none.
        file: Where what gains is kept; None: nowhere.

    Example:
        >>> print(TuningReport({"device": "cpu"}, 1.5, (), None))
        device cpu
        nothing was measured
        kept: nothing
    """

    machine: Mapping[str, Any]
    seconds: float
    rows: Sequence[TuningRow]
    file: str | None

    @property
    def has_failed(self) -> bool:
        """Whether a result was wrong, or a program failed."""
        return any(row.is_failure for row in self.rows)

    def __str__(self) -> str:
        kept = sum(row.pays for row in self.rows) if self.file else 0
        where = f" in {self.file}" if kept else ""
        return "\n".join(
            [
                ", ".join(f"{name} {value}" for name, value in self.machine.items()),
                *(map(told, self.rows) if self.rows else ["nothing was measured"]),
                f"kept: {kept or 'nothing'}{where}",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        return {
            "tune": "attention",
            "machine": dict(self.machine),
            "seconds": round(self.seconds, 1),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "file": self.file,
        }


def told(row: TuningRow) -> str:
    """A row in a line."""
    if row.gain is None or row.milliseconds is None:
        return f"{row.name}: {row.reason}"
    if row.own == row.best:
        return f"{row.name}: {row.own} is the fastest of {row.tried}"
    own, best = (f"{milliseconds:.3g} ms" for milliseconds in row.milliseconds)
    end = "worth keeping" if row.pays else "less than 3 %"
    return f"{row.name}: {row.own} {own}, {row.best} {best}, {row.gain:.2f}x, {end}"
