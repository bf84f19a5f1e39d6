"""Writing the graphs and options of an Exec into a directory.

`_files` writes the files.
"""

import dataclasses
import warnings
from collections.abc import Container
from pathlib import Path
from typing import Any

from shapeexec import _compat
from shapeexec._identity import UnsaveableError
from shapeexec.execution._compile import Graph
from shapeexec.execution._fork import check_may_make
from shapeexec.execution._settings import Settings
from shapeexec.execution._store import Store
from shapeexec.execution.saving import _files
from shapeexec.execution.saving._exported import (
    NotExportedError,
    check_may_export,
    exported,
)
from shapeexec.execution.saving._files import COMPILED, EXPORTED, DamagedError, entry_of
from shapeexec.execution.saving._fingerprint import device_of, fingerprint, parts_of
from shapeexec.execution.saving._saved import LoadedGraph, first_of, load_program
from shapeexec.execution.saving._written import written


def save(directory: Any, settings: Settings, *, store: Store, portable: bool) -> int:
    """Write the graphs of a store; see `Exec.save`."""
    if portable:
        check_may_export()
    path = _files.checked(directory, is_made=True)
    reasons: list[str] = []
    not_exported: list[str] = []
    refused = frozenset[str]() if store.making.saved is None else store.making.saved.refused
    count = 0
    for graph in store.graphs():
        try:
            why = _save_graph(path, graph, settings=settings, refused=refused, portable=portable)
            count += 1
            not_exported += [] if why is None else [f"{graph.row.sizes}: {why}"]
        except OSError as error:
            raise _files.unusable(directory, error) from error
        except _NotSavedError as error:
            reasons.append(f"{graph.row.sizes}: {error}")
    content = {
        "options": written(settings, store.limits),
        "found": [one.to_json() for one in settings.found],
        "statistics": dataclasses.asdict(store.stats),
        "graphs": [graph.row.to_dict() for graph in store.graphs()],
    }
    try:
        _files.write_json(path / _files.MANIFEST, content)
    except OSError as error:
        raise _files.unusable(directory, error) from error
    _warn(
        reasons,
        path,
        what="not saved",
        fix="nothing is wrong with them: a process that loads makes them anew",
    )
    _warn(
        not_exported,
        path,
        what="saved for this kind of machine alone",
        fix="nothing is wrong with them: on another kind they are made anew",
    )
    return count


class _NotSavedError(Exception):
    """A graph cannot be saved."""


def _save_graph(
    directory: Path, graph: Graph, *, settings: Settings, refused: Container[str], portable: bool
) -> str | None:
    """Write one graph, unless its files exist.

    Args:
        directory: Where.
        graph: The graph.
        settings: The settings of its Exec.
        refused: The names of graphs whose files are intact but cannot be run.
        portable: See `Exec.save`.

    Returns:
        Why its program is not written for other machines, if `portable`; None: it is written.

    Raises:
        _NotSavedError: It cannot be saved.
        ConfigError: This process was forked.
        OSError: The directory cannot be written.
    """
    if graph.row.origin == "quick":
        raise _NotSavedError("its tuned graph is not compiled yet")
    try:
        parts = parts_of(graph.outline, graph.options, constraints=settings.constraints)
    except UnsaveableError as error:
        raise _NotSavedError(str(error)) from error
    name = fingerprint(parts)
    if name not in refused and _files.is_whole(directory, name, is_exported=portable):
        return None
    payloads, why = {COMPILED: _payload(graph)}, None
    try:
        kept = None if portable else _files.read_exported(directory, name)
        if portable or kept is not None:
            payloads[EXPORTED] = _exported(graph) if kept is None else kept
    except NotExportedError as error:
        why = str(error)
    entry = entry_of(
        payloads,
        fingerprint=name,
        name=graph.outline.name,
        parts=parts,
        devices=_compat.devices_of_program(graph.compiled),
        row=graph.row.to_dict(),
    )
    _files.write_graph(directory, entry, payloads=payloads)
    return why


def _exported(graph: Graph) -> bytes:
    """The program of a graph before XLA compiles it.

    Raises:
        NotExportedError: It has no exported program.
    """
    if not isinstance(graph, LoadedGraph):
        return exported(graph)
    if not graph.entry.is_exported:
        raise NotExportedError("it was loaded from a file that has no exported program")
    try:
        return _files.read_graph(graph.saved.directory, graph.entry, suffix=EXPORTED)
    except (DamagedError, OSError) as error:
        raise NotExportedError(str(error)) from error


def _payload(graph: Graph) -> bytes:
    """The bytes of a graph, which can be loaded again.

    Raises:
        _NotSavedError: JAX or XLA cannot write it, or read it again.
        ConfigError: This process was forked.
    """
    if isinstance(graph, LoadedGraph):  # XLA may not write what it has read
        try:
            return _files.read_graph(graph.saved.directory, graph.entry)
        except (DamagedError, OSError) as error:
            raise _NotSavedError(str(error)) from error
    if graph.is_cached and device_of(graph.outline).platform == "cpu":
        # XLA would write it without its code, which is found missing when it runs.
        raise _NotSavedError("it came from JAX's own compilation cache")
    check_may_make(f"what is saved of {graph.row.sizes}")  # it is loaded once
    try:
        payload = _compat.serialized(graph.compiled)
        load_program(payload, graph.outline, devices=_compat.devices_of_program(graph.compiled))
    except Exception as error:  # of any kind: the back end's
        text = f"JAX cannot serialize it: {type(error).__name__}: {error!s:.200}"
        raise _NotSavedError(text) from error
    return payload


def _warn(reasons: list[str], directory: Path, *, what: str, fix: str) -> None:
    if not reasons:
        return
    warnings.warn(
        f"shapeexec: {len(reasons)} graphs are {what}: {first_of(reasons)}\n"
        f"  Where: {directory}\n"
        f"  Fix:   {fix}",
        RuntimeWarning,
        stacklevel=3,
    )
