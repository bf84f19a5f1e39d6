"""The settings of a soak, and its outcome.

`_run` runs a soak, `_report` shows its outcome.
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
"""The phases, a third of the time each. In the last one, threads repeat earlier calls that were
right, except calls of services that evict graphs, clear or give up buckets: no graph is made."""

_MOST_KEPT = 50
"""The number of wrong answers, and of wrong faults, that are kept; all are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soak:
    """The settings of a soak.

    Attributes:
        minutes: The duration.
        threads: The number of threads that call.
        seed: The seed of all random draws.
        shapes: The number of shapes.
        stall: Seconds after which a call that has not ended is a stall.
        models, ways: The functions that are served, and the sets of options.
        rates: See `Faults`.

    Raises:
        ConfigError: A number is out of range.
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
        # Each model needs a shape: threads draw a model first, and then one of its shapes.
        check_count("shapes", self.shapes, least=len(self.models), such_as=500)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A call that went wrong.

    Attributes:
        call: The call: its model, sizes, options, seed, thread and number.
        told: The expected and the actual result, or the traceback.
    """

    call: str
    told: str


@dataclasses.dataclass
class Findings:
    """All calls that went wrong.

    Attributes:
        wrong: The first wrong answers.
        faults: The first undocumented errors.
        counts: The numbers of both.
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
    """The growth of the process by 1,000 programs of plain JAX, in MiB.

    Attributes:
        kept: The growth while the programs are held.
        dropped: The growth after they have been dropped.
    """

    kept: float
    dropped: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a soak.

    Attributes:
        soak: The settings.
        seconds: The duration.
        watch: Counts and samples.
        faults: The injected failures.
        findings: The calls that went wrong.
        stalls: The calls that stalled it.
        services: The services, with their statistics.
        warned: The number of the library's warnings, by the beginnings of their texts.
        books: Descriptions of counts that contradict each other.
        plain: The memory of plain JAX; None: it was not measured.
        is_interrupted: Whether Ctrl-C ended it early.
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
