"""The facts that advice is based on: statistics, sizes, graphs and costs of one Exec.

The observers read nothing else.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shapeexec.bucketing import Adaptive
from shapeexec.bucketing._fit_joint import Cost
from shapeexec.bucketing._laws import buckets_of
from shapeexec.bucketing._requests import Requests
from shapeexec.costing import CostModel, Speed, in_seconds
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._key import kind_of
from shapeexec.execution._row import GraphRow
from shapeexec.execution._settings import Settings, given_to
from shapeexec.execution.analysis._analysis import Analysis
from shapeexec.execution.analysis._timed import TimedMask
from shapeexec.shape import _dim
from shapeexec.shape._inferred import early_sizes

Ladders = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """The input of the observers.

    Attributes:
        settings: How calls map to graphs.
        limits: The limits of the cache.
        analysis: The calls, and the statistics.
        rows: The graphs that are kept.
        model: The cost model of a call; None: it is not known.
        speed: The speed of the device.
        platform: The platform of the device: `"cpu"`, `"gpu"` or `"tpu"`.
        masks: The costs of the masks of the graph that ran most elements, the dearest first; empty:
            they were not timed.
    """

    settings: Settings
    limits: CacheLimits
    analysis: Analysis
    rows: tuple[GraphRow, ...]
    model: CostModel | None
    speed: Speed
    platform: str
    masks: tuple[TimedMask, ...] = ()

    @functools.cached_property
    def typical(self) -> GraphRow | None:
        """The graph that ran most elements; None: none has run."""
        return typical_of(self.rows)

    @functools.cached_property
    def requests(self) -> Requests | None:
        """The calls without empty axes; None: there are none, or buckets are not to be chosen.

        It is also None if symbols run exactly because a primitive has no rule.
        """
        analysis = self.analysis
        sizes, symbols = analysis.padded_sizes, analysis.symbols
        if not sizes or not symbols or analysis.stats.exact:
            return None
        at = np.array(list(sizes), np.intp)
        return Requests(symbols, at, np.array(list(sizes.values()), float))

    @functools.cached_property
    def early(self) -> Ladders:
        """By symbol the sizes of calls that `requests` does not have.

        These calls ran exactly, before their axes were inferred as symbols. An Exec with the
        advised ladders knows the symbols from the start, so its ladders need these sizes.
        """
        requests = self.requests
        if requests is None or round(requests.counts.sum()) == self.analysis.calls:
            return {}
        found = early_sizes(self.settings.found)
        return {symbol: found[symbol] for symbol in requests.symbols if symbol in found}

    @property
    def learns(self) -> bool:
        """Whether a symbol has an `Adaptive` strategy, which chooses its own number of buckets."""
        given = (given_to(symbol, self.settings.strategies) for symbol in self.analysis.symbols)
        return any(isinstance(strategy, Adaptive) for strategy in given)

    @property
    def calls(self) -> str:
        """How many of the calls `requests` has, in words."""
        requests, every = self.requests, self.analysis.calls
        own = 0 if requests is None else round(requests.counts.sum())
        return f"the {own} calls seen" if own == every else f"{own} of the {every} calls seen"

    @functools.cached_property
    def ladders(self) -> Ladders:
        """By symbol the buckets of the sizes that were seen."""
        requests = self.requests
        assert requests is not None
        return {
            symbol: buckets_of(self.settings.strategy(symbol), map(int, requests.sizes[:, i]))
            for i, symbol in enumerate(requests.symbols)
        }

    @functools.cached_property
    def cost(self) -> Cost:
        """Seconds by the cost model."""
        assert self.model is not None
        return in_seconds(self.model, self.speed)

    def placed(self, ladders: Ladders) -> Iterator[tuple[dict[str, int], dict[str, int], float]]:
        """The sizes of each request, its buckets in these ladders, and how often it came."""
        requests = self.requests
        assert requests is not None
        for row, count in zip(requests.sizes, requests.counts, strict=True):
            sizes = dict(zip(requests.symbols, map(int, row), strict=True))
            yield sizes, {s: raised(ladders[s], n) for s, n in sizes.items()}, float(count)

    def padded_bytes(self, ladders: Ladders) -> float:
        """The padding of ragged arguments in these buckets, in bytes, over all requests."""
        row = self.typical
        assert row is not None
        base = kind_of(row.key).base
        leaves = [
            (dims, dtype.itemsize)
            for dims, (dtype, _), is_ragged in zip(
                base.dims, base.dtypes, base.is_ragged, strict=True
            )
            if is_ragged
        ]

        def held(sizes: Mapping[str, int]) -> int:
            elements = (math.prod(_dim.evaluate(d, sizes) for d in dims) for dims, _ in leaves)
            return sum(n * width for n, (_, width) in zip(elements, leaves, strict=True))

        placed = self.placed(ladders)
        return sum(count * (held(buckets) - held(sizes)) for sizes, buckets, count in placed)


def typical_of(rows: Sequence[GraphRow]) -> GraphRow | None:
    """The graph that ran most elements; None: none has run."""
    return max(rows, key=lambda row: row.bucket_elements, default=None)


def raised(ladder: tuple[int, ...], size: int) -> int:
    """The least bucket that is not below a size."""
    return ladder[int(np.searchsorted(ladder, size))]
