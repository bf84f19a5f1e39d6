"""Measures all cells: shape by shape, and nothing is timed while anything compiles.

It knows neither the contestants nor how results are shown.
"""

# What contestants measured may be of any type.
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import concurrent.futures
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Iterator

from shapeexec.tools.benchmark.attention._clock import warm_up
from shapeexec.tools.benchmark.attention._contestant import (
    Contestant,
    Measurement,
    RefusalError,
    in_one_line,
    operands,
)
from shapeexec.tools.benchmark.attention._masks import tile_density
from shapeexec.tools.benchmark.attention._problems import (
    PASSES,
    Cell,
    Pass,
    Pattern,
    Problem,
    Shape,
)
from shapeexec.tools.benchmark.attention._reference import WrongResultError, check

OUT_OF_TIME = "out of time"


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurement of one contestant and one cell.

    Attributes:
        shape, mask: Their names.
        passes: `forward`, or `both` with gradients.
        contestant: The contestant's name.
        is_ours: Whether it is a back end of this library.
        density: The share of unmasked pairs.
        tile_density: The share of 128-tiles that hold an unmasked pair: `BlockMask.density`.
        milliseconds: The time of a call by `clock`. None: see `reason`.
        clock: "device" if `milliseconds` is the sum of kernel times; "host" if these are unknown.
        wall_milliseconds: The time of a call by the host's clock, in a queue of calls.
        teraflops: TFLOP/s of products on unmasked pairs, by `milliseconds`.
        compile_seconds: The seconds to trace, lower and compile, while others compile too.
        lower_seconds: The seconds to trace and lower, part of `compile_seconds`; None: unknown.
        temporary_bytes: The memory of temporaries, without arguments and results.
        kernels: Each kernel's name and milliseconds.
        reason: Why there is no figure.
        is_failure: Whether there is no figure because a result is wrong or our own function raised
            an exception.
    """

    shape: str
    mask: str
    passes: Pass
    contestant: str
    is_ours: bool
    density: float
    tile_density: float
    milliseconds: float | None = None
    clock: str | None = None
    wall_milliseconds: float | None = None
    teraflops: float | None = None
    compile_seconds: float | None = None
    lower_seconds: float | None = None
    temporary_bytes: int | None = None
    kernels: tuple[tuple[str, float], ...] = ()
    reason: str | None = None
    is_failure: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        shapes, patterns: All shapes are measured with all patterns.
        contestants: The contestants that can run here.
        only: Cells are measured if this matches in `shape/mask/contestant/pass`.
        deadline: The `time.monotonic()` after which nothing new is started.
    """

    shapes: tuple[Shape, ...]
    patterns: tuple[Pattern, ...]
    contestants: tuple[Contestant, ...]
    only: re.Pattern[str]
    deadline: float

    def is_over(self) -> bool:
        """Whether the time is spent."""
        return time.monotonic() >= self.deadline

    def groups(self, rank: int) -> list[list[tuple[Cell, Contestant]]]:
        """The cells of contestants of a rank, shape by shape."""
        who = [contestant for contestant in self.contestants if contestant.rank == rank]
        groups = []
        for shape in self.shapes:
            cells = [
                Cell(Problem(shape, pattern), passes)
                for pattern in self.patterns
                for passes in PASSES
            ]
            group = [(cell, one) for cell in cells for one in who if self._is_chosen(cell, one)]
            groups.append(group)
        return groups

    def _is_chosen(self, cell: Cell, contestant: Contestant) -> bool:
        *place, passes = cell.name.split("/")
        return self.only.search("/".join([*place, contestant.name, passes])) is not None


def measure(plan: Plan, rank: int, *, tell: Callable[[str], object]) -> Iterator[Row]:
    """Measure the contestants of a rank, shape by shape.

    Args:
        plan: The plan of the run.
        rank: The rank, 0 or 1; see `Contestant`.
        tell: Called with a line before each long step.
    """
    for group in plan.groups(rank):
        if not group:
            continue
        if plan.is_over():
            yield from (_row(cell, one, reason=OUT_OF_TIME) for cell, one in group)
            continue
        shape = group[0][0].problem.shape
        operands(shape)  # made once, before threads ask for them
        start = time.monotonic()
        tell(f"{shape.name}: compiling {len(group)} programs")
        futures = [contestant.compile(cell) for cell, contestant in group]
        concurrent.futures.wait(futures, timeout=max(0.0, plan.deadline - time.monotonic()))
        tell(f"{shape.name}: compiled in {time.monotonic() - start:.0f} s")
        warm_up()
        for cell, contestant in group:
            late = plan.is_over()
            yield (
                _row(cell, contestant, reason=OUT_OF_TIME) if late else _measured(cell, contestant)
            )
        for contestant in {id(one): one for _, one in group}.values():
            contestant.forget()


def _measured(cell: Cell, contestant: Contestant) -> Row:
    try:
        measurement = contestant.measure(cell, functools.partial(check, cell.problem))
    except RefusalError as error:
        return _row(cell, contestant, reason=str(error))
    except WrongResultError as error:
        return _row(cell, contestant, reason=f"WRONG: {error}", is_failure=True)
    except Exception as error:  # a failing rival must not end the run; our own failure is reported
        reason = in_one_line(error)
        return _row(cell, contestant, reason=reason, is_failure=contestant.is_ours)
    return _with_figures(_row(cell, contestant), cell, measurement=measurement)


def _row(
    cell: Cell, contestant: Contestant, *, reason: str | None = None, is_failure: bool = False
) -> Row:
    problem = cell.problem
    return Row(
        shape=problem.shape.name,
        mask=problem.pattern.name,
        passes=cell.passes,
        contestant=contestant.name,
        is_ours=contestant.is_ours,
        density=problem.density,
        tile_density=tile_density(problem.pattern, problem.shape.length),
        reason=reason,
        is_failure=is_failure,
    )


def _with_figures(row: Row, cell: Cell, *, measurement: Measurement) -> Row:
    timing = measurement.timing
    return dataclasses.replace(
        row,
        milliseconds=timing.best_known,
        clock="host" if timing.device is None else "device",
        wall_milliseconds=timing.wall,
        teraflops=cell.problem.operations(cell.passes) / timing.best_known / 1e9,
        compile_seconds=measurement.compile_seconds,
        lower_seconds=measurement.lower_seconds,
        temporary_bytes=measurement.temporary_bytes,
        kernels=timing.kernels,
    )
