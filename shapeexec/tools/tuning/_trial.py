"""One trial: some calls with each tiling, compiled, checked and timed in turns.

Which calls belong together, and what is kept, is up to `_tune`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shapeexec.attention.backends._base import Tiling
from shapeexec.attention.backends._kept import Place
from shapeexec.attention.backends._tuning import Observer, Tuning, using
from shapeexec.tools.benchmark.attention._clock import clock, warm_up
from shapeexec.tools.benchmark.attention._contestant import (
    JaxContestant,
    Program,
    compiled,
    slices,
)
from shapeexec.tools.benchmark.attention._problems import Cell
from shapeexec.tools.benchmark.attention._reference import check

NOTICEABLE = 1.03
"""A gain that is worth a file: less is within what two measurements of one thing differ by."""

_FINALISTS = 4
"""How many go on after the first round."""
_ROUNDS = 4
"""Rounds of the finalists, and again of the last two."""

Times = dict[Tiling, list[float]]
"""Milliseconds by tiling, one figure for each cell."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """A pass that asked for its tiling.

    Attributes:
        cell: The call.
        place: Where its tiling is kept.
        tilings: What its back end can run, its own first.
    """

    cell: Cell
    place: Place
    tilings: tuple[Tiling, ...]


def asked_by(contestant: JaxContestant, cell: Cell) -> Asked | None:
    """The pass that a cell is timed for, backward if it has one; None: its tiling is fixed.

    Raises:
        BackendError: No back end can run it.
    """
    observer = Observer()
    function, arguments = contestant.function(cell)
    with using(Tuning(observer=observer)):
        jax.jit(function).lower(*arguments)
    backward = cell.passes == "both"
    found = [one for one in observer.asked if one[0].is_backward == backward]
    return Asked(cell, *found[0]) if found else None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a trial found.

    Attributes:
        own, best: The back end's own tiling, and the fastest.
        times: Milliseconds of both, one figure for each cell.
        gain: See `TuningRow`.
        tried: How many tilings were measured.
    """

    own: Tiling
    best: Tiling
    times: tuple[list[float], list[float]]
    gain: float
    tried: int


def trial(
    contestant: JaxContestant, asked: Sequence[Asked], *, tell: Callable[[str], object]
) -> Outcome:
    """Find the fastest tiling of calls that share a place.

    A first round has all tilings, further ones the best; the winner then meets the back end's own
    once more, for the best of many measurements is too good by chance.

    Args:
        contestant: The function.
        asked: The passes, with one place.
        tell: Called before what takes long.

    Raises:
        WrongResultError: A result is wrong.
    """
    own = asked[0].tilings[0]
    able = [tiling for tiling in asked[0].tilings if all(tiling in one.tilings for one in asked)]
    tell(f"compiling {len(able)} tilings of {len(asked)} calls")
    programs = {tiling: _programs(contestant, asked, tiling=tiling) for tiling in able}
    warm_up()
    arguments = [contestant.function(one.cell)[1] for one in asked]
    first = _timed(programs, arguments, rounds=1)
    finalists = sorted(able, key=lambda one: -_gain(first[own], first[one]))[:_FINALISTS]
    chosen = {one: programs[one] for one in dict.fromkeys((own, *finalists))}
    times = _timed(chosen, arguments, rounds=_ROUNDS)
    sound = [one for one in chosen if one == own or _is_sound(times[own], times[one])]
    best = max(sound, key=lambda one: _gain(times[own], times[one]))
    if best != own:
        earlier = _gain(times[own], times[best])
        times = _timed({one: programs[one] for one in (own, best)}, arguments, rounds=_ROUNDS)
        if not _is_sound(times[own], times[best]):
            best = own
        gain = min(earlier, _gain(times[own], times[best]))
    else:
        gain = 1.0
    return Outcome(own, best, (times[own], times[best]), gain, len(able))


def _programs(
    contestant: JaxContestant, asked: Sequence[Asked], *, tiling: Tiling
) -> list[Program]:
    programs = []
    for one in asked:
        function, arguments = contestant.function(one.cell)
        with using(Tuning(((one.place, tiling),))):
            program = compiled(function, arguments)
        check(one.cell.problem, slices(one.cell.problem.shape, program.call(*arguments)))
        programs.append(program)
    return programs


def _timed(
    programs: Mapping[Tiling, list[Program]], arguments: Sequence[Any], *, rounds: int
) -> Times:
    """Medians of rounds in which all take turns."""
    found: dict[Tiling, list[list[float]]] = {
        tiling: [[] for _ in arguments] for tiling in programs
    }
    for _ in range(rounds):
        for tiling, of_cells in programs.items():
            for i, program in enumerate(of_cells):
                found[tiling][i].append(clock(program.call, arguments[i]).best_known)
    return {tiling: list(map(statistics.median, cells)) for tiling, cells in found.items()}


def _gain(own: Sequence[float], other: Sequence[float]) -> float:
    """The geometric mean, over the cells, of the time of one by that of the other."""
    return math.exp(statistics.mean(math.log(a / b) for a, b in zip(own, other, strict=True)))


def _is_sound(own: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the other tiling is noticeably slower in no cell."""
    return all(b <= NOTICEABLE * a for a, b in zip(own, other, strict=True))
