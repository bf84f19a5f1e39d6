"""The demo's stream, 1,000 requests, from a cold start: requests per second.

`jax.jit` at exact shapes would compile for each new shape, which takes too long to run: its figures
are those of a sample, scaled to all requests, and say so.
"""

import argparse
from collections.abc import Sequence

import jax

from benchmarks._common import Claim, Report, Table, run_benchmark
from demo import contest, model, text

LEAST = 5.0


def run(options: argparse.Namespace) -> Report:
    """Run the stream through each strategy."""
    count, sampled = (2, 2) if options.tiny else (1000, 32)
    requests, history = text.requests(count, seed=1), text.requests(count, seed=0)
    layers = 1 if options.tiny else 2
    params = jax.block_until_ready(model.init(jax.random.key(0), layers=layers))
    sample = contest.sample_exact(params, requests, sampled)
    exact = contest.extrapolate(sample, requests)
    runs = [exact]
    for name, buckets in contest.contestants(history).items():
        runs.append(contest.run_exec(name, buckets, params, requests, sample))
    figures, rows, claims = {}, [], []
    for one in runs:
        cold, warm = one.cold_rate / exact.cold_rate, one.warm_rate / exact.warm_rate
        bytes_run = 1 / (1 - one.waste)
        figures[one.name] = {
            "is_extrapolated": one.is_extrapolated,
            "graphs": int(one.graphs[-1]),
            "compile_seconds": one.compile_seconds,
            "cold_requests_per_second": one.cold_rate,
            "warm_requests_per_second": one.warm_rate,
            "cold_over_exact": cold,
            "warm_over_exact": warm,
            "bytes_run_per_real_byte": bytes_run,
            "largest_difference": one.difference,
        }
        rows.append(
            (
                one.name + (" (extrapolated)" if one.is_extrapolated else ""),
                str(one.graphs[-1]),
                f"{one.compile_seconds:.1f}",
                f"{one.cold_rate:.2f}",
                f"{cold:.1f}",
                f"{one.warm_rate:.1f}",
                f"{warm:.2f}",
                f"{bytes_run:.2f}",
            )
        )
        if one is not exact:
            promise = f"at least {LEAST:g} times the cold rate of exact shapes, {one.name}"
            claims.append(Claim(promise, cold, cold >= LEAST))
    columns = (
        "",
        "graphs",
        "compiling, s",
        "cold, requests/s",
        "times exact",
        "warm, requests/s",
        "times exact",
        "bytes run / real",
    )
    title = f"{count} requests; exact shapes extrapolated from {len(sample.chosen)} of them"
    return Report([Table(title, columns, rows)], figures, claims)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("cold_stream", __doc__, run, arguments)


if __name__ == "__main__":
    main()
