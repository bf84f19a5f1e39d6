"""Saved graphs: which one a call can run in, and how it is loaded.

`_files` reads them, and `_fingerprint` says which fits. If none fits the graph is compiled again,
with one warning that says why.
"""

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shapeexec import _compat
from shapeexec._identity import UnsaveableError
from shapeexec.execution import _worker
from shapeexec.execution._compile import Graph, Outline, Prepared, bytes_of, prepare
from shapeexec.execution._fork import check_may_make
from shapeexec.execution._key import Key
from shapeexec.execution._permission import SignatureChanged, is_permitted
from shapeexec.execution._row import GraphRow, GraphSeconds
from shapeexec.execution._settings import Settings
from shapeexec.execution._worker import Meanwhile
from shapeexec.execution.saving._exported import imported
from shapeexec.execution.saving._files import EXPORTED, DamagedError, Entry, read_graph
from shapeexec.execution.saving._fingerprint import (
    Parts,
    array_type,
    device_of,
    exported_name,
    fingerprint,
    parts_of,
)
from shapeexec.shape import _trees

_MOST_TOLD = 3


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedGraph(Graph):
    """A graph that was saved by another process.

    Attributes:
        entry: The content of its JSON file.
        saved: The directory.
    """

    entry: Entry = dataclasses.field(kw_only=True)
    saved: "Saved" = dataclasses.field(kw_only=True)

    def __call__(self, sizes: Any, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> Any:
        """See `Graph.__call__`."""
        try:
            return self.begun(self.jitted(sizes, self.consts, kwargs, *args))
        except TypeError as error:  # another tree, or no arrays; never from the program
            raise SignatureChanged from error


def is_given_up(graph: Graph, error: Exception, *, drop: Callable[[Key], object]) -> bool:
    """Whether a call may compile its failed graph again: it was loaded, and has never run.

    Args:
        graph: The graph. If it was loaded and has never run, it is dropped, with a warning.
        error: The error of the run.
        drop: Forgets the graph of a key.
    """
    if not isinstance(graph, LoadedGraph) or graph.tally.used is not None:
        return False
    drop(graph.row.key)
    graph.saved.drop(graph.entry, error)
    return not graph.outline.donated  # donated arguments may be gone


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A saved graph that fits a call and is not loaded yet; the store keeps it like a `Prepared`.

    Attributes:
        outline: The inputs from which the graph would be made.
        entry: The content of its JSON file.
        saved: The directory.
        is_compiled: Whether it is compiled for this machine; else XLA has to compile it.
    """

    outline: Outline
    entry: Entry
    saved: "Saved"
    is_compiled: bool

    device_bytes = 0  # so that a `GraphCache` keeps it

    def graph(self, row: GraphRow, *, meanwhile: Meanwhile = None) -> LoadedGraph | None:
        """The graph; None: it is not compiled for this machine, or its file is damaged (a warning).

        Args:
            row: The row of the graph, without bytes and seconds.
            meanwhile: Work for this thread while another one loads.

        Raises:
            ConfigError: This process was forked.
        """
        if not self.is_compiled:
            return None
        check_may_make(f"a graph for {row.sizes}")

        def load() -> tuple[Any, Any, float]:
            start = time.perf_counter()
            payload = read_graph(self.saved.directory, self.entry)
            compiled, call = load_program(payload, self.outline, devices=self.entry.devices)
            return compiled, call, time.perf_counter() - start

        try:
            (compiled, call, seconds), check = _worker.beside(meanwhile, load)
        except Exception as error:  # of any kind: the bytes may be anything
            self.saved.drop(self.entry, error)
            return None
        return LoadedGraph(
            jitted=call,
            outline=self.outline,
            row=dataclasses.replace(
                row,
                bytes=bytes_of(compiled),
                seconds=GraphSeconds(self.outline.recipe.trace_seconds, check=check, load=seconds),
            ),
            compiled=compiled,
            compiles=0,
            entry=self.entry,
            saved=self.saved,
        )

    def prepared(self) -> Prepared:
        """The graph to be compiled: from its file if XLA alone has to, or from the trace.

        Raises:
            UnsupportedPrimitiveError: A primitive cannot be made exact.
        """
        if self.is_compiled:  # its file was damaged
            return prepare(self.outline)
        began = time.perf_counter()
        try:
            payload = read_graph(self.saved.directory, self.entry, suffix=EXPORTED)
            return imported(payload, self.outline, began=began)
        except Exception as error:  # of any kind: the bytes may be anything
            self.saved.drop(self.entry, error)
            others = self.saved.exported_like(self.entry.parts)
        if others:  # of another kind of machine
            return dataclasses.replace(self, entry=others[0]).prepared()
        return prepare(self.outline)

    def anew(self, error: Exception) -> Prepared:
        """The graph from the trace, with a warning, because its file is damaged.

        Raises:
            UnsupportedPrimitiveError: A primitive cannot be made exact.
        """
        self.saved.drop(self.entry, error)
        return prepare(self.outline)


def load_program(payload: bytes, outline: Outline, *, devices: Sequence[int]) -> tuple[Any, Any]:
    """A compiled program, and the function that calls it.

    Args:
        payload: The bytes. **They are unpickled.**
        outline: The inputs from which it was made.
        devices: The ids of its devices.

    Raises:
        Exception: The bytes are not a program for these devices and arguments; of any kind.
    """
    trees = (_trees.structure((outline.arguments, {})), outline.recipe.result_tree)
    client = device_of(outline).client
    known = {device.id: device for device in client.devices()}
    own = [known[number] for number in devices]
    return _compat.deserialized(payload, trees, devices=own, check=_Calls())


class _Calls:
    """Checks that a loaded program is only called with signatures that were planned for it.

    For a compiled graph JAX's trace checks that. A loaded one has no trace: calls with a signature
    that JAX's fast path has not seen come here, and all calls of programs that return typed keys.
    """

    def __init__(self) -> None:
        self._met: set[Any] = set()

    def __call__(self, args: Sequence[Any]) -> None:
        """Check a call; a permitted one adds its signature.

        Raises:
            SignatureChanged: The signature was not planned for this program.
        """
        signature = (_compat.config_fingerprint(), *map(array_type, args))
        if is_permitted():
            self._met.add(signature)
        elif signature not in self._met:
            raise SignatureChanged


def first_of(reasons: Sequence[str]) -> str:
    """The first reasons, and how many more there are."""
    more = len(reasons) - _MOST_TOLD
    return "; ".join([*reasons[:_MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


def may_fit(saved: Settings, wanted: Settings) -> bool:
    """Whether any graph that was saved under some settings may fit a call under others."""
    return all(getattr(saved, name) == getattr(wanted, name) for name in _ALIKE) and (
        saved.fn is wanted.fn and saved.compiling.options == wanted.compiling.options
    )


class Saved:
    """The graphs that a directory holds; safe to use from many threads.

    An Exec shares it with its copies, its methods and those of its variants that it may fit.

    Args:
        directory: The directory.
        entries: Its graphs, by fingerprint.
        constraints: The constraints on the sizes.
        reasons: Why some entries could not be read.
        sizes: The buckets of each graph of calls, for a warm-up.

    Attributes:
        refused: The fingerprints of graphs that could not be loaded or run; `save` rewrites them.
    """

    def __init__(
        self,
        directory: Path,
        entries: Mapping[str, Entry],
        *,
        constraints: tuple[Any, ...],
        reasons: Sequence[str] = (),
        sizes: Sequence[Mapping[str, int]] = (),
    ) -> None:
        self.directory, self.sizes = directory, tuple(sizes)
        self._entries, self._constraints = dict(entries), constraints
        self._exported: dict[str, tuple[Entry, ...]] = {}  # by what all kinds of machines share
        for entry in entries.values():
            if entry.is_exported:
                name = exported_name(entry.parts)
                self._exported[name] = (*self._exported.get(name, ()), entry)
        self._lock = threading.Lock()
        self._reasons = list(reasons)
        self._has_warned = False
        self.refused: set[str] = set()

    def find(self, outline: Outline, options: Mapping[str, Any]) -> Found | None:
        """The saved graph of an outline; None, with one warning that says why if that is known.

        Args:
            outline: The inputs from which the graph would be made.
            options: XLA's options.
        """
        if not self._entries and not self._reasons:
            return None
        try:
            parts = parts_of(outline, options, constraints=self._constraints)
        except UnsaveableError:
            return None  # it has never been saved
        entry = self._entries.get(fingerprint(parts))
        if entry is not None:
            return Found(outline, entry, self, is_compiled=True)
        shared = self.exported_like(parts)
        if shared:
            return Found(outline, shared[0], self, is_compiled=False)
        compared = [differs(entry.parts, parts) for entry in list(self._entries.values())]
        differences = [found for found in compared if found]
        self._warn(min(differences, key=len) if differences else ())
        return None

    def exported_like(self, parts: Parts) -> Sequence[Entry]:
        """The saved graphs with the same exported program as a graph with these parts."""
        return self._exported.get(exported_name(parts), ()) if self._exported else ()

    def drop(self, entry: Entry, error: Exception) -> None:
        """Forget a graph that cannot be loaded, with a warning that says why."""
        with self._lock:
            self._entries.pop(entry.fingerprint, None)
            others = tuple(own for own in self.exported_like(entry.parts) if own is not entry)
            self._exported[exported_name(entry.parts)] = others
            self.refused.add(entry.fingerprint)
        is_known = isinstance(error, DamagedError | OSError)
        reason = str(error) if is_known else f"{entry.name}: {type(error).__name__}: {error!s:.200}"
        self._warn([reason])

    def _warn(self, reasons: Sequence[str]) -> None:
        """Warn once, with all reasons so far."""
        with self._lock:
            self._reasons += [reason for reason in reasons if reason not in self._reasons]
            if self._has_warned or not self._reasons:
                return
            self._has_warned = True
            shown = first_of(self._reasons)
        warnings.warn(
            f"shapeexec: saved graphs do not fit, and are compiled again: {shown}\n"
            f"  Where: {self.directory}\n"
            "  Fix:   save() writes the new graphs; the old files may be deleted",
            RuntimeWarning,
            stacklevel=2,
        )


_ALIKE = ("constraints", "poison", "masking")
"""Settings that each graph of an Exec has in common."""

_CHANGES: Mapping[str, str] = {
    "constraints": "other constraints",
    "function": "another function",
    "numbers": "another function",
    "options": "other options of XLA",
    "poison": "other poison",
}
"""Parts that differ after changes of code or options; another part means another graph."""


def differs(saved: Parts, wanted: Parts) -> list[str]:
    """The differences of a saved graph from the wanted one; empty if it is another graph."""
    found: list[str] = []
    for group in wanted:
        old, new = saved.get(group, {}), wanted[group]
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                continue
            if group == "graph":
                if name not in _CHANGES:
                    return []
                found.append(_CHANGES[name])
            else:
                values = (old.get(name, "not set"), new.get(name, "not set"))
                found.append(f"{name} was {values[0] or 'empty'}, is {values[1] or 'empty'}")
    return list(dict.fromkeys(found))
