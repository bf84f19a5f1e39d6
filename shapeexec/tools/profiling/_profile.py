"""`profile`: times calls by bucket, and then traces them by `jax.profiler`.

`_traces` reads the traces, and `_report` shows the figures.
"""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution import Event, Exec, GraphRow
from shapeexec.tools._clock import timed
from shapeexec.tools.profiling._report import Profile, ProfileRow
from shapeexec.tools.profiling._traces import seconds_by_operation, sources, traced

_OPERATIONS = 5


def profile(
    run: Exec, calls: Sequence[Sequence[Any]], *, directory: str | Path, rounds: int = 5
) -> Profile:
    """Report where the time of calls goes by bucket: making graphs, running them, slow operations.

    A variant of `run` begins with nothing compiled. Each bucket's calls are timed, and then run
    once more under `jax.profiler.trace`, each bucket with a folder of its own.

    Args:
        run: The Exec.
        calls: The positional arguments of each call.
        directory: The directory of the traces, for TensorBoard, XProf or Perfetto.
        rounds: How often each call is timed.

    Returns:
        The figures; `print` them.

    Raises:
        ConfigError: There are no calls, or the directory cannot be written.

    Example:
        >>> import tempfile
        >>> run = sx.Exec(jnp.sort, ("s",))
        >>> calls = [(np.ones(n, np.float32),) for n in (5, 6, 9)]
        >>> found = profile(run, calls, directory=tempfile.mkdtemp(), rounds=1)
        >>> [(row.bucket, row.calls) for row in found.rows]
        [('s=8', 2), ('s=16', 1)]
    """
    if not calls or rounds < 1:
        raise ConfigError(
            f"calls={len(calls)}, rounds={rounds}: nothing would run.",
            option="rounds" if calls else "calls",
            fix="one or more of each",
        )
    folder = Path(directory)
    own = run.variant(returns="device", donate_argnums=())
    rows: list[ProfileRow] = []
    for number, (graph, members) in enumerate(_by_graph(own, calls)):
        seconds = [timed(lambda args=args: own(*args))[0] for args in members * rounds]
        name = f"{number:02}-{re.sub(r'[^A-Za-z0-9=]+', '-', graph.sizes)}"
        place = _made(folder / name)
        with traced(place):
            for args in members:
                timed(lambda args=args: own(*args))
        kept = {row.key: row for row in own.graphs}.get(graph.key, graph)
        rows.append(_row(kept, len(members), seconds=seconds, place=place))
    return Profile(tuple(rows), str(folder))


def _by_graph(run: Exec, calls: Sequence[Sequence[Any]]) -> list[tuple[GraphRow, list[Any]]]:
    """The graphs that calls run in, each with its calls; all are compiled then."""
    found: dict[Any, tuple[GraphRow, list[Any]]] = {}
    ran: list[GraphRow] = []

    def watch(event: Event) -> None:
        if event.kind == "call" and event.graph is not None:
            ran.append(event.graph)

    stop = run.on_event(watch)
    for args in calls:
        timed(lambda args=args: run(*args))
        graph = ran[-1]
        found.setdefault(graph.key, (graph, []))[1].append(args)
    stop()
    return list(found.values())


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error}.",
            option="directory",
            fix="a directory that can be written",
        ) from error
    return folder


def _row(graph: GraphRow, calls: int, *, seconds: Sequence[float], place: Path) -> ProfileRow:
    names = sources(graph.hlo()) if graph.compiled is not None else {}
    spent = seconds_by_operation(place)
    return ProfileRow(
        bucket=graph.sizes,
        calls=calls,
        seconds=statistics.median(seconds),
        making=graph.seconds,
        waste=graph.waste,
        operations=tuple(
            (f"{name} ({names[name]})" if names.get(name) else name, took / calls)
            for name, took in spent.most_common(_OPERATIONS)
        ),
        trace=str(place),
    )
