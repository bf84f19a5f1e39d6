"""`benchmark_shapes`: the same calls through all contestants, cold and then warm in turns.

Who they are is known to `_contestants`, and how it looks to `_report`.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shapeexec._errors import ConfigError
from shapeexec.execution import Exec
from shapeexec.tools._clock import in_turns, timed
from shapeexec.tools._machine import resident_bytes
from shapeexec.tools.benchmark.shapes._contestants import Contestant, Jitted, bucketed
from shapeexec.tools.benchmark.shapes._report import ShapesReport, ShapesRow
from shapeexec.tools.comparing._compare import difference

COMPARED = ("pow2", "linear:128", "fit:16")
_WIDTHS = {"cpu": 1024}
_WIDE = 8192
_TRIES = 5


def benchmark_shapes(
    run: Exec,
    calls: Sequence[Sequence[Any]],
    *,
    compare: Sequence[str] = COMPARED,
    keep: Mapping[str, str] | None = None,
    rounds: int = 3,
    tell: Callable[[str], object] = lambda line: None,
) -> ShapesReport:
    """Run calls of many shapes through `jax.jit` and through strategies, and compare all answers.

    Each contestant begins with nothing compiled, one after the other; then they take turns.

    Args:
        run: The function, its specs and its options.
        calls: The positional arguments of each call, no two of one shape.
        compare: Strategies, as texts: those of `Exec(buckets=)`, and `"fit:16"` for buckets that
            `sx.fit` finds for these shapes.
        keep: Strategies of symbols that are not compared, such as `{"b": "pow2"}`.
        rounds: How often all calls run once everything is compiled.
        tell: Takes a line whenever a contestant is done.

    Returns:
        The figures; `print` them.

    Raises:
        ConfigError: There are no calls, one is no strategy, or no symbol is left to compare.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> calls = [(np.ones(n, np.float32),) for n in (3, 5, 9)]
        >>> report = benchmark_shapes(run, calls, compare=["pow2"], rounds=1)
        >>> [(row.name, row.graphs, row.differences) for row in report.rows]
        [('jax.jit', 3, ()), ('pow2', 3, ())]
    """
    if not calls or rounds < 1:
        raise ConfigError(
            f"calls={len(calls)}, rounds={rounds}: nothing would run.",
            option="rounds" if calls else "calls",
            fix="one or more of each",
        )
    sizes = [run.plan(*args).sizes for args in calls]
    keep = {symbol: text for symbol, text in (keep or {}).items() if symbol in sizes[0]}
    exact = Jitted(run, calls)
    others = bucketed(run, calls, names=compare, sizes=sizes, keep=keep)
    flops = [run.cost_model(*args)(**at).flops for args, at in zip(calls, sizes, strict=True)]
    peak = peak_flops()
    rows: list[ShapesRow] = []
    answers: list[Any] = []
    for contestant in (exact, *others):
        rows.append(_cold(contestant, answers, exact=exact, sizes=sizes))
        tell(f"{contestant.name}: {rows[-1].cold_seconds:.1f} s for all shapes, from nothing")
    warm = in_turns({one.name: _all_of(one, len(calls)) for one in (exact, *others)}, rounds=rounds)
    done = [
        dataclasses.replace(
            row,
            warm_seconds=warm[row.name],
            utilisation=sum(flops) / warm[row.name] / peak,
            waste=contestant.waste(),
        )
        for row, contestant in zip(rows, (exact, *others), strict=True)
    ]
    return ShapesReport(tuple(done), tuple(sizes), sum(flops), peak)


def _cold(
    contestant: Contestant, answers: list[Any], *, exact: Jitted, sizes: Sequence[Any]
) -> ShapesRow:
    """All calls, beginning with nothing compiled; the answers of the first contestant are kept."""
    before, seconds = resident_bytes(), 0.0
    results: list[Any] = []
    for number in range(len(sizes)):
        spent, result = timed(lambda number=number: contestant(number))
        seconds += spent
        results.append(result)
    grown = resident_bytes() - before
    told: list[str] = []
    for number, (result, want) in enumerate(zip(results, answers, strict=False)):
        text, is_rounding = difference(result, want, flat=exact.flat, leaves=exact.leaves(number))
        if text is not None and not is_rounding:
            told.append(f"{dict(sizes[number])}: {text}")
    answers.extend(results if not answers else ())
    programs = contestant.programs()
    return ShapesRow(
        name=contestant.name,
        source=contestant.source,
        graphs=len(programs),
        cold_seconds=seconds,
        run_bytes=max((p.inputs + p.temporaries + p.outputs for p in programs), default=0),
        code_bytes=sum(p.code for p in programs),
        process_bytes=grown,
        differences=tuple(told),
    )


def _all_of(contestant: Contestant, count: int) -> Callable[[], Any]:
    def work() -> None:
        for number in range(count):
            jax.block_until_ready(contestant(number))

    return work


def peak_flops() -> float:
    """The FLOPs a second of a large matrix product, f32 at JAX's default precision.

    It is measured where the calls run: on JAX's default device.
    """
    width = _WIDTHS.get(jax.default_backend(), _WIDE)
    matrix = jnp.full((width, width), 0.5, jnp.float32)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))
    seconds: list[float] = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        seconds.append(time.perf_counter() - start)
    return 2 * width**3 / min(seconds)
