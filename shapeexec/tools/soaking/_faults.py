"""Injects failures, and knows the error that each failure must become.

Compilations and runs fail through `Store.compiler`, callbacks through `Exec.on_event`. Files of
saved graphs are damaged in the restart of a service, by `_damage`.
"""

import collections
import dataclasses
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from shapeexec import _compat
from shapeexec._errors import ConfigError, OutOfMemoryError
from shapeexec.execution import Event
from shapeexec.execution._compile import Graph, Prepared, compile_graph
from shapeexec.execution._row import GraphRow
from shapeexec.tools._machine import cores
from shapeexec.tools.soaking import _damage

Place = Literal["compile", "run", "callback", "files"]


class WorkerDiedError(BaseException):
    """Not an `Exception`, like the errors that end a thread from outside."""


class CallbackError(Exception):
    """Raised by a callback of `on_event`."""


def _internal(mark: str) -> BaseException:
    return _compat.JaxRuntimeError(f"INTERNAL: {mark}")


def _full(mark: str) -> BaseException:
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes"
    return _compat.JaxRuntimeError(f"{text}, {mark}")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of failure.

    Attributes:
        name: The name of its row in the report.
        at: The place where it happens.
        rate: Its share, 0 to 1, of all compilations, runs, events or restarts.
        error: Makes the error to raise, from a string that marks it; None: nothing is raised.
        becomes: The error that the affected call raises; None: the call goes on.
        damage: The damage to the directory of saved graphs.
    """

    name: str
    at: Place
    rate: float
    error: Callable[[str], BaseException] | None
    becomes: type[BaseException] | None
    damage: _damage.Damage | None = None


KINDS = (
    Kind("compile: XLA fails", "compile", 0.02, _internal, _compat.JaxRuntimeError),
    Kind("compile: no memory", "compile", 0.02, _full, OutOfMemoryError),
    Kind("compile: the worker dies", "compile", 0.01, WorkerDiedError, WorkerDiedError),
    Kind("compile: slow", "compile", 0.02, None, None),
    Kind("run: XLA fails", "run", 0.001, _internal, _compat.JaxRuntimeError),
    Kind("run: no memory", "run", 0.001, _full, OutOfMemoryError),
    Kind("callback: raises", "callback", 0.01, CallbackError, None),
    Kind("files: truncated", "files", 0.15, None, None, _damage.truncate),
    Kind("files: a bit flips", "files", 0.15, None, None, _damage.flip),
    Kind("files: of another Exec", "files", 0.15, None, None, _damage.mix_up),
    Kind("files: the saver dies", "files", 0.15, None, None, _damage.half_write),
    Kind("files: the directory vanishes", "files", 0.1, None, ConfigError, _damage.vanish),
)
RATES: Mapping[str, float] = {kind.name: kind.rate for kind in KINDS}

_SLOW = 1.0
"""Seconds that a slow compilation takes in addition."""

_MARK = re.compile(r"injected fault (\d+)")


@dataclasses.dataclass(frozen=True)
class Fault:
    """One failure that was injected."""

    kind: Kind
    number: int

    @property
    def mark(self) -> str:
        """The text by which its error is recognised."""
        return f"injected fault {self.number}"

    def damage(self, directory: Path) -> None:
        """Damage a directory of saved graphs, in the same way each time."""
        assert self.kind.damage is not None
        _damage.inflict(self.kind.damage, directory, rng=random.Random(self.number))

    def happen(self) -> None:
        """Fail.

        Raises:
            BaseException: The error of its kind.
        """
        if self.kind.error is None:
            time.sleep(_SLOW)
            return
        raise self.kind.error(self.mark)


class Faults:
    """Injects failures, and recognises their errors.

    Args:
        seed: The seed of the draws.
        rates: How often each kind happens, by name; kinds that are missing do not happen.

    Attributes:
        injected: The number of injected failures, by kind.
        came_out: The number of calls that raised one of them, by kind.
    """

    def __init__(self, seed: int, rates: Mapping[str, float] = RATES) -> None:
        unknown = rates.keys() - RATES.keys()
        if unknown:
            raise ConfigError(
                f"there is no fault {min(unknown)!r}.",
                option="rates",
                fix=f"choose from {', '.join(RATES)}",
            )
        self.injected: collections.Counter[str] = collections.Counter()
        self.came_out: collections.Counter[str] = collections.Counter()
        self._rates, self._random, self._lock = rates, random.Random(seed), threading.Lock()
        self._kinds: list[Kind] = []
        # With many compilations at once XLA makes some wait: with 32 threads of plain JAX on two
        # cores the median compilation took 5 s, and one took 51 s. That would hide our stalls.
        self._turns = threading.Semaphore(2 * cores())

    # Injecting

    def draw(self, at: Place) -> Fault | None:
        """A failure to inject at a place, or None."""
        kinds = [kind for kind in KINDS if kind.at == at and self._rates.get(kind.name)]
        with self._lock:
            for kind in kinds:
                if self._random.random() < self._rates[kind.name]:
                    self.injected[kind.name] += 1
                    self._kinds.append(kind)
                    return Fault(kind, len(self._kinds) - 1)
        return None

    def compile(
        self, prepared: Prepared, row: GraphRow, *, meanwhile: Callable[[], object] | None
    ) -> Graph:
        """Replaces `compile_graph`: it may fail as XLA would, and so may the graphs it makes."""
        fault = self.draw("compile")
        if fault is not None:
            trace = prepared.trace
            prepared = dataclasses.replace(prepared, trace=lambda: _Failing(trace(), fault))
        with self._turns:
            graph = compile_graph(prepared, row, meanwhile=meanwhile)
        return dataclasses.replace(graph, jitted=self._run(graph.jitted))

    def called_back(self, event: Event) -> None:
        """A callback of `on_event`."""
        del event
        fault = self.draw("callback")
        if fault is not None:
            fault.happen()

    def _run(self, jitted: Any) -> Any:
        def run(*args: Any) -> Any:
            fault = self.draw("run")
            if fault is not None:
                fault.happen()
            return jitted(*args)

        return run

    # Recognising

    def caused(self, error: BaseException) -> Kind | None:
        """The kind of the failure that rightly became this error; None: no failure did."""
        found = _MARK.search(str(error))
        kind = self._kinds[int(found[1])] if found else None
        if kind is None or kind.becomes is None or not isinstance(error, kind.becomes):
            return None
        with self._lock:
            self.came_out[kind.name] += 1
        return kind


class _Failing:
    """A lowered program whose compilation fails, in the thread that compiles it."""

    def __init__(self, traced: Any, fault: Fault) -> None:
        self._stage, self._fault = traced, fault

    def lower(self) -> "_Failing":
        """The method of a traced program."""
        return _Failing(self._stage.lower(), self._fault)

    def compile(self) -> Any:
        """The method of a lowered program.

        Raises:
            BaseException: See `Fault.happen`.
        """
        self._fault.happen()
        return self._stage.compile()
