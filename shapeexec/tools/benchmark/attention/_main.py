"""From names on the command line to a report.

The options themselves are those of `_command`.
"""

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from shapeexec._errors import ConfigError
from shapeexec.tools._machine import machine
from shapeexec.tools._progress import progress
from shapeexec.tools.benchmark.attention._contestant import Contestant
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._ours import contestants
from shapeexec.tools.benchmark.attention._problems import defaults, pattern_of, shape_of
from shapeexec.tools.benchmark.attention._report import Report
from shapeexec.tools.benchmark.attention._run import Plan, Row, measure
from shapeexec.tools.benchmark.attention._studies import STUDIES
from shapeexec.tools.benchmark.attention.rivals import rivals as all_rivals

Names = Sequence[str] | None

_VERSIONS = ("torch", "triton", "nvidia-cudnn-cu13", "dew-flash-attn-cu13")


def run(
    *,
    command: str,
    shapes: Names,
    masks: Names,
    implementations: Names,
    rivals: Names,
    studies: Names,
    only: re.Pattern[str],
    deadline: float,
) -> Report:
    """Measure the named problems; None: all, or all that suit the device.

    Args:
        command: The command line.
        shapes: Names; None: those for this device.
        masks: Names; None: those for this device.
        implementations: Names; None: all.
        rivals: Names; None: all.
        studies: Names; None: all.
        only: See `Plan`.
        deadline: See `Plan`.

    Raises:
        ConfigError: Nothing is called so.
    """
    start = time.monotonic()
    device_shapes, device_masks = defaults(jax.default_backend())
    ours = _chosen(contestants(), implementations, what="implementation")
    others = _chosen(all_rivals(), rivals, what="rival")
    asked = _known(STUDIES, studies, what="study")
    absent = {one.name: reason for one in (*ours, *others) if (reason := one.missing())}
    plan = Plan(
        shapes=tuple(map(shape_of, device_shapes if shapes is None else shapes)),
        patterns=tuple(map(pattern_of, device_masks if masks is None else masks)),
        contestants=tuple(one for one in (*ours, *others) if one.name not in absent),
        only=only,
        deadline=deadline,
    )
    where = machine(_VERSIONS)  # before this run is itself the load
    try:
        rows, findings = _measure(plan, asked)
    finally:
        for contestant in plan.contestants:
            contestant.close()
    return Report(command, where, time.monotonic() - start, rows, findings, absent)


def _measure(plan: Plan, studies: Iterable[str]) -> tuple[list[Row], list[Finding]]:
    rows: list[Row] = []
    findings: list[Finding] = []
    total = sum(len(group) for rank in (0, 1) for group in plan.groups(rank))
    with progress(total) as (tell, advance):

        def measure_rank(rank: int) -> None:
            for row in measure(plan, rank, tell=tell):
                rows.append(row)
                advance()
                if row.milliseconds is not None or row.is_failure:
                    tell(_told(row))

        try:
            measure_rank(0)
            for name in studies if plan.shapes else ():
                if plan.is_over():
                    tell(f"{name}: out of time")
                    continue
                tell(f"{name}: compiling and measuring")
                findings.extend(STUDIES[name](plan.shapes, plan.patterns, rows))
            measure_rank(1)
        except KeyboardInterrupt:  # the measurements so far are reported
            tell("interrupted")
    return rows, findings


def _told(row: Row) -> str:
    place = f"{row.shape:8} {row.mask:10} {row.contestant:17} {row.passes:8}"
    if row.milliseconds is None:
        return f"{place} {row.reason}"
    return f"{place} {row.milliseconds:9.4f} ms {row.teraflops:8.4g} TFLOP/s"


def _chosen(
    contestants: Sequence[Contestant], names: Names, *, what: str
) -> tuple[Contestant, ...]:
    by_name: dict[str, Any] = {one.name: one for one in contestants}
    return tuple(by_name[name] for name in _known(by_name, names, what=what))


def _known(known: Iterable[str], names: Names, *, what: str) -> tuple[str, ...]:
    known = tuple(known)
    for name in names or ():
        if name not in known:
            raise ConfigError(
                f"there is no {what} {name!r}.", option=what, fix=f"{', '.join(known)}, or none"
            )
    return known if names is None else tuple(names)
