"""What the gradient of layers of attention costs to make, by the function that attends.

Each contestant runs in a process of its own, for XLA remembers within a process which matrix
products it has tuned, and Mosaic which kernels it has compiled. There it makes three graphs, one
after the other, of which the second has another batch than the first, and the third another length.
The whole is the time until the first result is there.
"""

import argparse
import dataclasses
import functools
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, in_a_process, run_contestants
from shapeexec.tools.benchmark.attention._contestant import compiled
from shapeexec.tools.benchmark.attention._launches import Model

GRAPHS = {
    "first graph": (4, 512),
    "graph of another batch": (8, 512),
    "graph of another length": (4, 1024),
}
"""Batch and length of each."""

WIDTH = 512
MOST = 1.2
"""At most so many times the best rival's whole: asked for on a GPU."""

OURS = "shapeexec"
CONTESTANTS: Mapping[str, Callable[..., jax.Array]] = {
    OURS: sx.dot_product_attention,
    **{
        f"jax.nn, {rival}": functools.partial(jax.nn.dot_product_attention, implementation=rival)
        for rival in ("cudnn", "xla")
    },
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of one graph: to trace and lower it, to compile it, and until its first result."""

    lower: float
    compile: float
    whole: float


def one(options: argparse.Namespace) -> list[dict[str, float]]:
    """The costs that one process finds."""
    (head_size,) = options.head_sizes
    dtype = "bfloat16" if jax.default_backend() == "gpu" else "float32"
    costs = []
    for batch, length in GRAPHS.values():
        model = Model(batch, length, options.layers, WIDTH // head_size, head_size, dtype)
        arguments = jax.block_until_ready(model.arguments())
        start = time.perf_counter()
        program = compiled(model.function(CONTESTANTS[options.one], "both"), arguments)
        jax.block_until_ready(program.call(*arguments))
        whole = time.perf_counter() - start
        lower = program.lower_seconds
        costs.append(dataclasses.asdict(Cost(lower, program.compile_seconds - lower, whole)))
    return costs


def costs_of(name: str, head_size: int, layers: int) -> list[Cost] | None:
    """The costs that a fresh process finds; None: a rival failed, as where there is no cuDNN."""
    options = ("--one", name, "--head-sizes", str(head_size), "--layers", str(layers))
    try:
        return [Cost(**fields) for fields in in_a_process("attention_graphs", *options)]
    except subprocess.CalledProcessError:
        if name == OURS:
            raise
        return None


def run(options: argparse.Namespace) -> Report:
    """Compare at each head size."""
    sizes = options.head_sizes[:1] if options.tiny else options.head_sizes
    layers, rounds = (1, 1) if options.tiny else (options.layers, options.rounds)
    figures: dict[str, Any] = {}
    rows, ratios = [], {}
    for size in sizes:
        found: dict[str, list[list[Cost]]] = {}
        for number in range(rounds):
            for name in sorted(CONTESTANTS, reverse=bool(number % 2)):
                costs = costs_of(name, size, layers)
                if costs is not None:
                    found.setdefault(name, []).append(costs)
                print(f"heads of {size}, {name}, round {number + 1} of {rounds}", flush=True)
        for graph, which in enumerate(GRAPHS):
            wholes: dict[str, float] = {}
            for name, costs in found.items():
                own = [cost[graph] for cost in costs]
                middle = Cost(*(_median(own, field.name) for field in dataclasses.fields(Cost)))
                wholes[name] = middle.whole
                case = f"{layers} layers, heads of {size}, {which}, {name}"
                figures[case] = dataclasses.asdict(middle)
                rows.append((case, *(f"{x:.2f}" for x in dataclasses.astuple(middle))))
            ours = wholes.pop(OURS)
            text = f"at most {MOST} times the best rival, heads of {size}, {which}"
            if wholes:
                ratios[text] = ours / min(wholes.values())
    # Here first does this process open a device, which its children must find free.
    title = f"seconds to make a graph on {jax.default_backend()}: median of {rounds}"
    claims = [Claim(text, ratio, ratio <= MOST) for text, ratio in ratios.items()]
    return Report([Table(title, ("", "lower", "compile", "whole"), rows)], figures, claims)


def _median(costs: Sequence[Cost], field: str) -> float:
    return statistics.median(getattr(cost, field) for cost in costs)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark."""
    parser.add_argument("--head-sizes", type=int, nargs="+", default=(64, 128), metavar="SIZE")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="processes per contestant")
    parser.add_argument("--one", choices=CONTESTANTS, help="print this one's costs as JSON")


def main(arguments: Sequence[str] | None = None) -> Report | None:
    """Run as a program."""
    return run_contestants(
        "attention_graphs", __doc__, one=one, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
