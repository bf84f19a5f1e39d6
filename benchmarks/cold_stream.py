"""The demo's stream, 500 requests, from a cold start, three times: requests per second.

`jax.jit` at exact shapes would compile for each new shape, which takes too long to run: its figures
are those of a sample, scaled to all requests, and say so.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

import jax

from benchmarks._common import Claim, Report, Spread, Table, run_benchmark, show_progress
from demo import contest, model, text

LEAST = 5.0
COUNT, SAMPLED, REPEATS = 500, 32, 3
COLUMNS = (
    "",
    "graphs",
    "compiling, s",
    "cold, requests/s",
    "times exact",
    "warm, requests/s",
    "times exact",
    "bytes run / valid",
)


def run(options: argparse.Namespace) -> Report:
    """Run the stream through each strategy, several times."""
    count, sampled, repeats = (2, 2, 2) if options.tiny else (COUNT, SAMPLED, REPEATS)
    requests, history = text.requests(count, seed=1), text.requests(count, seed=0)
    layers = 1 if options.tiny else 2
    params = jax.block_until_ready(model.init(jax.random.key(0), layers=layers))
    rounds = [_round(params, requests, history, sampled) for _ in range(repeats)]
    figures, rows, claims = {}, [], []
    for runs in zip(*rounds, strict=True):
        one, exact = runs[0], [round_[0] for round_ in rounds]
        compiling = Spread.of([each.compile_seconds for each in runs])
        cold = Spread.of([each.cold_rate for each in runs])
        warm = Spread.of([each.warm_rate for each in runs])
        pairs = list(zip(runs, exact, strict=True))
        cold_ratio = Spread.of([each.cold_rate / plain.cold_rate for each, plain in pairs])
        warm_ratio = Spread.of([each.warm_rate / plain.warm_rate for each, plain in pairs])
        bytes_run = 1 / (1 - one.waste)
        figures[one.name] = {
            "is_extrapolated": one.is_extrapolated,
            "graphs": int(one.graphs[-1]),
            "compile_seconds": asdict(compiling),
            "cold_requests_per_second": asdict(cold),
            "warm_requests_per_second": asdict(warm),
            "cold_over_exact": asdict(cold_ratio),
            "warm_over_exact": asdict(warm_ratio),
            "bytes_run_per_real_byte": bytes_run,
            "largest_difference": one.difference,
        }
        name = one.name + (" (extrapolated)" if one.is_extrapolated else "")
        spreads = (compiling, cold, cold_ratio, warm, warm_ratio)
        rows.append((name, str(one.graphs[-1]), *map(str, spreads), f"{bytes_run:.2f}"))
        if not one.is_extrapolated:
            promise = f"at least {LEAST:g} times the cold rate of exact shapes, {one.name}"
            claims.append(Claim(promise, cold_ratio.median, cold_ratio.median >= LEAST))
    title = f"{count} requests, {repeats} times: median (least to most); exact shapes extrapolated"
    return Report([Table(title, COLUMNS, rows)], figures, claims)


def _round(
    params: model.Params, requests: contest.Requests, history: contest.Requests, sampled: int
) -> list[contest.Run]:
    """All contestants once, each from a cold start; exact shapes first."""
    jax.clear_caches()
    sample = contest.sample_exact(params, requests, count=sampled)
    runs = [contest.extrapolate(sample, requests)]
    for name, buckets in contest.contestants(history).items():
        runs.append(
            contest.run_exec(name, buckets, params=params, requests=requests, sample=sample)
        )
        show_progress((runs[-1].name, f"{runs[-1].cold_rate:.2f} requests/s cold"))
    return runs


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("cold_stream", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
