"""From the record of calls to their analysis. `_traffic` keeps the record."""

import collections
from collections.abc import Iterable, Mapping, Sequence

from shapeexec.execution._options import name_of
from shapeexec.execution._row import GraphRow
from shapeexec.execution._runner import Runner
from shapeexec.execution._stats import Stats
from shapeexec.execution._traffic import Padding, Record, Seen
from shapeexec.execution.analysis._analysis import Analysis
from shapeexec.execution.analysis._measures import distance, entropy
from shapeexec.execution.analysis._uses import BucketUse, TrafficWindow


def analysis_of(runner: Runner) -> Analysis:
    """See `Exec.analysis`."""
    store = runner.store
    record, stats = store.counters.record(), store.stats
    return analyzed(record, stats, rows=runner.graphs.rows, name=name_of(runner.settings.fn))


def analyzed(record: Record, stats: Stats, *, rows: Iterable[GraphRow], name: str) -> Analysis:
    """The analysis of a record.

    Args:
        record: The sizes.
        stats: The counters.
        rows: The graphs that are kept.
        name: The function's.
    """
    counts = total(record.windows)
    symbols = tuple(sorted({symbol for padding in counts for symbol, *_ in padding}))
    sizes = _sizes(counts, symbols)
    whole = {symbol: _of(counts, symbol) for symbol in symbols}
    return Analysis(
        name=name,
        stats=stats,
        symbols=symbols,
        sizes=sizes,
        uses=_uses(counts, rows),
        waste=_waste(counts),
        entropy=entropy(sizes.values()),
        bucket_entropy=entropy(_buckets(counts).values()),
        windows=tuple(_window(seen, whole) for seen in record.windows),
        hours={hour: _window(seen, whole) for hour, seen in record.hours.items()},
        rounded=record.steps,
        left_out=record.left_out,
    )


def total(windows: Iterable[Seen]) -> collections.Counter[Padding]:
    """How often each combination of sizes and buckets occurred in all windows."""
    counts: collections.Counter[Padding] = collections.Counter()
    for window in windows:
        counts.update(window.counts)
    return counts


def _sizes(
    counts: Mapping[Padding, int], symbols: Sequence[str] = ()
) -> dict[tuple[int, ...], int]:
    found: collections.Counter[tuple[int, ...]] = collections.Counter()
    for padding, count in counts.items():
        own = {symbol: size for symbol, size, _ in padding}
        found[tuple(own.get(symbol, 0) for symbol in symbols or sorted(own))] += count
    return dict(sorted(found.items()))


def _buckets(counts: Mapping[Padding, int]) -> collections.Counter[tuple[tuple[str, int], ...]]:
    found: collections.Counter[tuple[tuple[str, int], ...]] = collections.Counter()
    for padding, count in counts.items():
        found[tuple((symbol, bucket) for symbol, _, bucket in padding)] += count
    return found


def _sums(counts: Mapping[Padding, int]) -> dict[str, tuple[int, int, int]]:
    """By symbol the sums of sizes and of buckets, and how many there are."""
    sums: dict[str, tuple[int, int, int]] = {}
    for padding, count in counts.items():
        for symbol, size, bucket in padding:
            sized, held, calls = sums.get(symbol, (0, 0, 0))
            sums[symbol] = sized + count * size, held + count * bucket, calls + count
    return dict(sorted(sums.items()))


def _waste(counts: Mapping[Padding, int]) -> dict[str, float]:
    return {s: 1 - size / held if held else 0.0 for s, (size, held, _) in _sums(counts).items()}


def _uses(counts: Mapping[Padding, int], rows: Iterable[GraphRow]) -> tuple[BucketUse, ...]:
    own: dict[tuple[tuple[str, int], ...], dict[Padding, int]] = {}
    for padding, count in counts.items():
        key = tuple(sorted((symbol, bucket) for symbol, _, bucket in padding))
        own.setdefault(key, {})[padding] = count
    graphs: dict[tuple[tuple[str, int], ...], list[GraphRow]] = {}
    for row in rows:
        graphs.setdefault(tuple(sorted(row.buckets.items())), []).append(row)
    found = [_use(key, own.get(key, {}), rows=graphs.get(key, [])) for key in own | graphs]
    return tuple(sorted(found, key=lambda use: (-use.calls, *use.buckets.values())))


def _use(
    key: tuple[tuple[str, int], ...], counts: Mapping[Padding, int], *, rows: list[GraphRow]
) -> BucketUse:
    return BucketUse(
        buckets=dict(key),
        calls=sum(counts.values()),
        waste=_waste(counts),
        graphs=len(rows),
        hits=sum(row.hits for row in rows),
        made_seconds=sum(row.seconds.total - row.seconds.trace for row in rows),
        run_seconds=sum(row.run_seconds for row in rows),
    )


def _window(seen: Seen, whole: Mapping[str, Mapping[int, int]]) -> TrafficWindow:
    means = {s: size / calls for s, (size, _, calls) in _sums(seen.counts).items()}
    shift = {
        symbol: distance(_of(seen.counts, symbol), whole[symbol]) / (_mean(whole[symbol]) or 1.0)
        for symbol in means
    }
    return TrafficWindow(
        began=seen.began,
        calls=sum(seen.counts.values()),
        mean=means,
        waste=_waste(seen.counts),
        entropy=entropy(_sizes(seen.counts).values()),
        shift=shift,
    )


def _mean(histogram: Mapping[int, int]) -> float:
    return sum(size * calls for size, calls in histogram.items()) / sum(histogram.values())


def _of(counts: Mapping[Padding, int], wanted: str) -> dict[int, int]:
    """The histogram of one symbol."""
    found: dict[int, int] = {}
    for padding, count in counts.items():
        for symbol, size, _ in padding:
            if symbol == wanted:
                found[size] = found.get(size, 0) + count
    return found
