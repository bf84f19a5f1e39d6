"""Advice on masks: the primitive whose masks cost most, by the clock.

`_timed` has timed a copy of the graph without them.
"""

import math
from collections.abc import Iterator

from shapeexec._code import code
from shapeexec._errors import named
from shapeexec.bucketing import Exact
from shapeexec.execution.analysis._advice import AdviceLine
from shapeexec.execution.analysis._facts import Facts
from shapeexec.execution.analysis._timed import TimedMask

_LEAST_SHARE = 0.05  # of a call
_MOST_GRAPHS = 32


def masks(facts: Facts) -> Iterator[AdviceLine]:
    """The dearest masks of the graph that ran most, if most rounds have seen their price."""
    row = facts.typical
    for timed in facts.masks[:1]:
        if row is None or timed.spared_mostly <= 0 or timed.spared < _LEAST_SHARE * timed.seconds:
            return
        told = (
            f"the masks of `{timed.note.primitive}` take {1e6 * timed.spared:.3g} of"
            f" {1e6 * timed.seconds:.3g} us of a call in {row.sizes}, which a copy without them"
            f" spares: {timed.note.where or 'a line that is not known'}"
        )
        spared = timed.spared * row.hits
        yield _with_exact_sizes(facts, timed, told=told, spared=spared) or AdviceLine(
            "masks",
            told,
            "run = run.variant(masking=False)  # if the function masks itself: sx.validate tells",
            seconds=spared,
        )


def _with_exact_sizes(
    facts: Facts, timed: TimedMask, *, told: str, spared: float
) -> AdviceLine | None:
    """The symbols at exact sizes need no masks; None: that takes graphs which cost more."""
    requests = facts.requests
    if requests is None or not timed.symbols <= set(requests.symbols):
        return None
    strategies = facts.settings.by_name | {symbol: Exact() for symbol in sorted(timed.symbols)}
    graphs = math.prod(
        len(set(requests.sizes[:, i].tolist())) if s in timed.symbols else len(facts.ladders[s])
        for i, s in enumerate(requests.symbols)
    )
    more = graphs - math.prod(map(len, facts.ladders.values()))
    seconds = spared - max(more, 0) * facts.analysis.graph_seconds
    if graphs > _MOST_GRAPHS or seconds <= 0:
        return None
    return AdviceLine(
        "masks",
        f"{told}; exact sizes of {named(timed.symbols)} need none,"
        f" and at most {max(more, 0)} graphs more",
        f"run = run.variant(buckets={code(strategies)})",
        seconds=seconds,
        changes={"strategies": strategies},
    )
