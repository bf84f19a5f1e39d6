"""What the notebooks share: lines counted, calls timed, one table, and where the plot goes.

It knows nothing of shapeexec, and nobody needs it to use the library.
"""

import dataclasses
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

QUICK = "--quick" in sys.argv


@dataclasses.dataclass(kw_only=True)
class Way:
    """One way to write it, and what it took.

    Attributes:
        name: As the table shows it.
        lines: Of code, model included.
        cold: Seconds of each call of the first round, which compiles.
        warm: Seconds of each call of the second round.
        results: Of the first round.
        graphs: How many were compiled.
    """

    name: str
    lines: int
    cold: list[float]
    warm: list[float]
    results: list[Any]
    graphs: int


def lines(*functions: Callable[..., Any]) -> int:
    """How many lines of code the functions have, without blank ones and comments."""
    texts = [line.strip() for fn in functions for line in inspect.getsource(fn).splitlines()]
    return sum(bool(text) and not text.startswith("#") for text in texts)


def timed(fn: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> tuple[list[Any], list[float]]:
    """The results of the calls, and the seconds of each."""
    results, seconds = [], []
    for args in calls:
        start = time.perf_counter()
        results.append(jax.block_until_ready(fn(*args)))
        seconds.append(time.perf_counter() - start)
    return results, seconds


def measured(
    name: str,
    fn: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    *,
    code: Sequence[Callable[..., Any]],
    compiled: Any,
) -> Way:
    """Run all calls twice: cold, then warm.

    Args:
        name: Of the way.
        fn: What is called.
        calls: Its arguments, call by call.
        code: The functions that one writes for it.
        compiled: What holds the graphs: an `sx.Exec`, or a function of `jax.jit`.
    """
    results, cold = timed(fn, calls)
    _, warm = timed(fn, calls)
    graphs = compiled.cache_size if hasattr(compiled, "cache_size") else compiled._cache_size()
    return Way(name=name, lines=lines(*code), cold=cold, warm=warm, results=results, graphs=graphs)


def difference(results: Any, truth: Any) -> float:
    """The largest of all differences, relative to the largest number of its array, 1 at least."""

    def of_array(actual: Any, expected: Any) -> float:
        actual, expected = np.asarray(actual), np.asarray(expected)
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        return float(np.abs(actual - expected).max() / max(1.0, np.abs(expected).max()))

    return float(np.max(jax.tree.leaves(jax.tree.map(of_array, results, truth))))


def table(ways: Sequence[Way], *, truth: Any) -> None:
    """Print a row per way, and fail where the results of one are not those of the truth."""
    print(f"{'':28} {'lines':>5} {'graphs':>6} {'cold, s':>8} {'warm, s':>8}  difference")
    for way in ways:
        apart = difference(way.results[: len(truth)], truth)
        print(
            f"{way.name:28} {way.lines:5} {way.graphs:6} {sum(way.cold):8.2f} "
            f"{sum(way.warm):8.3f}  {apart:.0e}"
        )
        assert apart < 1e-4, f"{way.name} is off by {apart}"


def show(figure: Any) -> None:
    """Save the figure where `--plot FILE` says; show it if nothing does."""
    if "--plot" in sys.argv:
        figure.savefig(sys.argv[sys.argv.index("--plot") + 1], dpi=80, metadata={"Software": None})
    else:
        plt.show()
