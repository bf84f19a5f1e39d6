"""Runs the same calls through several contestants: first cold, one by one; then warm, in turns.

The contestants are in `_contestants`; each benchmark knows what their figures mean.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shapeexec.tools._clock import in_turns, timed
from shapeexec.tools._machine import resident_bytes
from shapeexec.tools._progress import Tell
from shapeexec.tools.benchmark._contestants import Contestant, Jitted
from shapeexec.tools.comparing._compare import difference


@dataclasses.dataclass(frozen=True)
class ContestRow:
    """The figures of one contestant.

    Attributes:
        name: Its name.
        source: Its source text, such as `sx.Pow2()`.
        note: A remark: what has run, or why it was not timed.
        graphs: The number of compiled programs; None: unknown.
        cold_seconds: The seconds of all calls, beginning with nothing compiled.
        run_bytes: Arguments, temporaries and results of the largest program, as XLA reports them.
        code_bytes: The code of all programs; 0 where a back end does not count it.
        process_bytes: The growth of the process' resident memory in the cold run.
        warm_seconds: The seconds of all calls with everything compiled, the median of the rounds;
            None: it was not timed.
        waste: The share of padding among all elements that run, 0 to 1.
        differences: The calls whose result differs by more than rounding.

    Example:
        >>> row = ContestRow("pow2", "sx.Pow2()", graphs=3, cold_seconds=1.5, warm_seconds=0.5)
        >>> row.compile_seconds
        1.0
    """

    name: str
    source: str
    note: str = ""
    graphs: int | None = None
    cold_seconds: float = 0.0
    run_bytes: int = 0
    code_bytes: int = 0
    process_bytes: int = 0
    warm_seconds: float | None = None
    waste: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def compile_seconds(self) -> float | None:
        """The seconds of tracing and compiling: the difference between cold and warm."""
        if self.warm_seconds is None:
            return None
        return max(self.cold_seconds - self.warm_seconds, 0.0)


def contest(
    contestants: Sequence[Contestant],
    sizes: Sequence[Mapping[str, int]],
    *,
    exact: Jitted,
    rounds: int,
    tell: Tell,
) -> list[ContestRow]:
    """Run all calls.

    Args:
        contestants: The contestants; one that is not timed runs the first call alone.
        sizes: The sizes of each call.
        exact: The contestant whose results are the reference.
        rounds: How often all calls run once everything is compiled.
        tell: Called with a line whenever a contestant is done.
    """
    answers: list[Any] = []
    rows: list[ContestRow] = []
    for one in sorted(contestants, key=lambda one: one is not exact):
        rows.append(_cold(one, answers, exact=exact, sizes=sizes))
        tell(f"{one.name}: {rows[-1].cold_seconds:.1f} s for {len(sizes)} shapes, from nothing")
    works = {one.name: _all_of(one, len(sizes)) for one in contestants if one.is_timed}
    warm = in_turns(works, rounds=rounds)
    by_name = {row.name: row for row in rows}
    return [
        dataclasses.replace(by_name[one.name], warm_seconds=warm.get(one.name), waste=one.waste())
        for one in contestants
    ]


def _cold(
    contestant: Contestant, answers: list[Any], *, exact: Jitted, sizes: Sequence[Any]
) -> ContestRow:
    """All calls, beginning with nothing compiled; the answers of the first contestant are kept."""
    before, seconds = resident_bytes(), 0.0
    results: list[Any] = []
    for number in range(len(sizes) if contestant.is_timed else 1):
        spent, result = timed(lambda number=number: contestant(number))
        seconds += spent
        results.append(result)
    grown = resident_bytes() - before
    told: list[str] = []
    for number, (result, want) in enumerate(zip(results, answers, strict=False)):
        text, is_rounding = difference(result, want, flat=exact.flat, leaves=exact.leaves(number))
        if text is not None and not is_rounding:
            told.append(f"{dict(sizes[number])}: {text}")
    if contestant is exact:
        answers.extend(results)
    programs = contestant.programs()
    return ContestRow(
        name=contestant.name,
        source=contestant.source,
        note=contestant.note,
        graphs=None if programs is None else len(programs),
        cold_seconds=seconds,
        run_bytes=max((p.inputs + p.temporaries + p.outputs for p in programs or ()), default=0),
        code_bytes=sum(p.code for p in programs or ()),
        process_bytes=grown,
        differences=tuple(told),
    )


def _all_of(contestant: Contestant, count: int) -> Callable[[], Any]:
    def work() -> None:
        for number in range(count):
            jax.block_until_ready(contestant(number))  # pyright: ignore[reportUnknownMemberType] - JAX's C extension has no stubs

    return work
