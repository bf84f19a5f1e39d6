"""An Exec's counters and latencies for Prometheus, through Prometheus' client library.

`Exec.on_event` and `Exec.stats` are the sources; the client library has servers and push gateways.
"""

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

from shapeexec._errors import ConfigError
from shapeexec.execution import Event, Exec, Stats


@dataclasses.dataclass(frozen=True)
class _Metric:
    """One scraped metric.

    Attributes:
        name: Without `shapeexec_`, and without the `_total` of a counter.
        kind: The client's word for its kind, such as `counter`.
        help: Its help line.
        label: The label beside `function`, or "".
        read: Returns its values, by the value of `label`.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    label: str
    read: Callable[[Stats], dict[str, float]]


METRICS: tuple[_Metric, ...] = (
    _Metric(
        "calls",
        "counter",
        "Calls: their graph was there (hit), was not (miss), or they ran in a trace (plain).",
        "result",
        lambda stats: {"hit": stats.hits, "miss": stats.misses, "plain": stats.plain_calls},
    ),
    _Metric(
        "events",
        "counter",
        "Calls in larger graphs, compilations, graphs from files, changes, evictions, exact sizes.",
        "event",
        lambda stats: {
            "larger": stats.larger,
            "compiled": stats.compiles,
            "loaded": stats.loads,
            "exported": stats.exports,
            "swapped": stats.swaps,
            "ladder": stats.ladders,
            "evicted": stats.evictions,
            "difference": stats.differences,
        },
    ),
    _Metric(
        "graph_seconds",
        "counter",
        "Time that graphs took to make, in seconds.",
        "part",
        lambda stats: {
            "trace": stats.trace_seconds,
            "check": stats.check_seconds,
            "mask": stats.mask_seconds,
            "lower": stats.lower_seconds,
            "compile": stats.compile_seconds,
        },
    ),
    _Metric(
        "elements",
        "counter",
        "Elements of ragged arguments: data (valid), and what ran for them (bucket).",
        "of",
        lambda stats: {"valid": stats.valid_elements, "bucket": stats.bucket_elements},
    ),
    _Metric(
        "exact_calls",
        "counter",
        "Calls in which a symbol ran at its exact size.",
        "symbol",
        lambda stats: dict(stats.exact),
    ),
    _Metric("graphs", "gauge", "Graphs that are kept.", "", lambda stats: {"": stats.graphs}),
    _Metric(
        "device_bytes",
        "gauge",
        "Temporary memory and code of these graphs, in bytes.",
        "",
        lambda stats: {"": stats.device_bytes},
    ),
)


class _Collector:
    """The metrics of one registry: each Exec's stats, read at each scrape, and the latencies."""

    def __init__(self, client: Any, core: Any, *, registry: Any) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._runs: dict[str, weakref.ref[Exec]] = {}
        self.latency: Any = client.Histogram(
            "shapeexec_call_seconds",
            "Time from a call to its result, in seconds; a device may still work on it.",
            ["function"],
            registry=registry,
        )
        registry.register(self)

    def add(self, name: str, run: Exec) -> None:
        """Scrape an Exec under a name.

        Raises:
            ConfigError: Another Exec has this name.
        """
        with self._lock:
            held = self._runs.get(name)
            if held is not None and held() is not None:
                raise ConfigError(
                    f"prometheus_metrics: there are metrics of {name!r} in this registry.",
                    option="name",
                    fix='a name of its own, prometheus_metrics(run, name="..."), or stop the other',
                )
            self._runs[name] = weakref.ref(run)

    def drop(self, name: str) -> None:
        """Scrape the Exec of this name no more."""
        with self._lock:
            self._runs.pop(name, None)

    def describe(self) -> list[Any]:
        """Return nothing: without this method the registry would collect to learn the names."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics but the latencies, which the registry has."""
        with self._lock:
            runs = {name: run() for name, run in self._runs.items()}
        stats = {name: run.stats for name, run in runs.items() if run is not None}
        for metric in METRICS:
            kind = "CounterMetricFamily" if metric.kind == "counter" else "GaugeMetricFamily"
            labels = ["function", metric.label] if metric.label else ["function"]
            family = getattr(self._core, kind)(
                f"shapeexec_{metric.name}", metric.help, labels=labels
            )
            for name, counts in stats.items():
                for value, number in metric.read(counts).items():
                    family.add_metric([name, value] if metric.label else [name], number)
            yield family


_COLLECTORS: weakref.WeakKeyDictionary[Any, _Collector] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def prometheus_metrics(
    run: Exec, *, name: str | None = None, registry: Any = None
) -> Callable[[], None]:
    """Export an Exec's counters and the latency of its calls through `prometheus_client`.

    The counters are those of `run.stats`, read at each scrape; the histogram
    `shapeexec_call_seconds` records each call. Each metric has a label `function`.

    Args:
        run: The Exec. It is not kept alive.
        name: The value of the label; None: the name of the function.
        registry: A `prometheus_client.CollectorRegistry`; None: the client's default one.

    Returns:
        A function that stops the export.

    Raises:
        ConfigError: `prometheus_client` is not installed, `run` is not an Exec, or the registry has
            metrics of this name.

    Example:
        >>> import prometheus_client
        >>> registry = prometheus_client.CollectorRegistry()
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> stop = sx.prometheus_metrics(run, registry=registry)
        >>> _ = run(np.ones(5, np.float32))
        >>> registry.get_sample_value("shapeexec_graphs", {"function": "sum"})
        1
    """
    try:
        import prometheus_client  # noqa: PLC0415 - it may not be installed
        from prometheus_client import core  # noqa: PLC0415 - it may not be installed
    except ModuleNotFoundError as error:
        raise ConfigError(
            "prometheus_metrics needs prometheus_client, which is not installed.",
            got=str(error),
            fix="pip install prometheus-client; or run.on_event, which needs nothing",
        ) from error
    given: Any = run  # whatever the caller passes
    if not isinstance(given, Exec):
        raise ConfigError(
            f"prometheus_metrics: {run!r:.80} is not an Exec.",
            option="run",
            fix="prometheus_metrics(sx.Exec(fn, ...))",
        )
    registry = prometheus_client.REGISTRY if registry is None else registry
    with _LOCK:
        if registry not in _COLLECTORS:
            _COLLECTORS[registry] = _Collector(prometheus_client, core, registry=registry)
        collector = _COLLECTORS[registry]
    own = getattr(run, "__name__", type(run).__name__) if name is None else name
    collector.add(own, run)
    latency = collector.latency.labels(own)

    def hear(event: Event) -> None:
        if event.kind == "call":
            latency.observe(event.seconds)

    stop_hearing = run.on_event(hear)

    def stop() -> None:
        stop_hearing()
        collector.drop(own)

    return stop
