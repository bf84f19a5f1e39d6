"""The events of an Exec, for callbacks and for the logger `shapeexec`.

`_store`, `_making` and `_planner` emit them; nothing here changes what runs.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from shapeexec._errors import ConfigError, sizes_text
from shapeexec.execution._row import GraphRow

EventKind = Literal[
    "call", "compiling", "compiled", "failed", "evicted", "exact", "swapped", "loaded", "ladder"
]

_LEVELS: Mapping[EventKind, int] = {
    "call": logging.DEBUG,
    "compiling": logging.DEBUG,
    "compiled": logging.INFO,
    "failed": logging.WARNING,
    "evicted": logging.INFO,
    "exact": logging.WARNING,
    "swapped": logging.INFO,
    "loaded": logging.INFO,
    "ladder": logging.INFO,
}

_logger = logging.getLogger("shapeexec")
_logger.addHandler(logging.NullHandler())  # a library prints nothing by itself


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that an `Exec` has done; `str` describes it in words.

    Attributes:
        kind: `"call"`: a call, or one graph's part of a map, was dispatched to the device.
            `"compiling"`, `"compiled"`, `"failed"`: a graph is about to be compiled, is compiled,
            or could not be compiled or, borrowed by a call whose own graph is missing
            (`missing="larger"`), did not fit into memory. `"evicted"`: a graph was evicted because
            of a limit of the cache, or because it is no longer on the ladder. `"exact"`: symbols
            run at their exact sizes from now on. `"swapped"`: a tuned graph has replaced a quick
            one. `"loaded"`: a graph was read from a file instead of compiled. `"ladder"`: an
            `Adaptive` strategy has changed its buckets.
        name: The name of the function.
        graph: The graph. Until it is compiled it has no `seconds` and no `bytes`. None with
            `"exact"` and `"ladder"`.
        sizes: The true size of each symbol of the call; empty if the event is not about a call, and
            for maps.
        seconds: With `"call"` the time from the call to its result, in seconds by the clock; on an
            accelerator the device may still work on it. With `"compiled"` and `"loaded"` the
            time that making or reading the graph took. Else None.
        is_hit: With `"call"` whether the graph was already compiled. Else None.
        reason: The reason, with `"exact"`, `"failed"` and `"ladder"`.

    Example:
        >>> run, seen = sx.Exec(jnp.sum, ("s",)), []
        >>> stop = run.on_event(seen.append)
        >>> _ = run(np.ones(5, np.float32))
        >>> [(event.kind, event.graph.sizes) for event in seen]
        [('compiling', 's=8'), ('compiled', 's=8'), ('call', 's=8')]
    """

    kind: EventKind
    name: str
    graph: GraphRow | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    seconds: float | None = None
    is_hit: bool | None = None
    reason: str = ""

    def __str__(self) -> str:
        parts = [f"{self.name}: {self.kind}"]
        if self.sizes:
            parts.append(sizes_text(self.sizes))
        if self.graph is not None:
            parts.append(f"in {self.graph.sizes}" if self.sizes else self.graph.sizes)
        if self.is_hit is not None:
            parts.append("hit" if self.is_hit else "miss")
        if self.seconds is not None:
            parts.append(f"{self.seconds * 1e3:.3g} ms")
        return " ".join(parts) + (f": {self.reason}" if self.reason else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the event as values that JSON knows: times in seconds."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        graph = None if self.graph is None else self.graph.to_dict()
        return {**fields, "graph": graph, "sizes": dict(self.sizes)}


Callback = Callable[[Event], object]


@dataclasses.dataclass(frozen=True)
class _Failure:
    """A block that makes a graph; an exception that leaves it is emitted and propagates."""

    events: "Events"
    graph: GraphRow

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, Exception):
            reason = f"{type(error).__name__}: {error!s:.400}"
            self.events.emit("failed", self.graph, reason=reason)


class Events:
    """The callbacks of an Exec.

    Args:
        name: The name of the function of the Exec.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._callbacks: tuple[Callback, ...] = ()

    def add(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` for each event from now on, until the returned function is called.

        Raises:
            ConfigError: `callback` cannot be called.
        """
        if not callable(callback):
            raise ConfigError(
                f"on_event: {callback!r:.80} cannot be called.",
                option="callback",
                fix="run.on_event(lambda event: print(event))",
            )

        def own(event: Event) -> object:  # identifies this `add`: a callback may be added twice
            return callback(event)

        def stop() -> None:
            with self._lock:
                self._callbacks = tuple(held for held in self._callbacks if held is not own)

        with self._lock:
            self._callbacks = (*self._callbacks, own)
        return stop

    def are_heard(self, kind: EventKind) -> bool:
        """Whether a callback or the logger takes such events; a hit makes no event otherwise."""
        return bool(self._callbacks) or _logger.isEnabledFor(_LEVELS[kind])

    def emitting_failure(self, graph: GraphRow) -> contextlib.AbstractContextManager[None]:
        """Emit `"failed"` if an exception leaves the block, which makes the graph."""
        return _Failure(self, graph)

    def emit(self, kind: EventKind, graph: GraphRow | None = None, **fields: Any) -> None:
        """Emit an event, in this thread. An error of a callback is logged, and stops nothing.

        Args:
            kind: See `Event`.
            graph: See `Event`.
            **fields: Other fields of `Event`.
        """
        if not self.are_heard(kind):
            return
        event = Event(kind, self._name, graph, **fields)
        _logger.log(_LEVELS[kind], "%s", event)
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception:  # of any kind: a callback must not stop a call
                _logger.exception("a callback of on_event failed at %s", event)
