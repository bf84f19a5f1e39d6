"""Ladders that an Exec learns while it serves: `buckets=sx.Adaptive()`.

`bucketing._adaptive_rule` decides when a ladder changes. `_larger` runs calls in graphs of the old
ladder while other threads make the graphs of the new one.
"""

import collections
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Adaptive, Strategy
from shapeexec.bucketing._adaptive import State, states_of, strategy_at, text_of
from shapeexec.bucketing._adaptive_rule import Change, refuse, step
from shapeexec.execution._behind import Workers
from shapeexec.execution._bounded_table import BoundedTable
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._compile import Graph
from shapeexec.execution._events import Events
from shapeexec.execution._fork import tell_of_forks
from shapeexec.execution._key import Bucketed, Key
from shapeexec.execution._plan import Plan
from shapeexec.execution._settings import Settings, given_to
from shapeexec.execution._stats import Ran
from shapeexec.shape._unknown import names_for

EVERY = 32
"""How many calls are learned at once."""

_SWEEPS = 2  # a call that was planned before a change may be remembered after it


class Holder(Protocol):
    """The part of a `Store` that a learner uses."""

    events: Events
    limits: CacheLimits
    count: Callable[..., None]
    ready: BoundedTable[Any]
    plans: BoundedTable[Plan]
    is_frozen: bool

    def graphs(self) -> list[Graph]:
        """All graphs."""
        ...

    def drop(self, key: Key) -> None:
        """Forget a graph."""
        ...


def learner_of(settings: Settings, store: Holder) -> "Learner | None":
    """The learner of an Exec; None if no strategy is `Adaptive`.

    Raises:
        ConfigError: A strategy is `Adaptive`, and another option forbids a ladder to change.
    """
    given = settings.strategies
    own = (given,) if isinstance(given, Strategy) else given.values()
    if not any(isinstance(strategy, Adaptive) for strategy in own):
        return None
    for said, is_said, why in (
        (
            "masking=False",
            not settings.masking,
            "results may depend on the bucket, and so on what was learned",
        ),
        (
            'missing="error"',
            settings.missing == "error",
            "a ladder that changes needs graphs that no call may make",
        ),
    ):
        if is_said:
            raise ConfigError(
                f"buckets=sx.Adaptive() with {said}.",
                option="buckets",
                why=why,
                fix=f"leave {said.partition('=')[0]}= out, or give what was learned as it stands: "
                "buckets=run.settings.strategy(symbol)",
            )
    return Learner(settings, store)


class Learner:
    """The ladders of an Exec, by symbol, which all its views share; safe to use from many threads.

    Calls only append their sizes to a queue. Another thread learns them in order, `EVERY` calls at
    a time, so the ladders depend on the calls and the clock alone. It holds no lock while it fits.

    Args:
        settings: The strategies as they were given.
        store: The graphs and plans that a change affects.
        clock: The time in seconds.

    Attributes:
        has_changed: Whether a ladder has changed, so that graphs of a call may be missing.
    """

    def __init__(
        self, settings: Settings, store: Holder, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._strategies, self._store, self._clock = settings.strategies, store, clock
        self._seen: collections.deque[Ran] = collections.deque()
        self._workers = Workers(1)
        self._lock = threading.Lock()
        self._states = dict(_learned_before(self._strategies))
        self._ladders: Mapping[str, Strategy] = {}
        self._before: Mapping[str, tuple[int, ...]] = {}
        self._why: Mapping[str, str] = {}
        self._last: dict[tuple[str, int], int] = {}
        self._calls = self._sweeps = 0
        self.has_changed = False
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: what another thread was learning is lost."""
        self._lock = threading.Lock()
        self._seen.clear()

    # Questions of calls

    def strategy(self, symbol: str) -> Strategy:
        """The strategy of a symbol now, with its present ladder."""
        found = self._ladders.get(symbol)
        if found is None:
            given = given_to(symbol, self._strategies)
            own = self._states.get(symbol, State())
            found = strategy_at(given, own.ladder) if isinstance(given, Adaptive) else given
            with self._lock:
                self._ladders = {symbol: found, **self._ladders}
        return self._ladders[symbol]

    def learns(self, symbol: str) -> bool:
        """Whether the ladder of a symbol may change."""
        return isinstance(given_to(symbol, self._strategies), Adaptive)

    def why(self, symbols: Iterable[str]) -> dict[str, str]:
        """The reason for the last change of each ladder of `symbols` that has changed."""
        return {symbol: self._why[symbol] for symbol in symbols if symbol in self._why}

    def settings(self, settings: Settings) -> Settings:
        """The settings, with the learned ladders in their strategies."""
        states, given = self._states, self._strategies
        if not states:
            return settings
        if isinstance(given, Adaptive):
            learned = dataclasses.replace(given, learned=text_of(states))
            return dataclasses.replace(settings, strategies=learned)
        assert not isinstance(given, Strategy)
        strategies = dict(given)
        for name, strategy in given.items():
            if isinstance(strategy, Adaptive):
                own = {s: state for s, state in states.items() if _name_of(s, given) == name}
                strategies[name] = dataclasses.replace(strategy, learned=text_of(own))
        return dataclasses.replace(settings, strategies=strategies)

    def graph_of_old_ladder(self, plan: Plan) -> Graph | None:
        """The cheapest graph of an old ladder that serves a call whose own graph is missing.

        No bucket exceeds the one from the previous ladder or from `start`.
        """
        wanted = plan.key.parts
        if not self.has_changed or not isinstance(wanted, Bucketed):
            return None
        most = {symbol: self._most(symbol, plan.sizes[symbol]) for symbol, _ in wanted.ranges}
        found = [
            graph
            for graph in self._store.graphs()
            if isinstance(parts := graph.row.key.parts, Bucketed)
            and parts.kind == wanted.kind
            and parts != wanted
            and all(
                least <= plan.sizes[symbol] <= bucket <= most[symbol]
                for symbol, (least, bucket) in parts.ranges
            )
        ]
        return min(found, key=lambda graph: math.prod(graph.row.buckets.values()), default=None)

    def _most(self, symbol: str, size: int) -> int:
        """The largest bucket of a size on the present ladder, the previous one and `start`."""
        given = given_to(symbol, self._strategies)
        buckets = [self.strategy(symbol).bucket(size)]
        if isinstance(given, Adaptive):
            old = strategy_at(given, self._before.get(symbol, ()))
            buckets += [old.bucket(size), given.bucket(size)]
        return max(buckets)

    # Learning from calls

    def saw(self, seen: Ran) -> None:
        """Queue the sizes of a call; another thread learns them later.

        Args:
            seen: The call, or the examples of a map.
        """
        self._seen.append(seen)
        if len(self._seen) >= EVERY:
            batch = self._batch()
            if batch and not self._store.is_frozen:
                self._workers.submit(functools.partial(self._work, batch, now=self._clock()))

    def _batch(self) -> list[Ran]:
        with self._lock:
            enough = len(self._seen) >= EVERY
            return [self._seen.popleft() for _ in range(EVERY)] if enough else []

    def _work(self, batch: Sequence[Ran], *, now: float) -> None:
        try:
            self._learn(batch, now=now)
        except Exception as error:  # of any kind: a user's strategy may raise; the ladder stays
            self._store.events.emit("failed", reason=f"{type(error).__name__}: {error!s:.400}")

    def _learn(self, batch: Sequence[Ran], *, now: float) -> None:
        self._calls += len(batch)
        for symbol, own in self._sizes(batch).items():
            given = given_to(symbol, self._strategies)
            assert isinstance(given, Adaptive)
            known = self._states.get(symbol, State())
            state, change = step(given, known, sizes=own, now=now)
            with self._lock:
                if self._states.get(symbol, known) is known:  # else a ladder was refused meanwhile
                    self._states = {**self._states, symbol: state}
                else:
                    change = None
            if change is not None:
                self._change(symbol, state.ladder, before=known.ladder, why=change)
        if self._sweeps:
            self._sweeps -= 1
            self._sweep()
        self._drop_unused()

    def _sizes(self, batch: Sequence[Ran]) -> dict[str, list[int]]:
        """The sizes of some calls by symbol; marks their buckets as used now."""
        sizes: dict[str, list[int]] = {}
        for call in batch:
            # The largest example chooses the bucket of all that share a graph.
            for symbol, size, bucket in map(max, zip(*call.requests, strict=True)):
                if size and symbol not in call.exact and self.learns(symbol):
                    sizes.setdefault(symbol, []).append(size)
                    self._last[symbol, bucket] = self._calls
        return sizes

    def _change(
        self,
        symbol: str,
        ladder: tuple[int, ...],
        *,
        before: tuple[int, ...],
        why: Change | str,
    ) -> None:
        """Plan calls on another ladder from now on."""
        given = given_to(symbol, self._strategies)
        assert isinstance(given, Adaptive)
        with self._lock:
            self._before = {**self._before, symbol: before}
            self._ladders = {**self._ladders, symbol: strategy_at(given, ladder)}
            self._why = {**self._why, symbol: str(why)}
            self.has_changed, self._sweeps = True, _SWEEPS
        self._sweep()
        self._store.count(ladders=1)
        self._store.events.emit("ladder", reason=f"{symbol}: {why}")

    def refuse(self, plan: Plan) -> bool:
        """Go back to the previous ladder, because the graph of a plan could not be made.

        Returns:
            False if the previous ladder has the same buckets.
        """
        is_back = False
        for symbol, bucket in plan.buckets.items():
            before = self._before.get(symbol)
            state = self._states.get(symbol)
            if before is None or state is None or bucket in before or bucket not in state.ladder:
                continue
            with self._lock:
                known = refuse(self._states[symbol], ladder=before, buckets=[bucket])
                self._states = {**self._states, symbol: known}
            why = f"back from bucket {bucket}, whose graph could not be made"
            self._change(symbol, before, before=before, why=why)
            is_back = True
        return is_back

    def _sweep(self) -> None:
        """Forget the plans whose sizes have other buckets now."""

        def is_old(planned: Any) -> bool:
            return any(
                size and bucket != self.strategy(symbol).bucket(size)
                for symbol, size, bucket in planned.padding
                if symbol in self._why
            )

        self._store.ready.drop_where(is_old)
        self._store.plans.drop_where(is_old)

    def _drop_unused(self) -> None:
        """Drop graphs off the ladder that served none of the last `1 / min_usage` calls."""
        for graph in self._store.graphs() if self._why else ():
            parts, row = graph.row.key.parts, graph.row
            if row.examples is None and self._store.limits.are_pinned(row.buckets):
                continue
            ranges: Iterable[tuple[str, tuple[int, int]]] = getattr(parts, "ranges", ())
            if any(self._is_unused(symbol, bucket) for symbol, (_, bucket) in ranges):
                self._store.drop(row.key)
                self._store.events.emit("evicted", row, reason="it is not on the ladder")

    def _is_unused(self, symbol: str, bucket: int) -> bool:
        given, state = given_to(symbol, self._strategies), self._states.get(symbol)
        if not isinstance(given, Adaptive) or state is None or bucket in state.ladder:
            return False
        last = self._last.setdefault((symbol, bucket), self._calls)
        return self._calls - last > 1 / given.min_usage


def _learned_before(strategies: Any) -> Mapping[str, State]:
    own = (strategies,) if isinstance(strategies, Strategy) else strategies.values()
    found: dict[str, State] = {}
    for strategy in own:
        found |= states_of(strategy.learned) if isinstance(strategy, Adaptive) else {}
    return found


def _name_of(symbol: str, strategies: Mapping[str, Strategy]) -> str | None:
    """The key of `strategies` that a symbol falls under; None: it has no strategy."""
    return next((name for name in names_for(symbol) if name in strategies), None)
