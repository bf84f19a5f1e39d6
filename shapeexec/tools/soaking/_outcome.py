"""What a soak is to do, and what it has found.

`_run` does it, `_report` shows it.
"""

import collections
import dataclasses
import threading
from collections.abc import Mapping, Sequence

from shapeexec._errors import ConfigError
from shapeexec.tools._given import check_count, check_time
from shapeexec.tools.soaking._faults import RATES, Faults
from shapeexec.tools.soaking._models import MODELS, Model
from shapeexec.tools.soaking._services import WAYS, Service, Way
from shapeexec.tools.soaking._watch import Stall, Watch

PHASES = ("warm-up", "churn", "steady")
"""Each takes a third. In the last one threads repeat calls of theirs that were right, and none of
services that evict, clear or give up buckets: all graphs are there."""

_MOST_KEPT = 50
"""Of wrong answers and wrong faults the first are kept, and all are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soak:
    """What to do.

    Attributes:
        minutes: How long.
        threads: How many threads call.
        seed: Of all draws.
        shapes: How many shapes there are.
        stall: Seconds after which a call that has not ended is a stall.
        models, ways: What is served, and how.
        rates: See `Faults`.

    Raises:
        ConfigError: A number is none that works.
    """

    minutes: float
    threads: int
    seed: int = 0
    shapes: int = 500
    stall: float = 120.0
    models: Sequence[Model] = MODELS
    ways: Sequence[Way] = WAYS
    rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: RATES)

    def __post_init__(self) -> None:
        check_time("minutes", self.minutes, such_as=10)
        check_time("stall", self.stall, such_as=120)
        check_count("threads", self.threads, least=1, such_as=32)
        check_count("seed", self.seed, least=0, such_as=0)
        for option, names in (("models", self.models), ("ways", self.ways)):
            if not names:
                raise ConfigError(
                    f"{option}={names!r}: nothing would run.",
                    option=option,
                    fix=f"one or more, or leave {option} out",
                )
        # Threads draw a model first, and then one of its shapes.
        check_count("shapes", self.shapes, least=len(self.models), such_as=500)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A call that went wrong.

    Attributes:
        call: Which: its model, sizes, options, seed, thread and number.
        told: What was expected and got, or the traceback.
    """

    call: str
    told: str


@dataclasses.dataclass
class Findings:
    """All that went wrong.

    Attributes:
        wrong: Wrong answers: the first ones.
        faults: Errors that nobody promised: the first ones.
        counts: How many there were of both.
    """

    wrong: list[Finding] = dataclasses.field(default_factory=list[Finding])
    faults: list[Finding] = dataclasses.field(default_factory=list[Finding])
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter[str])
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def add(self, kind: str, draw: object, *, told: str) -> None:
        """Keep a finding, in any thread: `"wrong"` or `"faults"`."""
        kept: list[Finding] = getattr(self, kind)
        with self._lock:
            self.counts[kind] += 1
            if len(kept) < _MOST_KEPT:
                kept.append(Finding(str(draw), told))


@dataclasses.dataclass(frozen=True)
class Plain:
    """By how much 1,000 programs of plain JAX grow the process, in MiB.

    Attributes:
        kept: While they are held.
        dropped: When they have been dropped.
    """

    kept: float
    dropped: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a soak has found.

    Attributes:
        soak: What was to be done.
        seconds: How long it took.
        watch: Counts and samples.
        faults: What was injected.
        findings: What went wrong.
        stalls: The calls that stalled it.
        services: With their statistics.
        warned: The library's warnings, by their beginnings.
        books: Where counts of one thing differ.
        plain: What plain JAX takes; None: nobody measured it.
        is_interrupted: Whether somebody ended it early.
    """

    soak: Soak
    seconds: float
    watch: Watch
    faults: Faults
    findings: Findings
    stalls: Sequence[Stall]
    services: Sequence[Service]
    warned: Mapping[str, int]
    books: Sequence[str]
    plain: Plain | None
    is_interrupted: bool

    @property
    def status(self) -> int:
        """0: all is right. 1: something is wrong. 2: a thread is stuck."""
        return 2 if self.stalls else int(bool(self.findings.counts or self.books))
