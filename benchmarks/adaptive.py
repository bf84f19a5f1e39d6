"""How near a ladder that learns comes to the best one in hindsight, and how many graphs it takes.

Streams are drawn from the histograms of `benchmarks.ladders`: of one service, and of a conversation
service whose users begin to code. `Adaptive` learns as in an `Exec`; what is counted are the tokens
that run, data and padding, beside `Ladder.fit` of the same requests, which knows them all.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, run_benchmark
from benchmarks.ladders import GRAPHS, add_data, histograms
from shapeexec.bucketing._adaptive import State
from shapeexec.bucketing._adaptive_rule import buckets_of, step
from shapeexec.execution._learning import EVERY

LEARNING, COUNTED = 2000, 2000
"""Requests at the begin of each part of a stream that are not counted, and those that are."""

SEEDS = 3


@dataclasses.dataclass(frozen=True)
class Part:
    """Requests of one service, past those that it takes to learn.

    Attributes:
        excess: The tokens that ran, by those of the best ladder in hindsight, less 1.
        padding: Padding by valid tokens.
        best: The same of the best ladder.
    """

    excess: float
    padding: float
    best: float


@dataclasses.dataclass(frozen=True)
class Served:
    """What a stream took.

    Attributes:
        parts: Per service.
        compiles: Graphs that were made, those before the first ladder included.
        best_compiles: Those of the best ladders of all parts, graphs that are there counted once.
        changes: How often the ladder changed.
    """

    parts: Sequence[Part]
    compiles: int
    best_compiles: int
    changes: int


def served(rule: sx.Adaptive, streams: Sequence[np.ndarray]) -> Served:
    """Serve one stream after another, and compare each with its best ladder.

    Args:
        rule: The strategy.
        streams: i64[requests] each.
    """
    state, parts, best_buckets = State(), list[Part](), set[int]()
    for stream in streams:
        run: list[int] = []
        for start in range(0, len(stream), EVERY):
            batch = stream[start : start + EVERY].tolist()
            run += buckets_of(batch, state.ladder, start=rule.start)
            state, _ = step(rule, state, sizes=batch, now=0.0)
        sizes, tokens = stream[LEARNING:], sum(run[LEARNING:])
        best = sx.Ladder.fit(sizes.tolist(), rule.graphs)
        best_buckets |= {*best.buckets}
        best_tokens, valid = sum(map(best.bucket, sizes.tolist())), int(sizes.sum())
        parts.append(Part(tokens / best_tokens - 1, tokens / valid - 1, best_tokens / valid - 1))
    return Served(parts, state.compiles, len(best_buckets), state.changes)


def drawn(counts: Mapping[int, int], seed: int) -> np.ndarray:
    """i64[requests] drawn from a histogram."""
    sizes, weights = np.array([*counts]), np.array([*counts.values()], float)
    generator = np.random.default_rng(seed)
    return generator.choice(sizes, LEARNING + COUNTED, p=weights / weights.sum())


def run(options: argparse.Namespace) -> Report:
    """Serve each stream, from several seeds."""
    counts = histograms(options.data)
    streams = {name: (name,) for name in counts} | {
        f"conv then code, {kind}": (f"conv, {kind}", f"code, {kind}")
        for kind in ("context", "generated")
        if {f"conv, {kind}", f"code, {kind}"} <= counts.keys()
    }
    found = {
        name: [
            served(
                sx.Adaptive(graphs=GRAPHS),
                [drawn(counts[part], seed * 10 + i) for i, part in enumerate(parts)],
            )
            for seed in range(SEEDS)
        ]
        for name, parts in streams.items()
    }
    rows = [_row(name, one) for name, runs in found.items() for one in runs]
    heads = ("above best", "padding / valid", "of best", "compiles", "of best", "changes")
    source = "Azure LLM trace 2023; CC-BY 4.0"
    title = f"Adaptive(graphs={GRAPHS}), after {LEARNING} requests ({source})"
    figures = {name: [dataclasses.asdict(one) for one in runs] for name, runs in found.items()}
    return Report([Table(title, ("stream", *heads), rows)], figures, _claims(found))


def _row(name: str, one: Served) -> tuple[str, ...]:
    last = one.parts[-1]
    shares = (f"{last.excess:.1%}", f"{last.padding:.1%}", f"{last.best:.1%}")
    return (name, *shares, f"{one.compiles}", f"{one.best_compiles}", f"{one.changes}")


def _claims(found: Mapping[str, Sequence[Served]]) -> list[Claim]:
    runs = [one for served_runs in found.values() for one in served_runs]
    first = max(one.parts[0].excess for one in runs)
    shifted = max((one.parts[1].excess for one in runs if len(one.parts) > 1), default=0.0)
    compiles = max(one.compiles / one.best_compiles for one in runs)
    return [
        Claim("tokens at most 5 % above the best ladder's", first, first <= 0.05),
        Claim("after a shift at most 10 % above", shifted, shifted <= 0.10),
        Claim("at most 3 times the compiles of the best ladders", compiles, compiles <= 3),
    ]


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("adaptive", __doc__, run=run, arguments=arguments, add_options=add_data)


if __name__ == "__main__":
    main()
