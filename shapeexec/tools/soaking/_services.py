"""Serves models under sets of options: one `Exec` for each model and each way.

`_traffic` decides which calls are made.
"""

import collections
import dataclasses
import importlib.util
import itertools
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import shapeexec as sx
from shapeexec.execution import Exec
from shapeexec.execution._function import runner_of
from shapeexec.execution._stats import Counters
from shapeexec.tools.soaking._compare import Shape
from shapeexec.tools.soaking._faults import Faults
from shapeexec.tools.soaking._models import BATCH, LENGTH, MODELS, Model

Operations = Mapping[str, int]
"""How often each operation of `_traffic` is drawn, as weights."""

_USUAL: Operations = {
    "call": 12,
    "acall": 2,
    "padded": 4,
    "handles": 4,
    "map": 4,
    "session": 4,
    "preview": 1,
    "restart": 3,
}
_REFUSING: Operations = {"call": 12, "acall": 2, "handles": 4, "map": 2, "preview": 1}
_BUCKETS = {"b": sx.Linear(8), "s": sx.Pow2(minimum=16)}  # three graphs for a model
_PINNED = {"b": 8, "s": 16}
_WARMED = {"b": BATCH, "s": LENGTH // 2}
"""The largest sizes of a warm-up; larger ones are in other buckets."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """A set of options.

    Attributes:
        name: Unique.
        options: The options of `Exec`.
        operations: The operations that are drawn, with weights.
        churns: Whether it makes graphs again and again, and so rests while memory must not grow.
        is_warmed: Whether workers make the graphs of the smaller sizes first.
        refuses: Whether it refuses other sizes after the warm-up, and all sizes before it.
        is_frozen: Whether it is a variant that is frozen after its warm-up.
        donates: Whether a decode loop donates its cache.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    operations: Operations = dataclasses.field(default_factory=lambda: _USUAL)
    churns: bool = False
    is_warmed: bool = False
    refuses: bool = False
    is_frozen: bool = False
    donates: bool = False


_TUNED = {"xla_llvm_disable_expensive_passes": True}
"""An option of XLA that every platform accepts."""

WAYS = (
    Way(name="plain"),
    Way(name="quick", options={"compiling": sx.Compiling(first="quick", options=_TUNED)}),
    Way(name="larger", options={"missing": "larger"}, is_warmed=True),
    Way(
        name="error",
        options={"missing": "error"},
        operations=_REFUSING,
        is_warmed=True,
        refuses=True,
    ),
    Way(name="frozen", operations=_REFUSING, is_warmed=True, refuses=True, is_frozen=True),
    Way(name="host", options={"returns": "host", "check": "worker"}),
    Way(name="handles", options={"returns": "padded", "check": "sizes"}, donates=True),
    Way(
        name="exact memory",
        options={"on_memory": "exact"},
        operations={**_USUAL, "clear": 1},
        churns=True,
    ),
    Way(name="few graphs", options={"limits": sx.CacheLimits(graphs=2)}, churns=True),
    Way(
        name="few bytes",
        options={"limits": sx.CacheLimits(graphs=3, device_bytes=10_000), "missing": "larger"},
        churns=True,
    ),
    Way(
        name="cleared",
        options={"compiling": sx.Compiling(first="quick")},
        operations={**_USUAL, "clear": 1, "warmup": 1},
        churns=True,
    ),
)


@dataclasses.dataclass(eq=False)
class Service:
    """An `Exec` under traffic.

    Attributes:
        model, way: The function that it serves, and the set of options.
        options: The options of its `Exec`.
        faults: The failures to inject.
        directory: The directory for saved graphs.
        run: The `Exec`; `restart` puts another one in its place.
        done: The number of calls that returned, without maps, and of events about calls.
        is_warm: Set when its warm-up is done.
        registry: A registry of Prometheus' client; None: the client is not installed.
    """

    model: Model
    way: Way
    options: Mapping[str, Any]
    faults: Faults
    directory: Path
    run: Exec = dataclasses.field(init=False)
    done: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter[str])
    is_warm: threading.Event = dataclasses.field(default_factory=threading.Event)
    registry: Any = None
    _counters: list[Counters] = dataclasses.field(default_factory=list[Counters])
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        run = Exec(self.model.fn, **self.options)
        self._serve(run.variant() if self.way.is_frozen else run)

    @property
    def name(self) -> str:
        """The names of the model and of the way."""
        return f"{self.model.name}/{self.way.name}"

    @property
    def operations(self) -> Operations:
        """The operations that suit the model."""
        unfit = set(() if self.model.is_example else ("map",))
        unfit |= set(() if self.model.donates else ("session",))
        return {name: weight for name, weight in self.way.operations.items() if name not in unfit}

    @property
    def is_open(self) -> bool:
        """Whether it takes calls; calls before a freeze would make graphs that it must refuse."""
        return self.is_warm.is_set() or not self.way.is_frozen

    def count(self, what: str) -> None:
        """Count one more, in any thread."""
        with self._lock:
            self.done[what] += 1

    def refuses(self, shape: Shape) -> bool:
        """Whether a call of this shape must raise a `FrozenError`; before the warm-up it may."""
        return self.way.refuses and any(size > _WARMED[symbol] for symbol, size in shape.sizes)

    def total(self, what: str) -> int:
        """A figure of `Stats`, summed over all its `Exec`s.

        Evictions and kept graphs are counted for the present `Exec` only.
        """
        with self._lock:
            now, past = self.run, self._counters[:-1]
        stats = [one.snapshot(graphs=0, device_bytes=0, evictions=0, remade=0) for one in past]
        return sum(getattr(one, what) for one in [*stats, now.stats])

    def restart(self, *, is_late: bool) -> None:
        """Save the graphs, load them, and go on with the loaded `Exec`, as after a new start.

        Threads that restart a service at the same time save into one directory.

        Args:
            is_late: Whether files are damaged after the load, which reads programs only later.

        Raises:
            ConfigError: A failure that was injected; the service stays as it was.
        """
        fault = self.faults.draw("files")
        own = fault.mark if fault is not None and fault.kind.becomes is not None else "graphs"
        directory = self.directory / own  # an error that is raised contains its name
        self.run.save(directory)
        if fault is not None and not is_late:
            fault.damage(directory)
        run = sx.load(directory, self.model.fn, trusted=True, **self.options)
        if fault is not None and is_late:
            fault.damage(directory)
        self._serve(run)

    def _serve(self, run: Exec) -> None:
        """Inject faults into an `Exec`, count its calls, and call it from now on."""
        runner_of(run).store.making.compile_with(self.faults.compile)
        run.on_event(lambda event: self.count("events") if event.kind == "call" else None)
        run.on_event(self.faults.called_back)
        registry = _registry(run)
        with self._lock:
            self._counters.append(runner_of(run).store.counters)
            self.run, self.registry = run, registry

    def warm_up(self, arguments: tuple[Any, ...]) -> None:
        """Make the graphs of the smaller sizes by workers, then freeze if its way is frozen.

        Raises:
            BaseException: A failure that was injected.
        """
        sizes = {symbol: range(1, _WARMED[symbol] + 1) for symbol in self.model.symbols}
        self.run.warmup(*arguments, workers=2, sizes=sizes)
        if self.way.is_frozen:
            self.run.freeze()
        self.is_warm.set()


def services(
    faults: Faults,
    directory: Path,
    *,
    models: Iterable[Model] = MODELS,
    ways: Iterable[Way] = WAYS,
) -> list[Service]:
    """A service for each model and way, in which faults are injected.

    Args:
        faults: The failures to inject.
        directory: The directory in which each service has its own for saved graphs.
        models: The names of the functions to serve.
        ways: The names of the sets of options.
    """
    pairs = itertools.product(models, ways)
    return [
        Service(model, way, _options(model, way), faults, directory / str(number))
        for number, (model, way) in enumerate(pairs)
    ]


def _options(model: Model, way: Way) -> dict[str, Any]:
    buckets = {symbol: _BUCKETS[symbol] for symbol in model.symbols}
    options: dict[str, Any] = {"in_shapes": model.specs, "buckets": buckets, **way.options}
    if way.name == "few bytes":
        pin = {symbol: _PINNED[symbol] for symbol in model.symbols}
        options["limits"] = dataclasses.replace(options["limits"], pin=[pin])
    if way.donates and model.donates:
        options["donate_argnums"] = model.donates
    return options


def _registry(run: Exec) -> Any:
    """The metrics of an `Exec`; None without Prometheus' client, which the report mentions."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    import prometheus_client  # noqa: PLC0415 - it may not be installed

    registry = prometheus_client.CollectorRegistry()
    sx.prometheus_metrics(run, registry=registry)
    return registry
