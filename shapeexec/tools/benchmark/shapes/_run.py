"""`benchmark_shapes`: strategies beside `jax.jit`, and the device's peak that they are measured by.

`_contest` runs and compares calls, and `_report` shows the figures.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.bucketing import Strategy
from shapeexec.costing import speed_of
from shapeexec.execution import Exec
from shapeexec.tools._clock import timed
from shapeexec.tools._fit import fit
from shapeexec.tools._progress import Tell
from shapeexec.tools._strategies import FIT, strategy_of
from shapeexec.tools.benchmark._contest import contest
from shapeexec.tools.benchmark._contestants import Bucketed, Jitted
from shapeexec.tools.benchmark.shapes._report import ShapesReport

COMPARED = ("pow2", "linear:128", "fit:16")
_WIDTHS = {"cpu": 1024}
_WIDE = 8192
_TRIES = 10

Sizes = Mapping[str, int]


def benchmark_shapes(
    run: Exec,
    calls: Sequence[Sequence[Any]],
    *,
    compare: Sequence[str] = COMPARED,
    keep: Mapping[str, str] | None = None,
    rounds: int = 3,
    tell: Tell = lambda line: None,
) -> ShapesReport:
    """Run calls of many shapes through `jax.jit` and through strategies, and compare all results.

    Each contestant begins with nothing compiled, one after the other; then they take turns.

    Args:
        run: The function, its specs and its options.
        calls: The positional arguments of each call, no two of one shape.
        compare: Strategies as texts: as `Exec(buckets=)` takes them, or `"fit:16"` for buckets
            that `sx.fit` finds for these shapes.
        keep: Strategies of symbols that are not compared, such as `{"b": "pow2"}`; symbols that
            `run` does not have are ignored.
        rounds: How often all calls run once everything is compiled.
        tell: Called with a line whenever a contestant is done.

    Returns:
        The figures; `print` them.

    Raises:
        ConfigError: There are no calls, no axis changes, or an item of `compare` is not a strategy.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> calls = [(np.ones(n, np.float32),) for n in (3, 5, 7)]
        >>> report = benchmark_shapes(run, calls, compare=["pow2"], rounds=1)
        >>> [(row.name, row.graphs, row.differences) for row in report.rows]
        [('jax.jit', 3, ()), ('pow2', 2, ())]
    """
    if not calls or rounds < 1:
        raise ConfigError(
            f"calls={len(calls)}, rounds={rounds}: nothing would run.",
            option="rounds" if calls else "calls",
            fix="one or more of each",
        )
    sizes = [run.plan(*args).sizes for args in calls]
    if not sizes[0]:
        raise ConfigError(
            f"benchmark_shapes: no size of {run!r:.80} changes.",
            option="run",
            fix='name the axes that change: sx.Exec(fn, ("b, s",))',
        )
    keep = {symbol: text for symbol, text in (keep or {}).items() if symbol in sizes[0]}
    exact = Jitted(run, calls)
    others = _bucketed(run, calls, names=compare, sizes=sizes, keep=keep)
    flops = [run.cost_model(*args)(**at).flops for args, at in zip(calls, sizes, strict=True)]
    before = peak_flops()
    rows = contest((exact, *others), sizes, exact=exact, rounds=rounds, tell=tell)
    peak = max(before, peak_flops())  # other programs may have slowed down one of them
    return ShapesReport(tuple(rows), tuple(sizes), sum(flops), peak)


def _bucketed(
    run: Exec,
    calls: Sequence[Sequence[Any]],
    *,
    names: Iterable[str],
    sizes: Sequence[Sizes],
    keep: Mapping[str, str],
) -> list[Bucketed]:
    """An Exec for each strategy; `fit` chooses buckets for all symbols, also for `keep`'s."""

    def fitted(graphs: int) -> dict[str, Strategy]:
        model, speed = run.cost_model(*calls[0]), speed_of(_compat.default_device())
        return dict(fit(model, [dict(at) for at in sizes], graphs=graphs, speed=speed).strategies)

    found: list[Bucketed] = []
    for name in names:
        chosen = strategy_of(name, fitted={FIT: fitted})
        if isinstance(chosen, Strategy):
            chosen = {symbol: keep.get(symbol, chosen) for symbol in sizes[0]}
        options = {"strategies": chosen, "returns": "device", "donate_argnums": ()}
        found.append(Bucketed(name, run.variant(**options), calls))
    return found


def peak_flops() -> float:
    """The FLOP/s of a large matrix product, f32 at JAX's default precision.

    It is measured where the calls run: on JAX's default device.
    """
    width = _WIDTHS.get(_compat.default_device().platform, _WIDE)
    matrix = jnp.full((width, width), 0.5, jnp.float32)
    product = jax.jit(jnp.matmul)
    seconds = [timed(lambda: product(matrix, matrix))[0] for _ in range(_TRIES)]
    return 2 * width**3 / min(seconds)
