"""The outcome of a soak, as text for people and as JSON for programs.

`_outcome` decides whether it is a good one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from shapeexec.tools.soaking._outcome import PHASES, Finding, Outcome
from shapeexec.tools.soaking._watch import Sample, growth

_MOST_SHOWN = 10
"""The number of findings of one kind that are shown."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """The counts of one phase, and the growth of memory in it.

    Attributes:
        name: See `PHASES`.
        calls, compiles: The numbers of calls and of compilations in it.
        mib: Resident memory at its end, in MiB.
        per_calls: MiB for each 10,000 calls, by the line through its samples; None: unknown.
        per_compiles: MiB for each 1,000 compilations; None: there were too few.
    """

    name: str
    calls: int
    compiles: int
    mib: float
    per_calls: float | None
    per_compiles: float | None


@dataclasses.dataclass(frozen=True)
class SoakReport:
    """The report of a soak; `print` it.

    Attributes:
        machine: The device, the processor and the versions.
        outcome: The counts, the samples, and all calls that went wrong.

    Example:
        >>> report = soak(minutes=1, threads=8, ways=["plain"])  # doctest: +SKIP
        >>> [phase.name for phase in report.phases]  # doctest: +SKIP
        ['warm-up', 'churn', 'steady']
    """

    machine: Mapping[str, Any]
    outcome: Outcome

    @property
    def status(self) -> int:
        """0: all is right. 1: something is wrong. 2: a thread is stuck."""
        return self.outcome.status

    @property
    def phases(self) -> list[Phase]:
        """The phases that were started."""
        samples = self.outcome.watch.samples
        found = ([one for one in samples if one.phase == name] for name in PHASES)
        return [_phase(own) for own in found if own]

    @property
    def is_scraped(self) -> bool:
        """Whether metrics were scraped; without Prometheus' client they are not."""
        return all(service.registry is not None for service in self.outcome.services)

    def __str__(self) -> str:
        outcome = self.outcome
        parts = [  # what went wrong comes last, where a terminal shows it
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            self._calls(),
            self._faults(),
            self._memory(),
            "" if self.is_scraped else "no metrics were scraped: pip install prometheus-client",
            *(f"warned {count} times: {text} ..." for text, count in outcome.warned.items()),
            *_shown("WRONG ANSWER", outcome.findings.wrong),
            *_shown("WRONG FAULT", outcome.findings.faults),
            *(f"WRONG COUNT: {text}" for text in outcome.books),
            *(f"STALL: {one.seconds:.0f} s and not done: {one.call}" for one in outcome.stalls),
            self._verdict(),
        ]
        return "\n\n".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON has them: seconds, and MiB of resident memory."""
        outcome = self.outcome
        soak = outcome.soak
        return {
            "tool": "soak",
            "machine": dict(self.machine),
            "seed": int(soak.seed),
            "threads": int(soak.threads),
            "shapes": int(soak.shapes),
            "seconds": round(outcome.seconds, 1),
            "status": self.status,
            "is_interrupted": outcome.is_interrupted,
            "calls": outcome.watch.counts,
            "graphs": self._graphs(),
            "is_scraped": self.is_scraped,
            "faults": {
                name: {"injected": count, "came_out": outcome.faults.came_out[name]}
                for name, count in outcome.faults.injected.items()
            },
            "wrong_answers": _told(outcome.findings.wrong, outcome.findings.counts["wrong"]),
            "wrong_faults": _told(outcome.findings.faults, outcome.findings.counts["faults"]),
            "books": list(outcome.books),
            "warnings": dict(outcome.warned),
            "longest": dataclasses.asdict(outcome.watch.longest()),
            "stalls": [dataclasses.asdict(one) for one in outcome.stalls],
            "phases": [dataclasses.asdict(one) for one in self.phases],
            "plain_mib_of_1000_programs": outcome.plain and dataclasses.asdict(outcome.plain),
            "samples": [dataclasses.asdict(one) for one in outcome.watch.samples],
        }

    def _calls(self) -> str:
        outcome, longest = self.outcome, self.outcome.watch.longest()
        counts = outcome.watch.counts
        each = ", ".join(f"{name} {counts[name]:,}" for name in sorted(counts))
        graphs = ", ".join(f"{name} {count:,}" for name, count in self._graphs().items())
        return (
            f"{sum(counts.values()):,} calls in {outcome.seconds:,.0f} s by "
            f"{outcome.soak.threads} threads: {each}\n"
            f"graphs: {graphs}\n"
            f"the longest call took {longest.seconds:.1f} s: {longest.call}"
        )

    def _graphs(self) -> dict[str, int]:
        served = self.outcome.services
        names = ("compiles", "loads", "graphs", "evictions", "swaps", "larger", "hits", "misses")
        return {name: sum(service.total(name) for service in served) for name in names}

    def _faults(self) -> str:
        faults = self.outcome.faults
        lines = [["fault", "injected", "came out", "absorbed"]]
        for name, count in sorted(faults.injected.items()):
            out = faults.came_out[name]
            # Each call that waits for a failed compilation raises its error.
            lines.append([name, f"{count:,}", f"{out:,}", f"{max(0, count - out):,}"])
        return _table(lines) if len(lines) > 1 else "no faults were injected"

    def _memory(self) -> str:
        head = ["phase", "calls", "compilations", "MiB", "MiB/10,000 calls", "MiB/1,000 graphs"]
        lines = [head]
        for phase in self.phases:
            figures = [f"{phase.calls:,}", f"{phase.compiles:,}", f"{phase.mib:,.0f}"]
            slopes = [_figure(phase.per_calls), _figure(phase.per_compiles)]
            lines.append([phase.name, *figures, *slopes])
        plain = self.outcome.plain
        if plain is None:
            return _table(lines)
        figures = f"{plain.kept:+.0f} MiB while it keeps them, {plain.dropped:+.0f} MiB after that"
        return f"{_table(lines)}\nplain JAX for 1,000 programs: {figures}"

    def _verdict(self) -> str:
        outcome = self.outcome
        counts = outcome.findings.counts
        early = "interrupted; " if outcome.is_interrupted else ""
        return (
            f"{early}{counts['wrong']:,} wrong answers, {counts['faults']:,} wrong faults, "
            f"{len(outcome.books)} wrong counts, {len(outcome.stalls)} stalls"
        )


def _phase(samples: Sequence[Sample]) -> Phase:
    first, last = samples[0], samples[-1]
    compiles = last.compiles - first.compiles
    per_calls = growth(samples, "calls")
    per_compiles = growth(samples, "compiles") if compiles >= 100 else None
    return Phase(
        name=first.phase,
        calls=last.calls - first.calls,
        compiles=compiles,
        mib=last.mib,
        per_calls=None if per_calls is None else 10_000 * per_calls,
        per_compiles=None if per_compiles is None else 1_000 * per_compiles,
    )


def _told(findings: Sequence[Finding], count: int) -> dict[str, Any]:
    return {"count": count, "first": [dataclasses.asdict(one) for one in findings]}


def _shown(title: str, findings: Sequence[Finding]) -> list[str]:
    return [f"{title}: {one.call}\n    {one.told}" for one in findings[:_MOST_SHOWN]]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
