"""The results of a run, as text for people and as JSON for programs.

It measures nothing, and draws nothing: `_run` and `_plot` do.
"""

# What contestants measured may be of any type.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._ours import DEFAULT
from shapeexec.tools.benchmark.attention._problems import PASSES, TILE, Pass
from shapeexec.tools.benchmark.attention._run import Row


@dataclasses.dataclass(frozen=True)
class AttentionReport:
    """Attention beside its rivals; `print` it.

    Attributes:
        machine: The device, the processor and the versions.
        seconds: The duration of the whole run.
        rows: For each contestant, shape, mask and pass: its time, rate and memory, or the reason
            why they are missing.
        findings: The results of the studies: two figures each.
        absent: The contestants that cannot run here, each with the reason.

    Example:
        >>> AttentionReport({"device": "cpu"}, 1.5, (), (), {"torch": "not installed"}).has_failed
        False
    """

    machine: Mapping[str, Any]
    seconds: float
    rows: Sequence[Row]
    findings: Sequence[Finding]
    absent: Mapping[str, str]

    @property
    def has_failed(self) -> bool:
        """Whether a result is wrong, or our own function failed."""
        return any(row.is_failure for row in self.rows)

    def __str__(self) -> str:
        parts = [
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            "TFLOP/s of unmasked pairs, forward / forward with backward:",
            _table(*_speeds(self.rows)),
            _meaning_of_tiles(self.rows),
            _clocks(self.rows),
            *_compiling(self.rows),
            *_studies(self.findings),
            *_reasons(self.rows),
            *(f"{name}: {why}" for name, why in self.absent.items()),
        ]
        return "\n\n".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them."""
        findings = [{**dataclasses.asdict(one), "ratio": one.ratio} for one in self.findings]
        return {
            "benchmark": "attention",
            "machine": dict(self.machine),
            "seconds": round(self.seconds, 1),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "findings": findings,
            "absent": dict(self.absent),
        }


def contestants(rows: Iterable[Row]) -> list[str]:
    """The contestants with a figure: ours first, then the rivals in the order of measurement."""
    names = {row.contestant: row.is_ours for row in rows if row.milliseconds}
    return sorted(names, key=lambda name: not names[name])


def speed_up(
    rows: Sequence[Row], shape: str, *, mask: str, passes: Pass
) -> tuple[float, str] | None:
    """Our speed divided by the best rival's, and that rival's name; None if one is missing.

    Ours is the default implementation; if it was not measured, the best of the named ones.
    """
    here = [
        row
        for row in rows
        if (row.shape, row.mask, row.passes) == (shape, mask, passes) and row.milliseconds
    ]
    ours = [row for row in here if row.is_ours]
    ours = [row for row in ours if row.contestant == DEFAULT] or ours
    rivals = [row for row in here if not row.is_ours]
    if not ours or not rivals:
        return None
    best, mine = (min(each, key=lambda row: row.milliseconds or 0) for each in (rivals, ours))
    return (best.milliseconds or 0) / (mine.milliseconds or 1), best.contestant


def _speeds(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    names = contestants(rows)
    by_place = {(row.shape, row.mask, row.passes, row.contestant): row for row in rows}
    places = {
        (row.shape, row.mask): (row.density, row.tile_density) for row in rows if row.milliseconds
    }
    lines = []
    for (shape, mask), densities in places.items():
        line = [shape, mask, *(f"{density:.1%}" for density in densities)]
        for name in names:
            both = [by_place.get((shape, mask, passes, name)) for passes in PASSES]
            figures = [_figure(row.teraflops if row else None) for row in both]
            line.append(_of_both(figures))
        line.append(_against_the_best(rows, shape, mask=mask))
        lines.append(line)
    return ["shape", "mask", "unmasked", "tiles", *names, "ours / best rival"], lines


def _of_both(passes: list[str]) -> str:
    return "" if passes == ["-", "-"] else " / ".join(passes)


def _meaning_of_tiles(rows: Sequence[Row]) -> str:
    """The explanation of the share of tiles, if it differs from the share of pairs."""
    measured = [row for row in rows if row.milliseconds]
    if all(row.density == row.tile_density for row in measured):
        return ""
    about = (
        f"tiles: the share of {TILE} x {TILE} tiles that hold an unmasked pair "
        "(BlockMask.density); ours computes all pairs of these tiles."
    )
    names = dict.fromkeys(row.mask for row in measured if row.tile_density == 1 and row.density < 1)
    if not names:
        return about
    return (
        f"{about}\nAt 100.0% ({', '.join(names)}) no tile can be skipped: it costs what a full "
        "mask costs, and reading the mask."
    )


def _compiling(rows: Sequence[Row]) -> list[str]:
    """Seconds to lower and to compile each program."""
    names = list(dict.fromkeys(row.contestant for row in rows if row.compile_seconds is not None))
    if not names:
        return []
    by_place = {(row.shape, row.mask, row.passes, row.contestant): row for row in rows}
    lines = [
        [shape, mask]
        + [
            _of_both([_stages(by_place.get((shape, mask, passes, name))) for passes in PASSES])
            for name in names
        ]
        for shape, mask in dict.fromkeys((row.shape, row.mask) for row in rows)
    ]
    title = "Seconds to trace and lower + to compile, while others compile too:"
    return [title, _table(["shape", "mask", *names], lines)]


def _stages(row: Row | None) -> str:
    if row is None or row.compile_seconds is None:
        return "-"
    if row.lower_seconds is None:
        return f"{row.compile_seconds:.2f}"
    return f"{row.lower_seconds:.2f}+{row.compile_seconds - row.lower_seconds:.2f}"


def _clocks(rows: Sequence[Row]) -> str:
    """The clock of the times; if there are two, the contestants timed by the host's clock."""
    clocks = {row.clock for row in rows if row.clock}
    if len(clocks) < 2:
        return "".join(f"Times are the {clock}'s." for clock in clocks)
    worse = Counter(row.contestant for row in rows if row.clock == "host")
    names = ", ".join(f"{name} ({count})" for name, count in worse.items())
    return f"Times are the device's, but the host's of {names}: `clock` in the JSON says which."


def _against_the_best(rows: Sequence[Row], shape: str, *, mask: str) -> str:
    found = [speed_up(rows, shape, mask=mask, passes=passes) for passes in PASSES]
    if found[0] and found[1] and found[0][1] == found[1][1]:
        return f"{found[0][0]:.2f} / {found[1][0]:.2f} ({found[0][1]})"
    return " / ".join("-" if one is None else f"{one[0]:.2f} ({one[1]})" for one in found)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _studies(findings: Sequence[Finding]) -> list[str]:
    lines = [
        [
            one.study,
            one.case,
            _amount(one.value, one.unit),
            _amount(one.compared, one.unit),
            one.meaning if one.ratio is None else f"{one.ratio:.3g} {one.meaning}".rstrip(),
        ]
        for one in findings
    ]
    return [_table(["study", "case", "value", "compared with", "ratio"], lines)] if lines else []


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}".rstrip() if value >= 1000 else f"{value:.4g} {unit}".rstrip()


def _reasons(rows: Sequence[Row]) -> list[str]:
    """The cells that were not measured: one line for each contestant and reason."""
    counted = Counter((row.contestant, row.reason) for row in rows if row.reason)
    lines: list[str] = []
    for (name, reason), count in counted.items():
        cells = [
            f"{row.shape}/{row.mask}/{row.passes}"
            for row in rows
            if (row.contestant, row.reason) == (name, reason)
        ]
        shown = ", ".join(cells[:4]) + (", ..." if count > 4 else "")
        lines.append(f"{name}, {count} not measured: {reason} ({shown})")
    return lines


def _table(head: list[str], lines: list[list[str]]) -> str:
    if not lines:
        return "nothing"
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in (head, rule, *lines)
    )
