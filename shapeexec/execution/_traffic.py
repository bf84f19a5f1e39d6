"""The record of the sizes that calls had: bounded histograms over the stream and by hour.

`_stats` adds calls under its lock; `analysis` reads the record.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping

Padding = tuple[tuple[str, int, int], ...]
"""(symbol, size, bucket) of each symbol of a call, or of an example of a map."""

_BUFFERED = 256  # calls that are counted together, so that a hit only appends to a list
_LONGEST = 60.0  # seconds between the first and the last of them: each counts in its hour
_WINDOWS = 32
_ENTRIES = 8192  # of all histograms together: about 2 MB


@dataclasses.dataclass(frozen=True)
class Seen:
    """A run of consecutive calls, or all calls of one hour of the day.

    Attributes:
        began: The time of the first call, in seconds since 1970.
        counts: How often each combination of sizes and buckets occurred.
    """

    began: float
    counts: Mapping[Padding, int]


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of the sizes of calls.

    Attributes:
        windows: The stream from its first call on, in windows of about equally many calls.
        hours: The calls by hour of the day, 0 to 23, in UTC.
        steps: By symbol the step to whose multiples its sizes were rounded up; absent: not rounded.
        left_out: Calls that were dropped because there were too many different sizes.
    """

    windows: tuple[Seen, ...] = ()
    hours: Mapping[int, Seen] = dataclasses.field(default_factory=dict[int, Seen])
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    left_out: int = 0


class Traffic:
    """Counts sizes in bounded memory; its owner holds a lock.

    With more than 32 windows neighbours are merged, and windows are twice as long from then on.
    With too many different sizes, the sizes of the symbol that has most of them are rounded up to
    multiples of 2, then 4 and so on, but at most to their bucket.

    Args:
        clock: Returns the seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._buffer: list[Padding] = []
        self._began = self._since = 0.0
        self._length = _BUFFERED
        self._windows: list[_Counted] = []
        self._hours: dict[int, _Counted] = {}
        self._steps: dict[str, int] = {}
        self._left_out = 0

    def add(self, requests: Iterable[Padding], now: float) -> None:
        """Count a call, or the examples of a map.

        Args:
            requests: The sizes and buckets of each.
            now: By `time.monotonic`, in seconds.
        """
        buffer = self._buffer
        if len(buffer) >= _BUFFERED or now - self._since > _LONGEST:
            self._fold()
            self._since, self._began = now, self._clock()
        buffer += requests

    def record(self) -> Record:
        """The record now."""
        self._fold()
        return Record(
            tuple(window.seen() for window in self._windows),
            {hour: counted.seen() for hour, counted in sorted(self._hours.items())},
            dict(self._steps),
            self._left_out,
        )

    def _fold(self) -> None:
        """Add the buffered calls to the histograms."""
        if not self._buffer:
            return
        counts = collections.Counter(self._buffer)
        self._buffer.clear()
        if self._steps:
            counts = self._rounded(counts)
        if not self._windows or self._windows[-1].calls >= self._length:
            self._windows.append(_Counted(self._began))
        hour = self._hours.setdefault(int(self._began // 3600) % 24, _Counted(self._began))
        for held in (self._windows[-1], hour):
            held.counts.update(counts)
            held.calls += counts.total()
        if len(self._windows) > _WINDOWS:
            self._length *= 2
            pairs = zip(self._windows[::2], [*self._windows[1::2], None], strict=False)
            self._windows = [one.merged(other) for one, other in pairs]
        while self._entries() > _ENTRIES:
            self._coarsen()

    def _all(self) -> list["_Counted"]:
        return [*self._windows, *self._hours.values()]

    def _entries(self) -> int:
        return sum(len(held.counts) for held in self._all())

    def _coarsen(self) -> None:
        """Round the sizes of one symbol; if that merges none, drop rare combinations."""
        before = self._entries()
        sizes: dict[str, set[int]] = {}
        for held in self._all():
            for padding in held.counts:
                for symbol, size, bucket in padding:
                    if size < bucket:
                        sizes.setdefault(symbol, set()).add(size)
        if sizes:
            most = max(sizes, key=lambda symbol: len(sizes[symbol]))
            self._steps[most] = 2 * self._steps.get(most, 1)
            for held in self._all():
                held.counts = self._rounded(held.counts)
        if self._entries() == before and not any(len(own) > 1 for own in sizes.values()):
            self._drop_rare()

    def _rounded(self, counts: Mapping[Padding, int]) -> collections.Counter[Padding]:
        steps = self._steps
        found: collections.Counter[Padding] = collections.Counter()
        for padding, count in counts.items():
            key = tuple(
                (s, min(-(-size // (step := steps.get(s, 1))) * step, bucket), bucket)
                for s, size, bucket in padding
            )
            found[key] += count
        return found

    def _drop_rare(self) -> None:
        windows = self._windows
        total = sum((window.counts for window in windows), start=collections.Counter[Padding]())
        most = _ENTRIES // (2 * len(self._all()))
        kept = {padding for padding, _ in total.most_common(most)}
        self._left_out += sum(n for padding, n in total.items() if padding not in kept)
        for held in self._all():
            own = {padding: n for padding, n in held.counts.items() if padding in kept}
            held.counts = collections.Counter(own)


class _Counted:
    """A histogram that grows.

    Args:
        began: See `Seen`.
    """

    def __init__(self, began: float) -> None:
        self.began, self.calls = began, 0
        self.counts: collections.Counter[Padding] = collections.Counter()

    def merged(self, other: "_Counted | None") -> "_Counted":
        if other is not None:
            self.counts.update(other.counts)
            self.calls += other.calls
        return self

    def seen(self) -> Seen:
        return Seen(self.began, dict(self.counts))
