"""Counters of one Exec, and the snapshot that users read."""

import dataclasses
import threading
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Stats:
    """What an `Exec` has done so far.

    Attributes:
        hits: Calls that found their graph compiled.
        misses: Calls that did not.
        plain_calls: Calls inside somebody's trace, which ran the plain function.
        traces: Times the function was traced at symbolic sizes.
        checks: Times a trace was held against what plain JAX traces at the true sizes.
        check_evaluations: Places in these where running both on random data had to settle it.
        differences: Sizes at which the two differed, and which run exactly for it.
        compiles: XLA compilations of graphs, as JAX counts them.
        compile_seconds: The time that XLA took for them.
        copy_compiles: XLA compilations of pads and slices on an accelerator.
        evictions: Graphs that left the cache.
        graphs: Graphs in the cache.
        device_bytes: Temporary memory and code of these graphs, in bytes, as XLA tells it.
        waste: Per symbol the share of what ran that was padding, 0 to 1.
        exact: Per symbol the calls in which it could not be padded and ran at its exact size.
    """

    hits: int = 0
    misses: int = 0
    plain_calls: int = 0
    traces: int = 0
    checks: int = 0
    check_evaluations: int = 0
    differences: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    copy_compiles: int = 0
    evictions: int = 0
    graphs: int = 0
    device_bytes: int = 0
    waste: Mapping[str, float] = dataclasses.field(default_factory=dict)
    exact: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        waste = ", ".join(f"{symbol} {share:.1%}" for symbol, share in self.waste.items())
        return (
            f"{self.graphs} graphs ({self.compiles} compilations in {self.compile_seconds:.2f} s), "
            f"{self.hits} hits, {self.misses} misses, {self.evictions} evictions, "
            f"padding: {waste or 'none'}"
            + (f", {self.plain_calls} plain calls" if self.plain_calls else "")
        )


class Counters:
    """The counters behind `Stats`; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}
        self._sizes: dict[str, list[int]] = {}
        self._exact: dict[str, int] = {}

    def add(self, **amounts: float) -> None:
        """Add to counters by name."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def call(
        self,
        outcome: str,
        padding: tuple[tuple[str, int, int], ...],
        exact: tuple[str, ...] = (),
    ) -> None:
        """Count one call: `hits` or `misses`, and (symbol, size, bucket) of each symbol."""
        with self._lock:
            self._counts[outcome] = self._counts.get(outcome, 0) + 1
            for symbol, size, bucket in padding:
                totals = self._sizes.get(symbol)
                if totals is None:
                    totals = self._sizes[symbol] = [0, 0]
                totals[0] += size
                totals[1] += bucket
            for symbol in exact:
                self._exact[symbol] = self._exact.get(symbol, 0) + 1

    def snapshot(self, *, graphs: int, device_bytes: int, evictions: int) -> Stats:
        """The counters as they stand."""
        with self._lock:
            counts = {
                name: count if name == "compile_seconds" else int(count)
                for name, count in self._counts.items()
            }
            waste = {
                symbol: 1 - size / bucket if bucket else 0.0
                for symbol, (size, bucket) in sorted(self._sizes.items())
            }
            exact = dict(sorted(self._exact.items()))
        return Stats(
            **counts,  # pyright: ignore[reportArgumentType] - compile_seconds alone is a float
            graphs=graphs,
            device_bytes=device_bytes,
            evictions=evictions,
            waste=waste,
            exact=exact,
        )
