"""How long requests wait that arrive at random (a Poisson process) while graphs are still missing.

One server answers requests in their order, by `Exec` with `missing="wait"`, `missing="larger"` and
`compiling=sx.Compiling(first="quick")`, each after a warm-up of two buckets; and with all graphs
there, which tells what the sizes of the requests and the queue take by themselves. A latency runs
from the arrival to the answer. The streams are the demo's, and prompts of the lengths in `--data`.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.progress import track

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, run_benchmark
from benchmarks.ladders import histograms
from demo import model, text

MOST = 3.0
ALL_THERE = "all there"
WAYS: dict[str, dict[str, Any]] = {
    ALL_THERE: {},
    "wait": {},
    "larger": {"missing": "larger"},
    "quick": {"compiling": sx.Compiling(first="quick")},
}
Requests = Sequence[np.ndarray]


def run(options: argparse.Namespace) -> Report:
    """Run each stream in each way."""
    count = 8 if options.tiny else options.requests
    params = jax.block_until_ready(model.init(jax.random.key(0), layers=1 if options.tiny else 2))
    streams = {"demo": text.requests(count, seed=1)}
    if options.data is not None:
        for name, counts in histograms(options.data).items():
            streams[name] = prompts(counts, count)
    figures, rows, claims = {}, [], []
    for stream, requests in streams.items():
        for way, given in WAYS.items():
            seconds, ex = latencies(
                f"{stream}: {way}",
                params,
                requests=requests,
                way=given,
                are_there=way == ALL_THERE,
                gap=options.gap,
            )
            p50, p99, longest = (1e3 * np.percentile(seconds, (50, 99, 100))).tolist()
            stats = ex.stats
            figures[f"{stream}, {way}"] = {
                "p50_ms": p50,
                "p99_ms": p99,
                "longest_ms": longest,
                "compiles": stats.compiles,
                "larger": stats.larger,
                "swaps": stats.swaps,
            }
            cells = (f"{p50:.1f}", f"{p99:.1f}", f"{longest:.1f}")
            counts = (stats.compiles, stats.larger, stats.swaps)
            rows.append((f"{stream}, {way}", *cells, *map(str, counts)))
        claims += _claims(stream, figures)
    columns = ("", "p50, ms", "p99, ms", "longest, ms", "compiles", "in a larger one", "swaps")
    return Report([Table(f"{count} requests a stream", columns, rows)], figures, claims)


def _claims(stream: str, figures: Mapping[str, Mapping[str, float]]) -> list[Claim]:
    larger, there = (figures[f"{stream}, {way}"] for way in ("larger", ALL_THERE))
    least = there["p99_ms"] / there["p50_ms"]
    ratio = larger["p99_ms"] / larger["p50_ms"]
    promise = f"p99 of larger at most {MOST:g} times its p50 ({least:.1f} with all there), {stream}"
    return [Claim(promise, ratio, ratio <= MOST)]


def prompts(counts: dict[int, int], count: int) -> list[np.ndarray]:
    """Single requests of lengths that occur, those past the model's longest cut."""
    rng = np.random.default_rng(0)
    shares = np.array([*counts.values()], float)
    lengths = rng.choice([*counts], size=count, p=shares / shares.sum())
    return [
        rng.integers(0, 256, (1, min(int(length), model.LONGEST))).astype(np.int32)
        for length in lengths
    ]


def latencies(
    name: str,
    params: Any,
    *,
    requests: Requests,
    way: dict[str, Any],
    are_there: bool,
    gap: float,
) -> tuple[np.ndarray, sx.Exec]:
    """Per request the seconds from its arrival to its answer, and the server.

    Args:
        name: What the progress bar says.
        params: Those of the model.
        requests: In the order in which they arrive.
        way: Options of the server.
        are_there: All graphs are made before the first request arrives.
        gap: The mean time between two arrivals, in times of one of the largest size.
    """
    jax.clear_caches()
    largest = max(tokens.shape[0] for tokens in requests)
    buckets = {"b": sx.Pow2(), "s": sx.Pow2(minimum=16, maximum=model.LONGEST)}
    ex = sx.Exec(model.score, (None, "b, s"), buckets=buckets, **way)
    example = np.zeros((largest, model.LONGEST), np.int32)
    ex.warmup(params, example, b=largest, s=[model.LONGEST // 4, model.LONGEST])
    if are_there:
        for tokens in requests:
            jax.block_until_ready(ex(params, tokens))
    once = min(_seconds(lambda: ex(params, example)) for _ in range(3))
    gaps = np.random.default_rng(1).exponential(gap * once, len(requests))
    arrivals = time.perf_counter() + np.cumsum(gaps)
    seconds: list[float] = []
    for tokens, arrival in zip(track(requests, name), arrivals, strict=True):
        time.sleep(max(0.0, arrival - time.perf_counter()))
        jax.block_until_ready(ex(params, tokens))
        seconds.append(time.perf_counter() - arrival)
    print(f"{name}: {ex.stats}", flush=True)
    return np.array(seconds), ex


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which streams, and how long."""
    parser.add_argument("--data", type=Path, help="the directory of histograms of lengths")
    parser.add_argument("--gap", type=float, default=3.0, help="between arrivals: see latencies()")
    parser.add_argument("--requests", type=int, default=300, help="per stream")


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("latency", __doc__, run=run, arguments=arguments, add_options=add_options)


if __name__ == "__main__":
    main()
