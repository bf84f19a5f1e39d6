"""A study: the bytes that a call moves, beside the least possible.

No hardware counter is read: JAX's profiler has none, and Nsight Compute cannot run inside a
program. So each finding names its source. No call is timed here.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shapeexec.tools.benchmark.attention._contestant import JaxContestant, compiled
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._masks import tiles_of
from shapeexec.tools.benchmark.attention._ours import DEFAULT
from shapeexec.tools.benchmark.attention._problems import PASSES, TILE, Cell, Problem
from shapeexec.tools.benchmark.attention._run import Plan, Row

_STATISTIC = 4 * TILE  # bytes of one f32 for each row of a tile
_OF_LISTS = "computed by the tile lists, not counted"
_OF_XLA = "by XLA's cost model: a kernel's operands and results once, a loop's body once"
_OF_PROFILER = "by jax.profiler's bytes_accessed"
_STAT = "bytes_accessed"


def traffic(plan: Plan, rows: Sequence[Row]) -> Iterator[Finding]:
    """The bytes of our default, by three sources, relative to the least possible."""
    del rows
    default = next((one for one in plan.contestants if one.name == DEFAULT), None)
    for shape in plan.shapes:
        for pattern in plan.patterns:
            for passes in PASSES:
                cell = Cell(Problem(shape, pattern), passes)
                least = least_bytes(cell)
                yield _finding(cell, _OF_LISTS, amount=listed_bytes(cell), least=least)
                if isinstance(default, JaxContestant):
                    yield from _accounts(default, cell, least=least)


def least_bytes(cell: Cell) -> float:
    """Each operand read once, as far as tiles with work need it, and each result written once.

    An array of the mask is an operand too, the same for all heads and examples.
    """
    shape, kinds = cell.problem.shape, _visited(cell)
    visited, row = kinds > 0, _tile_bytes(cell) // TILE
    rows = np.minimum(TILE, shape.length - TILE * np.arange(len(visited)))  # of each tile
    of_query_head = int(rows[visited.any(1)].sum() + shape.length) * row  # q and out
    of_key_head = 2 * int(rows[visited.any(0)].sum()) * row
    if cell.passes == "both":
        of_query_head *= 2  # the gradients of q and out
        of_key_head += 2 * shape.length * row
    is_array = cell.problem.pattern.pair_share is not None
    of_mask = int(rows @ (kinds == 1) @ rows) if is_array else 0
    of_heads = shape.heads * of_query_head + shape.key_heads * of_key_head
    return shape.batch * of_heads + of_mask


def listed_bytes(cell: Cell) -> float:
    """The bytes that the kernels' programs request, tile by tile; caches serve a part of them.

    Forward, each program has one row of queries and loads the listed tiles of keys and values.
    Backward, one kernel does the same for the gradient of the queries; another has one row of keys
    per program and loads the listed tiles of queries. Partial tiles also load the mask's array.
    """
    shape, kinds, tile = cell.problem.shape, _visited(cell), _tile_bytes(cell)
    rows, columns, visits = *kinds.shape, int((kinds > 0).sum())
    is_array = cell.problem.pattern.pair_share is not None
    of_mask = TILE * TILE * int((kinds == 1).sum()) if is_array else 0
    of_query_head = rows * (2 * tile + _STATISTIC) + visits * 2 * tile + of_mask
    of_key_head = 0
    if cell.passes == "both":
        of_query_head += rows * (4 * tile + 2 * _STATISTIC) + visits * 2 * tile + of_mask
        of_query_head += visits * (2 * tile + 2 * _STATISTIC) + of_mask
        of_key_head = columns * 4 * tile
    return shape.batch * (shape.heads * of_query_head + shape.key_heads * of_key_head)


def profiled_bytes(call: Callable[..., Any], arguments: tuple[Any, ...]) -> float | None:
    """The bytes that a call's operations accessed by JAX's profiler; None: it reports none."""
    with tempfile.TemporaryDirectory(prefix="shapeexec-bytes-") as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call(*arguments))
        found = [jax.profiler.ProfileData.from_file(str(x)) for x in Path(folder).rglob("*.pb")]
    # The lines of a plane report the same operations at several levels, such as whole programs.
    lines = [
        sum(float(value) for event in line.events for name, value in event.stats if name == _STAT)
        for data in found
        for plane in data.planes
        if plane.name.startswith("/device:")
        for line in plane.lines
    ]
    return max(lines, default=0.0) or None


def _accounts(contestant: JaxContestant, cell: Cell, *, least: float) -> Iterator[Finding]:
    function, arguments = contestant.function(cell)
    program = compiled(function, arguments).call
    costs: Any = getattr(program, "cost_analysis", dict)()
    by_xla = dict(costs or {}).get("bytes accessed")
    if by_xla:
        yield _finding(cell, _OF_XLA, amount=float(by_xla), least=least)
    if jax.default_backend() == "cpu":  # whose profile has no plane of a device
        return
    counted = profiled_bytes(program, arguments)
    if counted is None:
        why = "jax.profiler reports no bytes for this device; its counters need Nsight Compute"
        yield Finding("bytes", f"{cell.name}, {_OF_PROFILER}", "MB", None, None, why)
    else:
        yield _finding(cell, _OF_PROFILER, amount=counted, least=least)


def _finding(cell: Cell, whose: str, *, amount: float, least: float) -> Finding:
    meaning = "of the least possible"
    return Finding("bytes", f"{cell.name}, {whose}", "MB", amount / 1e6, least / 1e6, meaning)


def _visited(cell: Cell) -> np.ndarray:
    """The kind of each tile, u8[query tiles, key tiles]: no pattern differs by example or head."""
    problem = cell.problem
    return np.asarray(tiles_of(problem.pattern, problem.shape.length).kinds)[0, 0]


def _tile_bytes(cell: Cell) -> int:
    """The bytes of a tile of one operand; the last tile counts as whole."""
    shape = cell.problem.shape
    return TILE * shape.head_size * jax.numpy.dtype(shape.dtype).itemsize
