"""Steady throughput beside an expert's hand-written padding: the same model, the same buckets.

By hand means: NumPy pads, masks stand where an expert puts them (the attention's logits, the
pooling, the loss), and the result is cut. See `_by_hand`.
"""

import argparse
import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

import shapeexec as sx
from benchmarks import _by_hand
from benchmarks._common import (
    Claim,
    Ratio,
    Report,
    Table,
    Timing,
    count_ops,
    largest_difference,
    optimised_hlo,
    run_benchmark,
    take_turns,
)
from demo import model

SHAPES = ((1, 40), (4, 100), (8, 128), (3, 200), (16, 300), (6, 511))
BUCKETS = {"b": sx.Pow2(), "s": sx.Linear(128)}
MOST = 1.05


def contestants(task: str, causal: bool) -> tuple[sx.Exec, _by_hand.Padded]:
    """The plain function in an Exec, and the hand-written one."""
    if task == "forward":
        plain = functools.partial(model.score, causal=causal)
        masked = functools.partial(_by_hand.score, causal=causal)
        cut = _by_hand.cut_scores
    else:
        plain = jax.value_and_grad(functools.partial(model.loss, causal=causal))
        masked = jax.value_and_grad(functools.partial(_by_hand.loss, causal=causal))
        cut = _by_hand.cut_nothing
    ex = sx.Exec(plain, in_shapes=(None, "b, s"), buckets=BUCKETS)
    return ex, _by_hand.Padded(masked, BUCKETS, cut)


def run(options: argparse.Namespace) -> Report:
    """Compare for each task, with and without a causal mask in the model."""
    shapes, rounds, layers = (SHAPES[:1], 2, 1) if options.tiny else (SHAPES, 25, 2)
    params = jax.block_until_ready(model.init(jax.random.key(0), layers=layers))
    random = np.random.default_rng(0)
    requests = [random.integers(0, 256, shape, dtype=np.int32) for shape in shapes]
    figures, rows, claims = {}, [], []
    for task in ("forward", "value_and_grad"):
        for causal in (True, False):
            ex, hand = contestants(task, causal)
            case = f"{task}, {'causal' if causal else 'bidirectional'}"
            figure = _compare(ex, hand, params, requests, rounds)
            figures[case] = figure
            ratio = figure["ratio"]
            selects = figure["selects"]
            rows += [
                (
                    case,
                    shape,
                    *(str(Timing(**one[who])) for who in ("by hand", "exec")),
                    f"{one['ratio']['ratio']:.2f}",
                    "",
                )
                for shape, one in figure["requests"].items()
            ]
            total = f"{ratio['ratio']:.3f} ({ratio['lower']:.2f} to {ratio['upper']:.2f})"
            rows.append((case, "all", "", "", total, f"{selects['exec']}; {selects['by hand']}"))
            text = f"at most {MOST} times the time of hand-written masks, {case}"
            claims.append(Claim(text, ratio["ratio"], ratio["ratio"] <= MOST))
    columns = ("", "b x s", "by hand", "sx.Exec", "sx.Exec / by hand", "selects, Exec; by hand")
    return Report([Table("median (quartiles)", columns, rows)], figures, claims)


def _compare(
    ex: sx.Exec, hand: _by_hand.Padded, params: Any, requests: Sequence[np.ndarray], rounds: int
) -> dict[str, Any]:
    ours, theirs = np.zeros(rounds), np.zeros(rounds)
    shapes, worst = {}, 0.0
    for tokens in requests:
        seconds = take_turns(
            {
                "by hand": lambda tokens=tokens: hand(params, tokens),
                "exec": lambda tokens=tokens: ex(params, tokens),
            },
            rounds=rounds,
        )
        ours += seconds["exec"]
        theirs += seconds["by hand"]
        shapes["{}x{}".format(*tokens.shape)] = {
            **{name: asdict(Timing.of(values)) for name, values in seconds.items()},
            "ratio": asdict(Ratio.of(seconds["exec"], seconds["by hand"])),
        }
        worst = max(worst, largest_difference(ex(params, tokens), hand(params, tokens)))
    selects = {
        "exec": count_ops(optimised_hlo(ex, params, requests[0]), "select"),
        "by hand": count_ops(hand.optimised_hlo(params, requests[0]), "select"),
    }
    return {
        "ratio": asdict(Ratio.of(ours.tolist(), theirs.tolist())),
        "requests": shapes,
        "selects": selects,
        "largest_difference": worst,
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("throughput", __doc__, run, arguments)


if __name__ == "__main__":
    main()
