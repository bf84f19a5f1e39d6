"""`Exec.advise`: facts are gathered, and every observer is asked.

The observers are in `_of_buckets`, `_of_running`, `_of_program` and `_of_masks`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax

from shapeexec._errors import ConfigError
from shapeexec.costing import CostModel, Speed, speed_of
from shapeexec.execution._costs import cost_model
from shapeexec.execution._runner import Runner
from shapeexec.execution.analysis import _of_buckets, _of_masks, _of_program, _of_running
from shapeexec.execution.analysis._advice import Advice, AdviceLine
from shapeexec.execution.analysis._analyze import analysis_of
from shapeexec.execution.analysis._facts import Facts, typical_of
from shapeexec.execution.analysis._timed import TimedMask, timed_masks, why_not_timed

Timed = Literal["masks"]
Observer = Callable[[Facts], Iterable[AdviceLine]]

OBSERVERS: tuple[Observer, ...] = (
    _of_buckets.strategy,
    _of_buckets.waste,
    _of_buckets.guards,
    _of_running.thrash,
    _of_running.copies,
    _of_program.attention,
    _of_program.packed,
    _of_masks.masks,
)


def advise(
    runner: Runner,
    speed: Speed | None,
    *,
    timed: Timed | None,
    make: Callable[[Mapping[str, Any]], Any],
) -> Advice:
    """See `Exec.advise`.

    Args:
        runner: The runner of the Exec.
        speed: See `Exec.advise`.
        timed: See `Exec.advise`.
        make: Makes an Exec with changed settings.
    """
    if speed is not None and not isinstance(speed, Speed):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller without a type checker may pass anything
        raise ConfigError(
            f"advise: {speed!r:.80} is not a Speed.",
            option="speed",
            fix="speed=sx.Speed(...), or None: that of this device is measured",
        )
    if timed not in (None, "masks"):
        raise ConfigError(
            f"advise: timed={timed!r:.40} cannot be timed.",
            option="timed",
            fix='timed="masks", or None: nothing runs',
        )
    analysis = analysis_of(runner)
    if not analysis.calls:
        raise ConfigError(
            f"advise: {analysis.name} was not called yet.",
            fix="call it with what it will see, and ask then",
        )
    masks, note = ((), None) if timed is None else _timed_of(runner)
    facts = Facts(
        settings=runner.current,
        limits=runner.store.limits,
        analysis=analysis,
        rows=runner.graphs.rows,
        model=_model(runner),
        speed=speed_of() if speed is None else speed,
        platform=jax.default_backend(),
        masks=masks,
    )
    notes = () if note is None else (f"the masks were not timed: {note}",)
    return dataclasses.replace(advice_of(facts, make=make), notes=notes)


def advice_of(facts: Facts, *, make: Callable[[Mapping[str, Any]], Any]) -> Advice:
    """The advice for some facts, sorted by price."""
    lines = [line for observe in OBSERVERS for line in observe(facts)]
    return Advice(tuple(sorted(lines, key=_rank)), make)


def _timed_of(runner: Runner) -> tuple[tuple[TimedMask, ...], str | None]:
    """The costs of the masks of the typical graph, and why they were not timed if they were not."""
    typical = typical_of(runner.graphs.rows)
    held = (graph for graph in runner.store.graphs() if typical and graph.row.key == typical.key)
    graph = next(held, None)
    if graph is None:
        return (), "the graph that ran most elements was evicted"
    return timed_masks(graph), why_not_timed(graph)


def _rank(line: AdviceLine) -> tuple[bool, float]:
    return line.seconds is None, -(line.seconds if line.seconds is not None else line.bytes or 0.0)


def _model(runner: Runner) -> CostModel | None:
    """The cost model of the last call; None: no call was kept as an example."""
    return None if runner.store.example is None else cost_model(runner, ((), {}))
