"""Advice on what runs beside the graphs: evictions, and compilations that cut results.

Statistics alone tell both.
"""

import dataclasses
from collections.abc import Iterator

from shapeexec._code import code
from shapeexec.execution.analysis._advice import AdviceLine
from shapeexec.execution.analysis._facts import Facts

_THRASHING = 2  # graphs made again after they had to leave
_COPIES = 8  # programs that cut and pad: less are not worth a change


def thrash(facts: Facts) -> Iterator[AdviceLine]:
    """Graphs that had to leave, and were made again."""
    stats, limits = facts.analysis.stats, facts.limits
    if stats.remade < _THRASHING:
        return
    different = stats.graphs + stats.evictions - stats.remade
    held = limits.device_bytes
    wanted = dataclasses.replace(
        limits,
        graphs=limits.graphs and max(limits.graphs, different),
        device_bytes=held and -(-held * different // max(stats.graphs, 1)),
    )
    yield AdviceLine(
        "thrash",
        f"{stats.remade} graphs were made again after they had left the cache, which holds"
        f" {stats.graphs}; the calls use {different}",
        f"run = run.variant(limits={code(wanted)})",
        seconds=stats.remade * facts.analysis.graph_seconds,
        saves={"compiles": stats.remade, "evictions": stats.evictions},
        changes={"limits": wanted},
    )


def copies(facts: Facts) -> Iterator[AdviceLine]:
    """Programs that an accelerator compiles for each size of a result or an argument."""
    stats = facts.analysis.stats
    if stats.copy_compiles < _COPIES or facts.settings.returns != "device":
        return
    yield AdviceLine(
        "copies",
        f"{stats.copy_compiles} programs were compiled that cut results and pad arguments, each for"
        " one size; as NumPy arrays results need none, as sx.Padded handles neither do",
        'run = run.variant(returns="host")',
        seconds=stats.copy_seconds,
        saves={"copy_compiles": stats.copy_compiles},
        changes={"returns": "host"},
    )
