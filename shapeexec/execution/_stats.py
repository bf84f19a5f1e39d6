"""Counters of one Exec, and the snapshot that users read. `_store` does the counting."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from shapeexec.execution._traffic import Padding, Record, Traffic

_BUFFERED = 256  # calls that are counted together, so that a hit only appends to a list


@dataclasses.dataclass(frozen=True)
class Stats:
    """The counters of an `Exec`.

    Attributes:
        hits: Calls that found their graph compiled.
        misses: Calls that did not find their graph compiled.
        larger: Misses that ran in a larger graph while their own was compiled.
        plain_calls: Calls inside another trace, which ran the plain function.
        traces: How often the function was traced at symbolic sizes.
        checks: How often a trace was compared with plain JAX's trace at the true sizes.
        check_evaluations: Places where this comparison had to run both programs on random data.
        differences: Sizes at which the two traces differ; these sizes run exactly.
        compiles: XLA compilations of graphs, as JAX counts them.
        loads: Graphs that were read from files instead.
        exports: Graphs that were compiled from a program that another process has exported,
            without masking and lowering.
        trace_seconds: The time spent on tracing, in seconds, as for the others below.
        check_seconds: The time spent on comparing traces with plain JAX's, while XLA compiled.
        mask_seconds: The time spent on inserting masks.
        lower_seconds: The time spent on lowering to StableHLO.
        compile_seconds: The time that XLA spent on these compilations.
        load_seconds: The time spent on reading graphs from files.
        copy_compiles: XLA compilations of pads and slices on an accelerator.
        copy_seconds: The time that XLA spent on these.
        swaps: Quick graphs that were replaced by a tuned one.
        ladders: How often an `Adaptive` strategy changed its buckets.
        evictions: Graphs that were evicted because of a limit of the cache.
        remade: Graphs that were compiled again after their eviction.
        graphs: Graphs in the cache.
        device_bytes: Temporary memory and code of these graphs, in bytes, as XLA reports it.
        valid_elements: Valid elements of padded arguments, over all calls of graphs.
        bucket_elements: All elements of these arguments at capacity: data and padding.
        padded_bytes: The padding of these arguments, in bytes, over all calls of graphs.
        waste: Per symbol the share of the elements at capacity that was padding, 0 to 1.
        exact: Per symbol the calls in which it could not be padded and ran at its exact size.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",), buckets=sx.Linear(8))
        >>> for size in (3, 5, 9):
        ...     _ = run(np.ones(size, np.float32))
        >>> run.stats.hits, run.stats.compiles, run.stats.graphs
        (1, 2, 2)
    """

    hits: int = 0
    misses: int = 0
    larger: int = 0
    plain_calls: int = 0
    traces: int = 0
    checks: int = 0
    check_evaluations: int = 0
    differences: int = 0
    compiles: int = 0
    loads: int = 0
    exports: int = 0
    trace_seconds: float = 0.0
    check_seconds: float = 0.0
    mask_seconds: float = 0.0
    lower_seconds: float = 0.0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    copy_compiles: int = 0
    copy_seconds: float = 0.0
    swaps: int = 0
    ladders: int = 0
    evictions: int = 0
    remade: int = 0
    graphs: int = 0
    device_bytes: int = 0
    valid_elements: int = 0
    bucket_elements: int = 0
    padded_bytes: int = 0
    waste: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    exact: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    @property
    def hit_rate(self) -> float:
        """The share of calls that found their graph compiled, 0 to 1; 0 before the first call."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0

    @property
    def efficiency(self) -> float:
        """The share of elements that were data, all symbols together, 0 to 1; 1 if none ran.

        `waste` is per symbol: if half of each of two symbols is padding, a quarter is data.
        """
        return self.valid_elements / self.bucket_elements if self.bucket_elements else 1.0

    def __str__(self) -> str:
        waste = ", ".join(f"{symbol} {share:.1%}" for symbol, share in self.waste.items())
        return (
            f"{self.graphs} graphs ({self.compiles} compilations in {self.compile_seconds:.2f} s), "
            f"{self.hits} hits, {self.misses} misses, {self.evictions} evictions, "
            f"padding: {waste or 'none'}"
            + (f", {self.plain_calls} plain calls" if self.plain_calls else "")
        )


class Elements(NamedTuple):
    """Elements of the ragged arguments of a call.

    Attributes:
        valid: The elements that are data.
        bucket: All elements at capacity: data and padding.
        padded_bytes: The padding, in bytes.
    """

    valid: int
    bucket: int
    padded_bytes: int


class Ran(Protocol):
    """A call, or examples of a map, as they are counted; see `Planned`."""

    @property
    def padding(self) -> Padding: ...

    @property
    def requests(self) -> tuple[Padding, ...]: ...

    @property
    def exact(self) -> tuple[str, ...]: ...

    @property
    def elements(self) -> Elements: ...


class Tally:
    """The runs of one graph; the counters of its Exec change it, under their lock.

    Attributes:
        hits: Calls that found it compiled.
        used: When a call last used it, by `time.monotonic`, in seconds; None: no call has.
        valid: See `Elements`; the sum over all calls.
        bucket: See `Elements`; the sum over all calls.
        seconds: The wall-clock time of the hits, from call to result.
    """

    __slots__ = ("bucket", "hits", "seconds", "used", "valid")

    def __init__(self) -> None:
        self.hits = self.valid = self.bucket = 0
        self.seconds = 0.0
        self.used: float | None = None


class Counters:
    """The counters behind `Stats`; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._sizes: dict[str, list[int]] = {}
        self._exact: dict[str, int] = {}
        self._elements = [0, 0, 0]
        self._traffic = Traffic()
        self._buffer: list[tuple[str, Padding, tuple[str, ...], Elements, Tally, float]] = []

    def add(self, **amounts: float) -> None:
        """Add to counters by name."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def call(
        self,
        outcome: str,
        ran: Ran,
        *,
        tally: Tally,
        seconds: float,
    ) -> None:
        """Count one call.

        Args:
            outcome: `hits` or `misses`.
            ran: The call, or the examples of a map.
            tally: Of the graph that it ran in.
            seconds: From the call to its result.
        """
        now = time.monotonic()
        with self._lock:
            tally.used = now
            self._traffic.add(ran.requests, now)
            buffer = self._buffer
            buffer.append((outcome, ran.padding, ran.exact, ran.elements, tally, seconds))
            if len(buffer) >= _BUFFERED:
                self._fold()

    def _fold(self) -> None:
        """Add the buffered calls to the counters; the caller holds the lock."""
        for outcome, padding, exact, elements, tally, seconds in self._buffer:
            self._counts[outcome] = self._counts.get(outcome, 0) + 1
            for symbol, size, bucket in padding:
                totals = self._sizes.setdefault(symbol, [0, 0])
                totals[0] += size
                totals[1] += bucket
            for symbol in exact:
                self._exact[symbol] = self._exact.get(symbol, 0) + 1
            for number, amount in enumerate(elements):
                self._elements[number] += amount
            if outcome == "hits":
                tally.hits += 1
                tally.seconds += seconds
            tally.valid += elements.valid
            tally.bucket += elements.bucket
        self._buffer.clear()

    def read(self, tallies: Sequence[Tally]) -> list[tuple[int, float | None, int, int, float]]:
        """Per tally: hits, seconds since the last use, valid and all elements, seconds of hits."""
        with self._lock:
            self._fold()
            now = time.monotonic()
            return [
                (
                    tally.hits,
                    None if tally.used is None else now - tally.used,
                    tally.valid,
                    tally.bucket,
                    tally.seconds,
                )
                for tally in tallies
            ]

    def record(self) -> Record:
        """The sizes of all calls."""
        with self._lock:
            return self._traffic.record()

    def snapshot(self, *, graphs: int, device_bytes: int, evictions: int, remade: int) -> Stats:
        """The counters now, with the counts of the cache."""
        with self._lock:
            self._fold()
            counts = {
                name: count if name.endswith("_seconds") else int(count)
                for name, count in self._counts.items()
            }
            waste = {
                symbol: 1 - size / bucket if bucket else 0.0
                for symbol, (size, bucket) in sorted(self._sizes.items())
            }
            exact = dict(sorted(self._exact.items()))
            valid, bucket, padded_bytes = self._elements
        return Stats(
            **counts,  # pyright: ignore[reportArgumentType] - seconds alone are floats
            graphs=graphs,
            device_bytes=device_bytes,
            evictions=evictions,
            remade=remade,
            valid_elements=valid,
            bucket_elements=bucket,
            padded_bytes=padded_bytes,
            waste=waste,
            exact=exact,
        )
