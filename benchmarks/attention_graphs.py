"""What a graph of layers of attention costs to make, by the function that attends.

There are two kinds: the gradient of causal layers, and a step of decoding, one query of each
example against a cache with valid lengths.

Each contestant runs in a process of its own, for XLA remembers within a process which matrix
products it has tuned, and Mosaic which kernels it has compiled. There it makes three graphs, one
after the other, of which the second has another batch than the first, and the third another length.
The whole is the time until the first result is there.

With `--before`, JAX's compilation cache is on: a process before the one that is measured has made
the graphs of the same model, or of one with a layer more.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, in_a_process, run_contestants
from shapeexec.tools.benchmark.attention._contestant import compiled
from shapeexec.tools.benchmark.attention._launches import Model

GRAPHS = {
    "gradient": {
        "first graph": (4, 512),
        "graph of another batch": (8, 512),
        "graph of another length": (4, 1024),
    },
    "decode": {
        "first graph": (8, 2048),
        "graph of another batch": (16, 2048),
        "graph of another length": (8, 4096),
    },
}
"""By kind, batch and length of each: of the queries, or of the cache."""

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
class Step:
    """A step of decoding through layers of attention, whose caches have half as many heads.

    Attributes:
        batch, length, layers, heads, head_size: Its sizes; `length` is that of the caches.
        dtype: The dtype of its arrays.
    """

    batch: int
    length: int
    layers: int
    heads: int
    head_size: int
    dtype: str

    def arguments(self) -> tuple[jax.Array, ...]:
        """Queries, the keys and the values of all layers, and the valid lengths."""
        q = jnp.ones((self.batch, 1, self.heads, self.head_size), self.dtype)
        heads = max(self.heads // 2, 1)
        cache = (self.layers, self.batch, self.length, heads, self.head_size)
        keys, values = jnp.ones((2, *cache), self.dtype)
        return q, keys, values, jnp.arange(1, self.batch + 1)

    def function(self, attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """The step: each layer's queries are the output of the one before."""

        def step(q: jax.Array, keys: jax.Array, values: jax.Array, lengths: jax.Array) -> jax.Array:
            for key, value in zip(keys, values, strict=True):
                q = attend(q, key, value, key_value_seq_lengths=lengths)
            return q

        return step


def program_of(
    kind: str,
    sizes: tuple[int, int, int, int, int],
    attend: Callable[..., jax.Array],
    *,
    dtype: str,
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
    """A program of a kind, and its arguments; for `sizes` see `Step`."""
    if kind == "decode":
        step = Step(*sizes, dtype)
        return step.function(attend), step.arguments()
    model = Model(*sizes, dtype)
    return model.function(attend, "both"), model.arguments()


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of one graph: to trace and lower it, to compile it, and until its first result."""

    lower: float
    compile: float
    whole: float


def one(options: argparse.Namespace) -> list[dict[str, float]]:
    """The costs that one process finds."""
    (head_size,), (kind,) = options.head_sizes, options.kinds
    dtype = "bfloat16" if jax.default_backend() == "gpu" else "float32"
    costs = []
    for batch, length in GRAPHS[kind].values():
        sizes = batch, length, options.layers, WIDTH // head_size, head_size
        function, arguments = program_of(kind, sizes, CONTESTANTS[options.one], dtype=dtype)
        jax.block_until_ready(arguments)
        start = time.perf_counter()
        program = compiled(function, arguments)
        jax.block_until_ready(program.call(*arguments))
        whole = time.perf_counter() - start
        lower = program.lower_seconds
        costs.append(dataclasses.asdict(Cost(lower, program.compile_seconds - lower, whole)))
    return costs


MORE_LAYERS = {"same": 0, "other": 1}
"""By what was made before, the layers that it has more."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What a process makes; see `Step`. `before` is a name of `MORE_LAYERS`, or None."""

    kind: str
    head_size: int
    layers: int
    before: str | None

    def costs(self, name: str) -> list[Cost] | None:
        """What a fresh process finds; None: a rival failed, as where there is no cuDNN."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                cache: dict[str, str] = {}
                if self.before is not None:
                    cache = {"JAX_COMPILATION_CACHE_DIR": folder}
                    self._in_a_process(name, self.layers + MORE_LAYERS[self.before], cache)
                return [Cost(**x) for x in self._in_a_process(name, self.layers, cache)]
        except subprocess.CalledProcessError:
            if name == OURS:
                raise
            return None

    def _in_a_process(self, name: str, layers: int, variables: Mapping[str, str]) -> Any:
        sizes = ("--head-sizes", str(self.head_size), "--layers", str(layers))
        options = ("--one", name, "--kinds", self.kind, *sizes)
        return in_a_process("attention_graphs", *options, variables=variables)


def run(options: argparse.Namespace) -> Report:
    """Compare at each head size."""
    sizes = options.head_sizes[:1] if options.tiny else options.head_sizes
    layers, rounds = (1, 1) if options.tiny else (options.layers, options.rounds)
    figures: dict[str, Any] = {}
    rows, claims = [], []
    for kind, size in itertools.product(options.kinds, sizes):
        found = _found(Case(kind, size, layers, options.before), rounds=rounds)
        for graph, which in enumerate(GRAPHS[kind]):
            wholes: dict[str, float] = {}
            for name, costs in found.items():
                own = [cost[graph] for cost in costs]
                middle = Cost(*(_median(own, field.name) for field in dataclasses.fields(Cost)))
                wholes[name] = middle.whole
                case = f"{kind}, {layers} layers, heads of {size}, {which}, {name}"
                figures[case] = dataclasses.asdict(middle)
                rows.append((case, *(f"{x:.2f}" for x in dataclasses.astuple(middle))))
            ours = wholes.pop(OURS)
            text = f"at most {MOST} times the best rival, {kind}, heads of {size}, {which}"
            if wholes:
                ratio = ours / min(wholes.values())
                claims.append(Claim(text, ratio, ratio <= MOST))
    # Here first does this process open a device, which its children must find free.
    title = f"seconds to make a graph on {jax.default_backend()}: median of {rounds}"
    title += "" if options.before is None else f", JAX's cache has the {options.before} model"
    return Report([Table(title, ("", "lower", "compile", "whole"), rows)], figures, claims)


def _found(case: Case, *, rounds: int) -> dict[str, list[list[Cost]]]:
    """The costs of each contestant's graphs, round by round."""
    found: dict[str, list[list[Cost]]] = {}
    for number in range(rounds):
        for name in sorted(CONTESTANTS, reverse=bool(number % 2)):
            costs = case.costs(name)
            if costs is not None:
                found.setdefault(name, []).append(costs)
            told = f"{case.kind}, heads of {case.head_size}, {name}"
            print(f"{told}, round {number + 1} of {rounds}", flush=True)
    return found


def _median(costs: Sequence[Cost], field: str) -> float:
    return statistics.median(getattr(cost, field) for cost in costs)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark."""
    parser.add_argument("--kinds", choices=GRAPHS, nargs="+", default=list(GRAPHS))
    parser.add_argument("--head-sizes", type=int, nargs="+", default=(64, 128), metavar="SIZE")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="processes per contestant")
    parser.add_argument("--before", choices=MORE_LAYERS, help="what JAX's cache on disk has")
    parser.add_argument("--one", choices=CONTESTANTS, help="print this one's costs as JSON")


def main(arguments: Sequence[str] | None = None) -> Report | None:
    """Run as a program."""
    return run_contestants(
        "attention_graphs", __doc__, one=one, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
