"""Compiling the graphs that a range of sizes needs, before the first call.

`_planner` plans each graph, and `_store` compiles it.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from shapeexec._errors import BucketOverflowError, ConfigError
from shapeexec.bucketing import Strategy, checked_bucket
from shapeexec.bucketing._fixed import last_bucket
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._narrow import is_mapping
from shapeexec.execution._options import as_size
from shapeexec.execution._plan import Plan, warmup_sizes
from shapeexec.execution._planner import Planner
from shapeexec.execution._split import Call
from shapeexec.execution._transfer import struct_like
from shapeexec.shape import _dim, _trees

MOST_COMBINATIONS = 100_000
"""The most combinations of sizes that are planned one by one for guards or exact symbols."""


def warm(
    planner: Planner,
    example: Call,
    *,
    sizes: Mapping[str, Any],
    known: Sequence[Mapping[str, int]],
    is_inferred: bool,
    maker: "Maker",
    progress: Callable[[int, int], None] | None,
) -> int:
    """Compile the missing graphs of every combination of `sizes`, nearest to the example first.

    Args:
        planner: Plans calls.
        example: A call, of any size.
        sizes: Per symbol an int or an iterable of ints. A symbol that is left out gets all sizes up
            to the last bucket of its strategy, if there is a last one.
        known: Combinations of sizes that another process has saved; used if `sizes` is empty.
        is_inferred: Whether symbols are inferred from calls.
        maker: Makes graphs.
        progress: Called with (done, total) before each graph and at the end; with several workers,
            whenever a graph is done.

    Returns:
        How many graphs were compiled.

    Raises:
        ConfigError: Sizes are missing, name a symbol that does not exist, or are too many.
    """
    bound = planner.bind_to_newest_specs(example)
    dims = bound.ragged_dims
    saved = [] if sizes else [one for one in known if one.keys() == bound.sizes.keys()]
    symbols = {s for leaf in dims.values() for dim in leaf for s in _dim.symbols_of(dim)}
    listed = {} if saved else _listed(planner, symbols, sizes=sizes, is_inferred=is_inferred)
    count = 0
    while True:
        wanted = _missing(planner, example, dims=dims, listed=listed, saved=saved)
        wanted.sort(key=lambda graph: _distance(graph[1].sizes, bound.sizes))
        shown = _Progress(progress, len(wanted))
        for begun, (exact, call) in enumerate(wanted):
            shown.done(begun - maker.left(maker.most))
            plan = maker.make(call)
            count += 1
            if plan.exact != exact:
                maker.left(0)
                break  # a symbol became exact, so other graphs are wanted now
        else:
            for left in range(maker.most, -1, -1):
                shown.done(len(wanted) - maker.left(left))
            return count


def warn_of_evicted(made: int, *, kept: int, limits: CacheLimits) -> None:
    """Warn if a warm-up has made more graphs than its Exec may keep.

    Args:
        made: How many graphs the warm-up has made.
        kept: How many graphs are in the cache now.
        limits: The limits of the cache.
    """
    is_full = limits.graphs is not None and kept >= limits.graphs
    if made <= kept or not (is_full or limits.device_bytes):  # else `clear` took them
        return
    warnings.warn(
        f"shapeexec: warmup compiled {made} graphs, and {limits!r} keeps {kept} of them: the other "
        "buckets compile again on their first call.\n"
        "  Fix:   limits= with room for all of them; fewer sizes, or a coarser strategy",
        RuntimeWarning,
        stacklevel=4,
    )


def _listed(
    planner: Planner, symbols: Set[str], *, sizes: Mapping[str, Any], is_inferred: bool
) -> dict[str, Sequence[int]]:
    """The sizes of each symbol; a symbol that is left out gets all sizes up to its last bucket.

    Raises:
        ConfigError: The sizes of a symbol are missing, or a symbol does not exist.
    """
    listed = {symbol: as_sizes(symbol, given) for symbol, given in sizes.items()}
    for symbol in symbols - listed.keys():
        last = last_bucket(planner.strategy(symbol))
        if last is not None:
            listed[symbol] = range(1, last + 1)
    if symbols == listed.keys():
        return listed
    if is_inferred and listed.keys() - symbols:
        raise ConfigError(
            f"warmup: no symbol {', '.join(sorted(listed.keys() - symbols))} was inferred yet.",
            option="sizes",
            got=f"the symbols of the calls so far: {', '.join(sorted(symbols)) or 'none'}",
            why="without in_shapes= an axis becomes a symbol with its third size",
            fix="in_shapes=, such as those that run.specs prints later; or more calls before",
        )
    raise ConfigError(
        f"warmup: sizes for {', '.join(sorted(listed)) or 'no symbol'}, but the symbols "
        f"are {', '.join(sorted(symbols)) or 'none'}.",
        option="sizes",
        fix="give sizes for each symbol: "
        + warmup_sizes(dict.fromkeys(sorted(symbols), "..."))
        + "; or strategies with maximum=, whose buckets are then all of them",
    )


def merged(sizes: Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sizes of all symbols, given as a mapping and by keyword.

    Raises:
        ConfigError: `sizes` is not a mapping, or a symbol is given in both ways.
    """
    if not (sizes is None or is_mapping(sizes)):
        raise ConfigError(
            f"warmup: sizes={sizes!r:.80} is not a mapping of symbols to their sizes.",
            option="sizes",
            fix=f"sizes={{'sizes': {sizes!r:.80}}}, if there is a symbol `sizes`; or s=128, of `s`",
        )
    mapped = {str(symbol): given for symbol, given in (sizes or {}).items()}
    twice = sorted(mapped.keys() & named.keys())
    if twice:
        raise ConfigError(
            f"warmup: sizes of `{twice[0]}` are given twice.",
            option="sizes",
            fix=f"leave out {twice[0]}=..., or '{twice[0]}' in sizes={{...}}",
        )
    return {**mapped, **named}


class Maker(Protocol):
    """Makes graphs, one after another or side by side.

    Attributes:
        most: How many graphs may be unfinished when the next one is begun.
    """

    most: int

    def make(self, call: BoundCall) -> Plan:
        """Plan a call, and begin to make its graph; returns the plan."""
        ...

    def left(self, most: int) -> int:
        """Wait until at most `most` graphs are unfinished, and return how many are."""
        ...


class _Progress:
    """Calls the user's `progress`, once for each number."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress, self._total, self._last = progress, total, -1

    def done(self, number: int) -> None:
        """Report how many graphs are done."""
        if self._progress is not None and number > self._last:
            self._last = number
            self._progress(number, self._total)


def _distance(sizes: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """The distance of two sets of sizes: the sum of the absolute logs of their ratios."""
    return sum(abs(math.log(max(1, sizes[s]) / max(1, wanted[s]))) for s in wanted)


def _missing(
    planner: Planner,
    example: Call,
    *,
    dims: Any,
    listed: Mapping[str, Sequence[int]],
    saved: Sequence[Mapping[str, int]],
) -> list[tuple[tuple[str, ...], BoundCall]]:
    """A call for each graph that is wanted and not compiled, and its exact symbols.

    One size per bucket is planned; all sizes if guards or exact symbols split a bucket.
    """
    chosen = {symbol: _one_each(planner, symbol, sizes=n) for symbol, n in listed.items()}
    plans: dict[Hashable, tuple[Plan, BoundCall]] = {}
    for sizes in (chosen,) if saved else (chosen, listed):
        _check_number(sizes)
        plans = {}
        for combination in saved or combinations(sizes):
            arrays = at_sizes((list(example.arrays), dict(example.named)), dims, sizes=combination)
            call = planner.bind(example.replaced(*arrays))
            plan = planner.draft(call)
            plans.setdefault(plan.key, (plan, call))
        if not any(plan.guards or plan.exact for plan, _ in plans.values()):
            break
    return [(plan.exact, call) for plan, call in plans.values() if not plan.is_compiled]


def _check_number(sizes: Mapping[str, Sequence[int]]) -> None:
    number = math.prod(map(len, sizes.values()))
    if number > MOST_COMBINATIONS:
        raise ConfigError(
            f"warmup: {number} combinations of sizes are too many.",
            option="sizes",
            why="guards or exact symbols give sizes of one bucket different graphs",
            fix="give fewer sizes, or warm up symbol by symbol",
        )


def _one_each(planner: Planner, symbol: str, *, sizes: Sequence[int]) -> tuple[int, ...]:
    try:
        return representatives(planner.strategy(symbol), sizes)
    except BucketOverflowError as error:
        raise error.of(symbol) from None


def as_sizes(symbol: str, sizes: Any) -> Sequence[int]:
    """The sizes of one symbol in ascending order, given as an int or an iterable of ints.

    Raises:
        ConfigError: `sizes` is neither, or is empty.
    """
    if isinstance(sizes, range) and sizes.step == 1 and sizes and sizes[0] >= 1:
        return sizes  # a long range is not listed
    try:
        listed = [as_size(size) for size in _each(sizes)]
    except TypeError:
        listed = []
    if not listed or min(listed) < 1:
        raise ConfigError(
            f"warmup: {symbol}={sizes!r} names no sizes of at least 1.",
            option=symbol,
            fix=f"{symbol}=range(1, 513), or {symbol}=128",
        )
    return sorted(set(listed))


def _each(sizes: Any) -> Iterable[Any]:
    try:
        return (as_size(sizes),)
    except TypeError:
        return sizes


def representatives(strategy: Strategy, sizes: Sequence[int]) -> tuple[int, ...]:
    """The largest size in each bucket; `sizes` ascend."""
    if isinstance(sizes, range):  # from bucket to bucket, not from size to size
        last = sizes[-1]
        return tuple(min(bucket, last) for bucket in strategy.ladder(sizes[0], last))
    return tuple({checked_bucket(strategy, size): size for size in sizes}.values())


def combinations(sizes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Every combination of one size per symbol."""
    for values in itertools.product(*sizes.values()):
        yield dict(zip(sizes, values, strict=True))


def at_sizes(tree: Any, dims: Mapping[int, tuple[Any, ...]], *, sizes: Mapping[str, int]) -> Any:
    """A tree of arguments with each ragged leaf replaced by its shape at `sizes`.

    Args:
        tree: The arguments: arrays or `jax.ShapeDtypeStruct`.
        dims: The dims of each ragged leaf, by the number of the leaf.
        sizes: The size of each symbol.
    """
    leaves, treedef = _trees.flatten(tree)
    for index, leaf_dims in dims.items():
        shape = tuple(_dim.evaluate(dim, sizes) for dim in leaf_dims)
        leaves[index] = struct_like(leaves[index], shape)
    return _trees.unflatten(treedef, leaves)
