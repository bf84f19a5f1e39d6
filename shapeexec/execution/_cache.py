"""Limits on compiled graphs, and the least-recently-used cache that keeps to them.

The caller compiles: it passes `get` a function that does.
"""

import collections
import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from shapeexec._errors import ConfigError
from shapeexec.bucketing._checks import is_int
from shapeexec.execution._fork import tell_of_forks
from shapeexec.execution._narrow import is_listed, is_mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheLimits:
    """Bounds on the compiled graphs that one `Exec` keeps.

    Attributes:
        graphs: The maximum number of graphs; the least recently used is evicted first. None: no
            bound.
        device_bytes: The maximum memory of all graphs, in bytes, as XLA reports it: temporary
            buffers and code. One graph is always kept. None: no bound.
        pin: Buckets whose graphs are never evicted, such as `[{"b": 8, "s": 128}]`. An entry that
            names only some symbols pins all graphs with these buckets. Graphs of maps are not
            pinned.

    Raises:
        ConfigError: A limit is not a positive integer, or a pin names no buckets.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",), buckets=sx.Exact(), limits=sx.CacheLimits(graphs=1))
        >>> for size in (3, 5):
        ...     _ = run(np.ones(size, np.float32))
        >>> run.cache_size, run.stats.evictions
        (1, 1)
    """

    graphs: int | None = 256
    device_bytes: int | None = None
    pin: Sequence[Mapping[str, int]] = dataclasses.field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pin", _as_pins(self.pin))
        for name in ("graphs", "device_bytes"):
            limit = getattr(self, name)
            if limit is None:
                continue
            if not is_int(limit):
                raise ConfigError(
                    f"{name}={limit!r} is not an integer.", option=name, fix=f"{name}=256 or None"
                )
            if limit < 1:
                raise ConfigError(
                    f"{name}={limit}: no graph fits.", option=name, fix=f"{name}=1 or None"
                )
            object.__setattr__(self, name, int(limit))  # which `save` writes

    def __repr__(self) -> str:
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        return f"CacheLimits({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def doubled(self) -> "CacheLimits":
        """Double each limit."""
        graphs, size = (limit and 2 * limit for limit in (self.graphs, self.device_bytes))
        return CacheLimits(graphs=graphs, device_bytes=size, pin=self.pin)

    def are_pinned(self, buckets: Mapping[str, int]) -> bool:
        """Say whether the graph of a call with these buckets is never evicted.

        Args:
            buckets: By symbol.

        Returns:
            Whether some entry of `pin` has no other bucket for a symbol.
        """
        return any(
            all(buckets.get(symbol) == size for symbol, size in pin.items()) for pin in self.pin
        )


def _as_pins(given: Any) -> tuple[Mapping[str, int], ...]:
    pins = (given,) if is_mapping(given) else given
    if not is_listed(pins) or not all(map(_is_pin, pins)):
        raise ConfigError(
            f"pin={given!r:.80} names no buckets.",
            option="pin",
            fix='a bucket for each symbol: pin=[{"b": 8, "s": 128}]',
        )
    return tuple({symbol: int(size) for symbol, size in pin.items()} for pin in pins)


def _is_pin(pin: Any) -> bool:
    """Whether it is a mapping of names to sizes, and not empty."""
    return (
        is_mapping(pin)
        and bool(pin)
        and all(
            isinstance(symbol, str) and is_int(size) and size > 0 for symbol, size in pin.items()
        )
    )


_MOST_REMEMBERED = 4096


class HasBytes(Protocol):
    """An entry of a cache."""

    @property
    def device_bytes(self) -> int:
        """The memory it holds, in bytes."""
        ...


Entry = TypeVar("Entry", bound=HasBytes)


class _Flight:
    """An entry that one thread is making, and for which other threads wait."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.get_ident()

    def wait(self, key: Hashable) -> None:
        """Wait until the entry is made.

        Args:
            key: The key of the entry.

        Raises:
            ConfigError: The other thread waits for this one: a deadlock.
        """
        own = threading.get_ident()
        try:
            with _waiting_lock:
                last = self._awaited_last()
                if last.thread == own:
                    raise _circle(key, is_own=last is self)
                _waiting[own] = self
            self.done.wait()
        finally:
            with _waiting_lock:
                _waiting.pop(own, None)

    def _awaited_last(self) -> "_Flight":
        """Follow the wait-for chain.

        Returns:
            The flight owned by this thread (a deadlock), or the end of the chain.
        """
        flight = self
        while flight.thread != threading.get_ident():
            awaited = _waiting.get(flight.thread)
            if awaited is None or awaited.done.is_set():  # that thread is running
                break
            flight = awaited
        return flight


def _circle(key: Hashable, *, is_own: bool) -> ConfigError:
    return ConfigError(
        "this thread requested a graph while it was compiling "
        + ("that graph." if is_own else "one for which the thread of that graph waits."),
        got=f"{key!s:.200}",
        why="the graph would wait for itself" if is_own else "both would wait forever",
        fix=f"do not call an Exec in a callback of {'its ' if is_own else ''}on_event",
    )


_waiting_lock = threading.Lock()
_waiting: dict[int, _Flight] = {}
"""By thread the making that it waits for, in whichever cache: waiting in a circle never ends."""


def _like(error: Exception) -> Exception:
    """An exception of the same class, text and fields, caused by `error`: for another thread.

    Threads that raise one object would write their tracebacks and notes into one another's.
    """
    if any(_has_fields(base) for base in type(error).__mro__):
        return error
    try:
        own = _bare(error)
        own.args = error.args  # some set them where they are initialized
        own.__dict__.update(error.__dict__)
        if hasattr(own, "__notes__"):
            own.__notes__ = list(own.__notes__)
        is_like = str(own) == str(error)
    except Exception:  # of any kind: the class's own
        return error
    own.__cause__ = error
    return own if is_like else error


def _bare(error: Exception) -> Exception:
    """An exception of the same class and `args`, made without its `__init__`.

    That may take other arguments than it keeps. Of several bases one alone makes such objects.

    Raises:
        Exception: The class refuses; of any kind.
    """
    kind = type(error)
    for base in kind.__mro__:
        with contextlib.suppress(TypeError):
            return base.__new__(kind, *error.args)
    raise TypeError("no base makes such an object")  # `_like` passes the error itself on


def _has_fields(kind: type) -> bool:
    """Whether a class keeps fields outside of `__dict__` and `args`, as `OSError` does."""
    own = vars(kind).items()
    return kind not in (object, BaseException) and any(
        inspect.isdatadescriptor(held) and not isinstance(held, property)
        for name, held in own
        if name not in ("__dict__", "__weakref__")
    )


class GraphCache(Generic[Entry]):
    """Entries by key; the least recently used are evicted when a limit is exceeded.

    Concurrent first calls at one key make its entry once. If that fails, the threads that wait get
    the error, and nothing is kept: the next call tries again.

    Args:
        limits: The limits.
        evicted: Called with each evicted entry.
        is_pinned: Whether an entry is never evicted.

    Attributes:
        evictions: How many entries were evicted because of a limit.
        remade: How many evicted entries were made again.
    """

    def __init__(
        self,
        limits: CacheLimits,
        *,
        evicted: Callable[[Entry], object] = lambda entry: None,
        is_pinned: Callable[[Entry], bool] = lambda entry: False,
    ) -> None:
        self._evicted, self._is_pinned = evicted, is_pinned
        self.evictions = 0
        self.remade = 0
        self._limits = limits
        self._left: set[int] = set()
        self._lock = threading.Lock()
        self._entries: collections.OrderedDict[Hashable, Entry] = collections.OrderedDict()
        self._flights: dict[Hashable, _Flight] = {}
        tell_of_forks(self)

    def forked(self) -> None:
        """See `Forked`: entries that other threads were making are made again."""
        own = threading.get_ident()
        self._lock = threading.Lock()
        _waiting.clear()
        self._flights = {k: flight for k, flight in self._flights.items() if flight.thread == own}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    @property
    def device_bytes(self) -> int:
        """The memory of all entries, in bytes."""
        with self._lock:
            return sum(entry.device_bytes for entry in self._entries.values())

    def counts(self) -> dict[str, int]:
        """The counts of the cache, by the names of `Stats`."""
        return {
            "graphs": len(self),
            "device_bytes": self.device_bytes,
            "evictions": self.evictions,
            "remade": self.remade,
        }

    def find(self, key: Hashable) -> Entry | None:
        """The entry at `key`, marked as used now; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def get(self, key: Hashable, make: Callable[[], Entry]) -> Entry:
        """The entry at `key`, made by `make` if it is missing.

        Raises:
            Exception: What `make` raised. If it raised in another thread, a copy whose `__cause__`
                is the original.
            ConfigError: A callback within `make` asks for the entry, or for an entry that another
                thread makes while it waits for this thread.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key]
                flight = self._flights.get(key)
                is_mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight()
            if is_mine:
                return self._make(key, make, flight=flight)
            flight.wait(key)
            if isinstance(flight.error, Exception):
                raise _like(flight.error)
            # The entry was made, or the other thread was interrupted: look again.

    def _make(self, key: Hashable, make: Callable[[], Entry], *, flight: _Flight) -> Entry:
        try:
            entry = make()
        except BaseException as error:  # an interrupt must free the waiting threads too
            flight.error = error
            with self._lock:
                del self._flights[key]
            flight.done.set()
            raise
        with self._lock:
            self._entries[key] = entry
            del self._flights[key]
            self.remade += hash(key) in self._left
            gone = self._shrink()
        flight.done.set()
        for other in gone:
            self._evicted(other)
        return entry

    def holds(self, entry: Entry, key: Hashable) -> bool:
        """Whether this object, and not an equal one, is the entry at `key`."""
        return self._entries.get(key) is entry

    def replace(self, entry: Entry, key: Hashable, *, other: Entry) -> bool:
        """Replace an entry; False if it is no longer in the cache."""
        with self._lock:
            is_there = self.holds(entry, key)
            if is_there:
                self._entries[key] = other
            gone = self._shrink()
        for left in gone:
            self._evicted(left)
        return is_there

    def drop(self, key: Hashable) -> None:
        """Forget the entry at `key`, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def entries(self) -> list[Entry]:
        """All entries, the least recently used first. This does not count as a use."""
        with self._lock:
            return list(self._entries.values())

    def clear(self) -> None:
        """Forget all entries; one that a thread is making now is kept when it is done."""
        with self._lock:
            self._entries.clear()

    def _shrink(self) -> list[Entry]:
        """Remove entries until the limits hold, and return them."""
        gone: list[Entry] = []
        *others, _ = self._entries or [None]
        for key in others:  # the newest one stays
            if not self._is_over():
                break
            if self._is_pinned(self._entries[key]):
                continue
            gone.append(self._entries.pop(key))
            self.evictions += 1
            if len(self._left) < _MOST_REMEMBERED:
                self._left.add(hash(key))
        return gone

    def _is_over(self) -> bool:
        graphs, most_bytes = self._limits.graphs, self._limits.device_bytes
        if graphs is not None and len(self._entries) > graphs:
            return True
        held = sum(entry.device_bytes for entry in self._entries.values())
        return most_bytes is not None and held > most_bytes
