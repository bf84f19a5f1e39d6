"""What a graph costs to make, by part and by depth: a transformer's gradient, beside `jax.jit`.

Each contestant of each depth runs in a process of its own, for XLA remembers within a process which
kernels it has tuned. There it makes two graphs, one after the other: `jax.jit` at two lengths, an
`Exec` for two buckets, whose capacities are these lengths. The second bucket reuses the trace of
the first. The whole is the time until the first result is there, of the first call of a shape.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, in_a_process, run_contestants
from demo import model
from shapeexec import _compat

DEPTHS = (2, 8, 24)
WHICH = ("first", "second")
FORMS: Mapping[str, dict[str, Any]] = {
    "cpu": {"width": 64, "dtype": "float32", "batch": 4, "lengths": (128, 64)},
    "gpu": {"width": 512, "dtype": "bfloat16", "batch": 4, "lengths": (512, 256)},
}
MOST_ON_GPU, MOST_TRACING = 1.15, 0.15
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    _compat.COMPILE_EVENT: "compile",
}
"""JAX's own; a nested function's trace is counted within that of the outer one as well."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of one graph.

    Attributes:
        trace: Tracing; for `jax.jit`, to the jaxpr.
        check: Proving the trace at the true sizes, and all else before the masks.
        mask: Putting in the masks.
        lower: Writing the program for XLA.
        compile: XLA's own.
        whole: Until the first result is there.
    """

    trace: float
    check: float
    mask: float
    lower: float
    compile: float
    whole: float


class _Parts:
    """Seconds by JAX's own events, since the last `taken`."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(EVENTS.values(), 0.0)
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in EVENTS:
            self._seconds[EVENTS[event]] += duration_secs

    def taken(self) -> dict[str, float]:
        """The seconds so far, which begin anew."""
        seconds = dict(self._seconds)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return seconds


def arguments(depth: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Parameters and tokens, once per length."""
    form = FORMS.get(jax.default_backend(), FORMS["cpu"])
    params = model.init(jax.random.key(0), width=form["width"], layers=depth)
    params = jax.tree.map(lambda x: x.astype(form["dtype"]), params)
    jax.block_until_ready(params)
    random = np.random.default_rng(0)
    for length in form["lengths"]:
        yield params, random.integers(0, 256, (form["batch"], length)).astype(np.int32)


def loss(params: Any, tokens: jax.Array) -> jax.Array:
    """Mean bits per byte, and what the demo's model does besides."""
    return model.loss(params, tokens).astype(jnp.float32)


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Append the seconds that the block takes."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def jit_costs(depth: int) -> list[Cost]:
    """Of `jax.jit`, at both lengths."""
    fn, parts, costs = jax.jit(jax.value_and_grad(loss)), _Parts(), []
    for params, tokens in arguments(depth):
        parts.taken()
        seconds: list[float] = []
        with timed(seconds):
            traced = fn.trace(params, tokens)
        with timed(seconds):
            jax.block_until_ready(fn(params, tokens))
        del traced
        trace, rest = seconds
        by_event = parts.taken()
        costs.append(
            Cost(trace, 0.0, 0.0, by_event["lower"], by_event["compile"], whole=trace + rest)
        )
    return costs


def exec_costs(depth: int) -> list[Cost]:
    """Of an `Exec`, for both buckets."""
    run = sx.Exec(jax.value_and_grad(loss), in_shapes=(None, "b, s"))
    costs: list[Cost] = []
    for params, tokens in arguments(depth):
        seconds: list[float] = []
        with timed(seconds):
            jax.block_until_ready(run(params, tokens))
        own = run.graphs[-1].seconds
        trace = 0.0 if costs else own.trace  # shared by the buckets
        parts = (own.mask, own.lower, own.compile)
        costs.append(Cost(trace, max(0.0, seconds[0] - trace - sum(parts)), *parts, seconds[0]))
    return costs


CONTESTANTS: Mapping[str, Callable[[int], list[Cost]]] = {
    "jax.jit": jit_costs,
    "sx.Exec": exec_costs,
}


def one(options: argparse.Namespace) -> list[dict[str, float]]:
    """The costs that one process finds."""
    (depth,) = options.depths
    return [dataclasses.asdict(cost) for cost in CONTESTANTS[options.one](depth)]


def costs_of(name: str, depth: int) -> list[Cost]:
    """The costs that a fresh process finds."""
    costs = in_a_process("graph_cost", "--one", name, "--depths", str(depth))
    return [Cost(**fields) for fields in costs]


def run(options: argparse.Namespace) -> Report:
    """Compare at each depth."""
    depths = (1,) if options.tiny else options.depths
    rounds = 1 if options.tiny else options.rounds
    figures, rows = {}, []
    for depth in depths:
        found: dict[str, list[list[Cost]]] = {name: [] for name in CONTESTANTS}
        for number in range(rounds):
            for name in sorted(found, reverse=bool(number % 2)):
                found[name].append(costs_of(name, depth))
                print(f"{depth} layers, {name}, round {number + 1} of {rounds}", flush=True)
        for graph, which in enumerate(WHICH):
            wholes = {}
            for name, costs in found.items():
                own = [cost[graph] for cost in costs]
                middle = {
                    field.name: statistics.median(getattr(cost, field.name) for cost in own)
                    for field in dataclasses.fields(Cost)
                }
                wholes[name] = middle["whole"]
                figures[f"{depth} layers, {which} graph, {name}"] = {
                    **middle,
                    "wholes": [cost.whole for cost in own],
                }
                spread = f"({min(c.whole for c in own):.2f} to {max(c.whole for c in own):.2f})"
                cells = [f"{seconds:.2f}" for seconds in middle.values()]
                rows.append(
                    (
                        f"{depth} layers, {which} graph, {name}",
                        *cells[:-1],
                        f"{cells[-1]} {spread}",
                        f"{wholes[name] / wholes['jax.jit']:.2f}",
                    )
                )
    # Here first does this process open a device, which its children must find free.
    claims = [
        claim for depth in depths for which in WHICH for claim in _claims(depth, which, figures)
    ]
    columns = ("", "trace", "check", "mask", "lower", "compile", "whole (range)", "/ jax.jit")
    title = f"seconds to make a graph on {jax.default_backend()}: median of {rounds}"
    return Report([Table(title, columns, rows)], figures, claims)


def _claims(depth: int, which: str, figures: Mapping[str, Any]) -> list[Claim]:
    own = figures[f"{depth} layers, {which} graph, sx.Exec"]
    exact = figures[f"{depth} layers, {which} graph, jax.jit"]
    if jax.default_backend() == "gpu":
        ratio = own["whole"] / exact["whole"]
        text = f"at most {MOST_ON_GPU} times jax.jit, {depth} layers, {which} graph"
        return [Claim(text, ratio, ratio <= MOST_ON_GPU)]
    share = (own["trace"] + own["check"] + own["mask"]) / own["whole"]
    text = f"tracing and masking at most {MOST_TRACING} of the whole, {depth} layers, {which} graph"
    return [Claim(text, share, share <= MOST_TRACING)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark."""
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="numbers of layers")
    parser.add_argument("--rounds", type=int, default=3, help="processes per contestant and depth")
    parser.add_argument("--one", choices=CONTESTANTS, help="print this one's costs as JSON")


def main(arguments: Sequence[str] | None = None) -> Report | None:
    """Run as a program."""
    return run_contestants(
        "graph_cost", __doc__, one=one, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
