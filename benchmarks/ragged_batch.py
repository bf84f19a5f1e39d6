"""Training on a ragged batch: the loss and the gradient, summed over examples of different sizes.

A two-layer model on an embedding, in three ways: the vmapped gradient of one example, summed; the
same with the sum folded in, which is what `Exec.map(..., reduce="sum")` runs; and a model that an
expert has batched, padded and masked by hand.
"""

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import Claim, Ratio, Report, Table, Timing, run_benchmark, take_turns

MOST = 1.2
SIZES = {"examples": 32, "longest": 64, "vocabulary": 1000, "width": 512, "hidden": 1024}
TINY = {"examples": 4, "longest": 8, "vocabulary": 50, "width": 16, "hidden": 32}
MB = 1e6


def loss(params: Any, tokens: Any) -> Any:
    """Of one example: tokens [s], of any length."""
    hidden = jnp.tanh(params["table"][tokens] @ params["hidden"])
    return ((hidden @ params["out"]) ** 2).mean()


def loss_by_hand(params: Any, tokens: Any, lengths: Any) -> Any:
    """The sum over a batch: tokens [b, s], lengths [b]."""
    valid = jnp.arange(tokens.shape[1]) < lengths[:, None]
    hidden = jnp.tanh(params["table"][tokens] @ params["hidden"])
    squares = ((hidden @ params["out"]) ** 2).mean(axis=2)
    return (jnp.where(valid, squares, 0).sum(axis=1) / lengths).sum()


def make_data(sizes: Mapping[str, int]) -> tuple[Any, list[np.ndarray], np.ndarray, np.ndarray]:
    """Parameters, examples, and the same examples as a padded batch with their lengths."""
    rng = np.random.default_rng(0)
    shapes = {
        "table": (sizes["vocabulary"], sizes["width"]),
        "hidden": (sizes["width"], sizes["hidden"]),
        "out": (sizes["hidden"], sizes["width"]),
    }
    params = {
        name: jax.device_put(rng.normal(size=shape).astype(np.float32) / shape[0] ** 0.5)
        for name, shape in shapes.items()
    }
    lengths = rng.integers(1, sizes["longest"], sizes["examples"]).astype(np.int32)
    lengths[0] = sizes["longest"]
    examples = [rng.integers(0, sizes["vocabulary"], n).astype(np.int32) for n in lengths]
    batch = np.stack([np.pad(x, (0, sizes["longest"] - len(x))) for x in examples])
    return params, examples, batch, lengths


def vmap_and_sum(params: Any, tokens: Any, lengths: Any) -> Any:
    """The masked gradient of each example, and then their sum."""
    masked = sx.masking.pad_safe(jax.value_and_grad(loss), (None, "s"))
    each = jax.vmap(lambda row, n: masked({"s": n}, params, row))(tokens, lengths)
    return jax.tree.map(lambda x: x.sum(axis=0), each)


def temporary_bytes(graph: Any) -> int:
    """What XLA says a compiled graph needs beside its arguments and results."""
    return graph.memory_analysis().temp_size_in_bytes


def run(options: argparse.Namespace) -> Report:
    """Compare compiled temporaries and time."""
    sizes, rounds = (TINY, 2) if options.tiny else (SIZES, 15)
    params, examples, *batch = make_data(sizes)
    ex = sx.Exec(
        jax.value_and_grad(loss),
        (None, "s"),
        buckets={"s": sx.Linear(sizes["longest"])},
        examples=sx.Linear(sizes["examples"]),
    )
    ways = {"vmap and sum": vmap_and_sum, "by hand": jax.value_and_grad(loss_by_hand)}
    graphs = {name: jax.jit(fn).lower(params, *batch).compile() for name, fn in ways.items()}
    calls: dict[str, Callable[[], Any]] = {
        name: functools.partial(graph, params, *batch) for name, graph in graphs.items()
    }
    calls["ex.map"] = lambda: ex.map(params, examples, reduce="sum")
    results = {name: call() for name, call in calls.items()}
    temporaries = {name: temporary_bytes(graph) for name, graph in graphs.items()}
    temporaries["ex.map"] = ex.stats.device_bytes  # with its code, which is little
    seconds = take_turns(calls, rounds=rounds)
    figures = {
        name: {
            "temporary_bytes": temporaries[name],
            "seconds": asdict(Timing.of(seconds[name])),
            "ratio": asdict(Ratio.of(seconds[name], seconds["by hand"])),
            "largest_difference": _difference(results[name], results["by hand"]),
        }
        for name in calls
    }
    return _report(figures, sizes)


def _report(figures: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> Report:
    rows = [
        (
            name,
            f"{one['temporary_bytes'] / MB:.3g}",
            str(Timing(**one["seconds"])),
            str(Ratio(**one["ratio"])),
        )
        for name, one in figures.items()
    ]
    title = "{examples} examples of 1 to {longest} tokens, {width} -> {hidden} -> {width}, gradient"
    ours, theirs = (figures[name]["temporary_bytes"] for name in ("ex.map", "by hand"))
    measured = ours / theirs
    text = f"at most {MOST} times the temporaries of a model batched by hand"
    claims = [Claim(text, measured, measured <= MOST)]
    columns = ("", "temporaries, MB", "median (quartiles)", "/ by hand")
    return Report([Table(title.format(**sizes), columns, rows)], figures, claims)


def _difference(result: Any, other: Any) -> float:
    gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), result, other)
    return max(jax.tree.leaves(gaps))


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("ragged_batch", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
