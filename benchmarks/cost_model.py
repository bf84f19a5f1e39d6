"""How well a cost model tells what five models cost: FLOPs beside XLA's, seconds beside measured.

The seconds are those of the plain function, compiled at the sizes, the least of three calls in each
round; the device's speed is measured once before. An error is `|modelled / measured - 1|`. A model
that is scaled knows the time of one call, by `CostModel.measured`; that size is left out of its
errors.
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks import masks
from benchmarks._common import Claim, Report, Table, Timing, run_benchmark, take_turns
from shapeexec.costing import speed_of

SHAPES = ((1, 64), (4, 128), (8, 128), (2, 256), (16, 128), (2, 512), (8, 256), (8, 512))
TINY = ((1, 16), (2, 32))
MOST_ERROR = 0.15
WIDTHS = (256, 512, 512, 64)


@dataclasses.dataclass(frozen=True)
class Model:
    """A function, its specs, its parameters, and its data at (batch, size)."""

    name: str
    fn: Callable[..., Any]
    in_shapes: tuple[Any, ...]
    params: Any
    data: Callable[[int, int], tuple[np.ndarray, ...]]


def models() -> list[Model]:
    """A transformer, its gradient, a CNN, an LSTM and an MLP."""
    by_name = {contest.name: contest for contest in masks.contests()}
    wanted = (("transformer, causal", "forward"), ("transformer, causal", "gradient"))
    found = [_of(by_name[name], task) for name, task in wanted]
    found += [_of(by_name[name], "forward") for name in ("CNN", "LSTM")]
    return [*found, _mlp()]


def _of(contest: masks.Contest, task: str) -> Model:
    fn, run, _ = contest.sides(task)
    in_shapes = run.settings.in_shapes
    assert in_shapes is not None
    params = contest.init(jax.random.key(0))

    def data(batch: int, size: int) -> tuple[np.ndarray, ...]:
        return contest.arguments(task, (batch, size))

    return Model(f"{contest.name}, {task}", fn, in_shapes, params, data)


def _mlp() -> Model:
    def mlp(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jax.nn.relu(x @ weight)
        return x.mean(axis=1)

    def data(batch: int, size: int) -> tuple[np.ndarray, ...]:
        return (np.ones((batch, size, WIDTHS[0]), np.float32),)

    weights = [jnp.full(pair, 0.01) for pair in itertools.pairwise(WIDTHS)]
    return Model("MLP, forward", mlp, (None, f"b, s, {WIDTHS[0]}"), weights, data)


def run(options: argparse.Namespace) -> Report:
    """Compare each model at each shape."""
    shapes = TINY if options.tiny else SHAPES
    speed = speed_of()
    figures, rows, ratios, scaled = {}, [], list[float](), list[float]()
    for model in models():
        ex = sx.Exec(model.fn, model.in_shapes)
        cost = ex.cost_model(model.params, *model.data(*shapes[0]))
        own: list[float] = []
        for batch, size in shapes:
            one = _measure(model, cost, batch=batch, size=size, rounds=3 if options.tiny else 15)
            figures[f"{model.name}, b={batch}, s={size}"] = one
            own.append(one["modelled"] / one["measured"]["median"])
            rows.append(_row(model.name, (batch, size), one=one))
        ratios += own
        known = own.pop(len(own) // 2)  # the size at which a call is measured
        scaled += [ratio / known for ratio in own]
    columns = ("model", "b, s", "FLOPs / XLA's", "measured", "modelled, ms", "error")
    told = ", ".join(f"{key[12:]} {value:.3g} s" for key, value in _speed(speed).items())
    claims = [
        Claim(f"modelled seconds, median error at most 15 %{told_as}", error, error <= MOST_ERROR)
        for told_as, error in (
            ("", _median_error(ratios)),
            (", scaled to one measured call", _median_error(scaled)),
        )
    ]
    figures["speed"] = _speed(speed)
    return Report([Table(f"Cost models; {told}", columns, rows)], figures, claims)


def _median_error(ratios: Sequence[float]) -> float:
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def _speed(speed: sx.Speed) -> dict[str, float]:
    return dataclasses.asdict(speed)


def _measure(
    model: Model, cost: sx.CostModel, *, batch: int, size: int, rounds: int
) -> dict[str, Any]:
    arguments = jax.device_put((model.params, *model.data(batch, size)))
    compiled = jax.jit(model.fn).lower(*arguments).compile()
    calls = take_turns({"plain": lambda: compiled(*arguments)}, rounds=3 * rounds)["plain"]
    # As the device's speed is measured: what other programs stop now and then counts little.
    timing = Timing.of([min(calls[i : i + 3]) for i in range(0, len(calls), 3)])
    seconds = cost.seconds(b=batch, s=size)
    analysis: Any = compiled.cost_analysis()
    return {
        "flops": cost(b=batch, s=size).flops,
        "flops_of_xla": analysis["flops"],
        "measured": dataclasses.asdict(timing),
        "modelled": seconds,
        "error": abs(seconds / timing.median - 1),
    }


def _row(name: str, shape: tuple[int, int], *, one: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{shape[0]}, {shape[1]}",
        f"{one['flops'] / one['flops_of_xla']:.3f}",
        str(Timing(**one["measured"])),
        f"{1e3 * one['modelled']:.3g}",
        f"{one['error']:.0%}",
    )


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("cost_model", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
