"""The same requests through `jax.jit` at exact shapes, and through `sx.Exec` with buckets.

It measures; how that looks is `report`'s business.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy.optimize import nnls

import shapeexec as sx
from demo.model import LONGEST, Params, score
from demo.text import LARGEST_BATCH
from shapeexec.tools._strategies import FIT, strategy_of

Requests = Sequence[np.ndarray]
Buckets = Mapping[str, sx.Strategy]
Track = Callable[[Iterable, str], Iterable]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some of the requests, each through `jax.jit` at its exact shape.

    Attributes:
        chosen: The requests, no two of one shape.
        results: What `score` returns for each: the truth that others are held against.
        first_seconds: Per request its first call, which traces and compiles.
        warm_seconds: Per request its next call.
    """

    chosen: Requests
    results: Sequence[Mapping[str, np.ndarray]]
    first_seconds: np.ndarray
    warm_seconds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Run:
    """All requests through one contestant.

    Attributes:
        name: Who ran, and how.
        graphs: How many XLA graphs were compiled up to and with each request.
        cold_seconds: Per request, beginning with nothing compiled.
        warm_seconds: Per request, with everything compiled.
        waste: The share of the bytes it ran that were padding, 0 to 1.
        difference: The largest difference from the truth; None: it is the truth.
        is_extrapolated: Whether the times are those of a sample, scaled to all requests.
    """

    name: str
    graphs: np.ndarray
    cold_seconds: np.ndarray
    warm_seconds: np.ndarray
    waste: float
    difference: float | None
    is_extrapolated: bool = False

    @property
    def compile_seconds(self) -> float:
        """What tracing and compiling cost: the difference between cold and warm."""
        return float(self.cold_seconds.sum() - self.warm_seconds.sum())

    @property
    def cold_rate(self) -> float:
        """Requests per second, compiling included."""
        return len(self.cold_seconds) / float(self.cold_seconds.sum())

    @property
    def warm_rate(self) -> float:
        """Requests per second once everything is compiled."""
        return len(self.warm_seconds) / float(self.warm_seconds.sum())


def contestants(
    history: Requests, *, compare: Sequence[str] = (), rungs: int = 6
) -> dict[str, Buckets]:
    """Ways to choose the buckets of lengths.

    Args:
        history: Earlier requests, to which ladders are fitted.
        compare: Strategies, such as `"pow2"` or `"fit:6"`; none: three that suit the text.
        rungs: How many lengths the fitted ladder among these three has.
    """
    lengths = {LONGEST: 0} | _counts(tokens.shape[1] for tokens in history)

    def fitted(graphs: int) -> sx.Strategy:
        return sx.Ladder.fit(lengths, graphs)

    usual = {
        "Pow2": sx.Pow2(minimum=16, maximum=LONGEST),
        "Linear(128)": sx.Linear(128, maximum=LONGEST),
        "Ladder.fit": fitted(rungs),
    }
    chosen = {name: strategy_of(name, fitted={FIT: fitted}) for name in compare}
    batches = sx.Pow2(maximum=LARGEST_BATCH)
    return {name: {"b": batches, "s": one} for name, one in (chosen or usual).items()}


def no_progress(items: Iterable, what: str) -> Iterable:
    """Show nothing."""
    del what
    return items


def sample_exact(
    params: Params, requests: Requests, *, count: int, track: Track = no_progress
) -> Sample:
    """Run some of the requests, from the smallest to the largest, at their exact shapes."""
    by_size = sorted({tokens.shape: tokens for tokens in requests}.values(), key=np.size)
    places = np.linspace(0, len(by_size) - 1, min(count, len(by_size)), dtype=int)
    chosen = [by_size[i] for i in places]
    jitted = _jitted()
    firsts = [
        _timed(jitted, params, tokens=tokens)
        for tokens in track(chosen, "jax.jit, exact: a sample")
    ]
    warms = [_timed(jitted, params, tokens=tokens)[0] for tokens in chosen]
    return Sample(
        chosen=chosen,
        results=[result for _, result in firsts],
        first_seconds=np.array([seconds for seconds, _ in firsts]),
        warm_seconds=np.array(warms),
    )


def extrapolate(sample: Sample, requests: Requests) -> Run:
    """What `jax.jit` would take for all requests: a compilation for each new shape.

    A request takes a constant, a time per byte and one per pair of bytes in a passage, which are
    fitted to the sample; compiling takes the sample's mean.
    """
    rates, _ = nnls(_work(sample.chosen), sample.warm_seconds)
    warm = _work(requests) @ rates
    seen: set[tuple[int, ...]] = set()
    is_new = np.zeros(len(requests), bool)
    for i, tokens in enumerate(requests):
        is_new[i] = tokens.shape not in seen
        seen.add(tokens.shape)
    compiling = (sample.first_seconds - sample.warm_seconds).mean()
    return Run(
        name="jax.jit, exact",
        graphs=np.cumsum(is_new),
        cold_seconds=warm + np.where(is_new, compiling, 0),
        warm_seconds=warm,
        waste=0.0,
        difference=None,
        is_extrapolated=True,
    )


def run_exec(
    name: str,
    buckets: Buckets,
    *,
    params: Params,
    requests: Requests,
    sample: Sample,
    track: Track = no_progress,
) -> Run:
    """Run all requests through `sx.Exec`, cold and then warm."""
    ex = sx.Exec(score, in_shapes=(None, "b, s"), buckets=dict(buckets))
    graphs, cold = [], []
    for tokens in track(requests, f"sx.Exec, {name}"):
        cold.append(_timed(ex, params, tokens=tokens)[0])
        graphs.append(ex.stats.compiles)
    warm = [_timed(ex, params, tokens=tokens)[0] for tokens in requests]
    results = [ex(params, tokens) for tokens in sample.chosen]
    return Run(
        name=f"sx.Exec, {name}",
        graphs=np.array(graphs),
        cold_seconds=np.array(cold),
        warm_seconds=np.array(warm),
        waste=padding_share(buckets, requests),
        difference=largest_difference(results, sample.results),
    )


def difference_without_masks(
    buckets: Buckets, params: Params, *, sample: Sample, track: Track = no_progress
) -> float:
    """How wrong it gets to pad with zeros, run the function as it is, and cut the result.

    A third of the sample shows it.
    """
    jitted = _jitted()
    results = []
    for tokens in track(sample.chosen[::3], "jax.jit, no masks"):
        batch, size = tokens.shape
        padded = np.zeros((buckets["b"].bucket(batch), buckets["s"].bucket(size)), np.int32)
        padded[:batch, :size] = tokens
        result = jitted(params, padded)
        result["bits"] = result["bits"][:, :size]
        results.append({name: np.asarray(value)[:batch] for name, value in result.items()})
    return largest_difference(results, sample.results[::3])


def padding_share(buckets: Buckets, requests: Requests) -> float:
    """The share of the bytes that run which is padding, 0 to 1."""
    valid = sum(tokens.size for tokens in requests)
    padded = sum(
        buckets["b"].bucket(tokens.shape[0]) * buckets["s"].bucket(tokens.shape[1])
        for tokens in requests
    )
    return 1 - valid / padded


def largest_difference(
    results: Sequence[Mapping[str, Any]], truths: Sequence[Mapping[str, Any]]
) -> float:
    """The largest absolute difference of any element; infinity where shapes differ."""
    worst = 0.0
    for result, truth in zip(results, truths, strict=True):
        for name, expected in truth.items():
            actual = np.asarray(result[name])
            if actual.shape != expected.shape:
                return float("inf")
            gap = np.abs(actual - expected).max()
            worst = float("inf") if np.isnan(gap) else max(worst, float(gap))
    return worst


def _jitted() -> Callable[..., Any]:
    """A new function each time: JAX shares compiled programs between jits of one function."""
    return jax.jit(functools.partial(score))


def _work(requests: Requests) -> np.ndarray:
    sizes = np.array([tokens.shape for tokens in requests], float)
    batch, size = sizes.T
    return np.stack([np.ones_like(batch), batch * size, batch * size**2], axis=1)


def _counts(lengths: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for length in lengths:
        counts[length] = counts.get(length, 0) + 1
    return counts


def _timed(fn: Callable[..., Any], params: Params, *, tokens: np.ndarray) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(fn(params, tokens))
    seconds = time.perf_counter() - start
    return seconds, {name: np.asarray(value) for name, value in result.items()}
