"""The strategy that learns from calls, and its learned state, as values.

When a ladder changes is decided in `_adaptive_rule`. An `Exec` asks it, and makes the graphs.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

from shapeexec._errors import ConfigError
from shapeexec.bucketing._base import Strategy
from shapeexec.bucketing._checks import as_float, as_int
from shapeexec.bucketing._custom import as_part
from shapeexec.bucketing._fixed import Ladder, Pow2

_POW2 = Pow2()


@dataclasses.dataclass(frozen=True)
class State:
    """The learned state of one symbol.

    Attributes:
        weights: How often each size occurred, decayed, by ascending size.
        ladder: The buckets, ascending; none before the first change.
        held: The buckets of all graphs that were paid for and are held, ascending.
        refused: Buckets whose graphs could not be made, ascending.
        requests: How many sizes were seen.
        compiles: How many graphs were paid for.
        changes: How often the ladder changed.
        now: The time of the last step, in seconds; None before it.
        due: How much more must be padded before a change can pay, as a cost.
    """

    weights: Mapping[int, float] = dataclasses.field(default_factory=dict[int, float])
    ladder: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    requests: int = 0
    compiles: int = 0
    changes: int = 0
    now: float | None = None
    due: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Adaptive(Strategy):
    """Buckets that an `Exec` learns from the sizes of its calls, for each symbol by itself.

    At first sizes have the buckets of `start`. The ladder changes when its excess padding so far
    has cost as much as the graphs of a better ladder, so all graphs together never cost more than
    the padding that has run. Other threads make the new graphs; until a graph is compiled its calls
    run in the old ones. The value itself does not change: `run.settings.strategies` has one with
    everything learned so far, and `run.save` writes it.

    Attributes:
        graphs: The most buckets of a ladder.
        horizon: How many calls it remembers, in which a new graph has to pay for itself: a call
            this many calls ago counts 1/e of a new one.
        horizon_seconds: The same by the clock: a call this many seconds ago counts 1/e of a new
            one. None: time does not matter.
        compile_calls: The cost of making a graph, in calls of the mean size: the seconds of a
            compilation divided by the seconds of a call, or less if a busy thread costs you little.
            If other symbols have buckets too, each bucket has a graph with each of theirs: multiply
            by their number.
        min_usage: The least share of calls that a bucket is made for. The largest sizes, if they
            are rarer together, use buckets of `start`. A graph that is not on the ladder is evicted
            if it served none of the last `1 / min_usage` calls.
        cost: The cost of a call at a bucket, see `Ladder.fit`.
        start: The strategy before anything is learned, and past the last bucket, as `as_strategy`
            takes it.
        learned: What was learned, as JSON.

    Raises:
        ConfigError: An option is out of range, or `learned` is not what an `Adaptive` has learned.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",), buckets=sx.Adaptive(graphs=4))
        >>> _ = run(np.ones(5, np.float32))
        >>> run.settings.strategy("s").bucket(5)
        8
    """

    learns: ClassVar[bool] = True

    graphs: int = 16
    horizon: float = 1500.0
    horizon_seconds: float | None = None
    compile_calls: float = 5.0
    min_usage: float = 0.001
    cost: Literal["linear", "quadratic"] = "linear"
    start: Any = _POW2  # as `as_strategy` takes it; a Strategy after __post_init__
    learned: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "graphs", as_int(self.graphs, "graphs"))
        for name, (most, example) in _RANGES.items():
            value = getattr(self, name)
            if name == "horizon_seconds" and value is None:
                continue
            number = math.nan if isinstance(value, bool) else as_float(value)
            if not 0 < number < most:
                finite = "a finite number above 0"
                kind = finite if most == math.inf else f"a number above 0, below {most:g}"
                raise ConfigError(
                    f"{name}={value!r:.80} is not {kind}.", option=name, fix=f"{name}={example}"
                )
            object.__setattr__(self, name, number)
        if self.cost not in ("linear", "quadratic"):
            raise ConfigError(
                f"cost={self.cost!r:.80} is not known.",
                option="cost",
                fix='cost="linear" or "quadratic"',
            )
        object.__setattr__(self, "start", as_part(self.start, "start"))
        states_of(self.learned)

    def bucket(self, size: int) -> int:
        """Map a size to its bucket by `start`, as before anything is learned; see `Strategy`.

        Learned buckets are per symbol: see `of`.
        """
        return cast(Strategy, self.start).bucket(size)

    def of(self, symbol: str) -> Strategy:
        """Return the buckets of a symbol as they were learned.

        Args:
            symbol: Its name.

        Returns:
            A `Ladder`, past its end `start`; `start` alone if nothing was learned.

        Example:
            >>> Adaptive().of("s")
            Pow2()
        """
        return strategy_at(self, states_of(self.learned).get(symbol, State()).ladder)

    def __repr__(self) -> str:
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        if self.learned:
            known = states_of(self.learned).items()
            given["learned"] = ", ".join(f"{s}: {own.requests} requests" for s, own in known)
        return f"Adaptive({', '.join(f'{name}={value!r}' for name, value in given.items())})"


_RANGES: Mapping[str, tuple[float, str]] = {
    "horizon": (math.inf, "1500"),
    "horizon_seconds": (math.inf, "3600, or None"),
    "compile_calls": (1e15, "5"),
    "min_usage": (1.0, "0.001"),
}
"""Per option its exclusive upper bound (the lower one is 0), and an example."""


def strategy_at(rule: Adaptive, ladder: tuple[int, ...]) -> Strategy:
    """The strategy of some buckets, ascending, and of `start` past them; there may be none."""
    return Ladder(ladder, beyond=rule.start) if ladder else rule.start


_COUNTS = ("requests", "compiles", "changes")
_BUCKETS = ("ladder", "held", "refused")


def text_of(states: Mapping[str, State]) -> str:
    """What was learned, by symbol, as JSON; the same text for the same states."""
    if not states:
        return ""
    told = {
        symbol: dataclasses.asdict(own) | {"weights": [[*pair] for pair in own.weights.items()]}
        for symbol, own in states.items()
    }
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def states_of(text: Any) -> dict[str, State]:
    """The states that `text_of` has written.

    Raises:
        ConfigError: `text` is not from `text_of`.
    """
    if text == "":
        return {}
    try:
        return {str(symbol): _state_of(own) for symbol, own in json.loads(text).items()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ConfigError(
            f"learned={text!r:.80} is not what an Adaptive has learned.",
            option="learned",
            fix='the `learned` of a strategy in run.settings.strategies, or "" for nothing',
        ) from None


def _state_of(own: Mapping[str, Any]) -> State:
    pairs = [(as_int(size, "size"), as_float(weight)) for size, weight in own["weights"]]
    buckets = {name: tuple(as_int(end, name) for end in own[name]) for name in _BUCKETS}
    counts = {name: int(own[name]) for name in _COUNTS}
    now = None if own["now"] is None else as_float(own["now"])
    others: dict[str, Any] = {**buckets, **counts}
    state = State(dict(pairs), now=now, due=as_float(own["due"]), **others)
    ascending = [[*state.weights], *buckets.values()]
    numbers = [state.due, now or 0.0, *state.weights.values()]
    if not all(map(math.isfinite, numbers)) or any(sorted({*n}) != [*n] for n in ascending):
        raise ValueError("a number is not finite, or sizes do not ascend")  # see `states_of`
    return state
