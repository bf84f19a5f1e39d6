"""What masks cost: counted in the optimised program, and timed, beside masks written by hand.

A count stands for each `select` of the graph that XLA made, inside fusions too; those of the plain
function without any mask are listed apart. `bytes` are those read and written by XLA's cost model.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

import shapeexec as sx
from benchmarks import _by_hand, _networks
from benchmarks._common import (
    Claim,
    Ratio,
    Report,
    Table,
    Timing,
    compiled_graph,
    count_ops,
    largest_difference,
    run_benchmark,
    take_turns,
)
from demo import model

BUCKETS = {"b": sx.Pow2(), "s": sx.Linear(128)}
SHAPES = ((4, 100), (8, 128), (3, 300))
MOST_TIME, MOST_SELECTS = 1.03, 2.0


@dataclasses.dataclass(frozen=True)
class Contest:
    """A model, and the same with masks by hand.

    Attributes:
        name: The model's.
        plain: The forward pass of (params, x).
        by_hand: Of (params, x, batch, size).
        loss: Of (params, x) or, if it has labels, (params, x, labels).
        loss_by_hand: The same with (batch, size) behind.
        init: From a key to parameters.
        data: From random numbers and (batch, size) to the arguments behind the parameters: x and,
            for the loss, labels.
        in_shapes: Of these.
        cut: From (result, batch, size) of the forward pass to the true result.
    """

    name: str
    plain: Callable[..., Any]
    by_hand: Callable[..., Any]
    loss: Callable[..., Any]
    loss_by_hand: Callable[..., Any]
    init: Callable[..., Any]
    data: Callable[..., tuple[np.ndarray, ...]]
    in_shapes: tuple[str, ...]
    cut: Callable[..., Any]

    def sides(self, task: str) -> tuple[Callable[..., Any], sx.Exec, _by_hand.Padded]:
        """The plain function of a task, in an Exec, and by hand."""
        if task == "forward":
            plain, masked, cut = self.plain, self.by_hand, self.cut
            in_shapes = self.in_shapes[:1]
        else:
            plain, masked = jax.value_and_grad(self.loss), jax.value_and_grad(self.loss_by_hand)
            in_shapes, cut = self.in_shapes, _by_hand.cut_nothing
        ex = sx.Exec(plain, in_shapes=(None, *in_shapes), buckets=BUCKETS)
        return plain, ex, _by_hand.Padded(masked, BUCKETS, cut)

    def arguments(self, task: str, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
        """What a task takes behind the parameters."""
        data = self.data(np.random.default_rng(0), *shape)
        return data[:1] if task == "forward" else data


def _tokens(random: np.random.Generator, batch: int, size: int) -> tuple[np.ndarray, ...]:
    return (random.integers(0, 256, (batch, size), dtype=np.int32),)


def _labelled(random: np.random.Generator, batch: int, size: int) -> tuple[np.ndarray, ...]:
    x = random.normal(size=(batch, size, _networks.FEATURES)).astype(np.float32)
    return x, random.integers(0, _networks.CLASSES, batch, dtype=np.int32)


def _transformer(layers: int, *, causal: bool) -> Contest:
    wired = functools.partial(functools.partial, causal=causal)
    return Contest(
        name=f"transformer, {'causal' if causal else 'bidirectional'}",
        plain=wired(model.score),
        by_hand=wired(_by_hand.score),
        loss=wired(model.loss),
        loss_by_hand=wired(_by_hand.loss),
        init=functools.partial(model.init, layers=layers),
        data=_tokens,
        in_shapes=("b, s",),
        cut=_by_hand.cut_scores,
    )


def _network(name: str) -> Contest:
    return Contest(
        name=name.upper(),
        plain=getattr(_networks, name),
        by_hand=getattr(_networks, f"{name}_by_hand"),
        loss=getattr(_networks, f"{name}_loss"),
        loss_by_hand=getattr(_networks, f"{name}_loss_by_hand"),
        init=getattr(_networks, f"init_{name}"),
        data=_labelled,
        in_shapes=(f"b, s, {_networks.FEATURES}", "b"),
        cut=_by_hand.cut_rows,
    )


def contests(layers: int = 2) -> tuple[Contest, ...]:
    """All models."""
    return (
        _transformer(layers, causal=True),
        _transformer(layers, causal=False),
        _network("cnn"),
        _network("lstm"),
    )


TASKS = ("forward", "gradient")


@dataclasses.dataclass(frozen=True)
class Graphs:
    """The compiled graphs of a task at one shape, and calls of them with padded arguments.

    Attributes:
        compiled: The plain function's at the same buckets, the hand-written one's and an Exec's.
        calls: Of the latter two.
        masks: How many the Exec has put in.
        spared: How many it has spared.
        difference: The largest between the two results.
    """

    compiled: Mapping[str, Any]
    calls: Mapping[str, Callable[[], Any]]
    masks: int
    spared: int
    difference: float

    def counts(self) -> dict[str, Any]:
        """What XLA made of them: selects, bytes that are read and written, memory in between."""
        graphs = self.compiled.items()
        return {
            "selects": {who: count_ops(graph.as_text() or "", "select") for who, graph in graphs},
            "bytes": {who: graph.cost_analysis()["bytes accessed"] for who, graph in graphs},
            "temporary": {who: graph.memory_analysis().temp_size_in_bytes for who, graph in graphs},
            "masks": self.masks,
            "spared": self.spared,
        }


def compile_graphs(contest: Contest, task: str, shape: tuple[int, int]) -> Graphs:
    """Compile a task for the buckets of a shape."""
    params = jax.block_until_ready(contest.init(jax.random.key(0)))
    data = contest.arguments(task, shape)
    plain, ex, hand = contest.sides(task)
    padded = hand.padded(*data)
    plan = ex.plan(params, *data)
    leaves = [
        leaf if leaf.shape == capacity else _by_hand.pad_to(np.asarray(leaf), capacity)
        for leaf, capacity in zip(jax.tree.leaves((params, *data)), plan.in_capacities, strict=True)
    ]
    compiled = {
        "plain": jax.jit(plain).lower(params, *padded[:-2]).compile(),
        "by hand": hand.jitted.lower(params, *padded).compile(),
        "exec": compiled_graph(ex, params, *data),
    }
    consts = tuple(plan.recipe.trace.jaxpr.consts)
    calls = {
        "by hand": functools.partial(compiled["by hand"], params, *padded),
        "exec": functools.partial(compiled["exec"], plan.size_vector, consts, leaves),
    }
    notes = ex.explain(params, *data)
    truth = hand.cut(calls["by hand"](), *shape)
    difference = largest_difference(ex(params, *data), truth)
    return Graphs(compiled, calls, len(notes.added), len(notes.spared), difference)


def run(options: argparse.Namespace) -> Report:
    """Count and time each model, forward and backward."""
    shapes, rounds, layers = (((2, 5),), 2, 1) if options.tiny else (SHAPES, 25, 2)
    figures, rows, claims = {}, [], []
    for contest in contests(layers)[1 if options.tiny else 0 :]:
        for task in TASKS:
            figure = _measure(contest, task, shapes, rounds)
            case = f"{contest.name}, {task}"
            figures[case] = figure
            rows += _rows(case, figure)
            claims += _claims(case, figure)
    return Report([Table("median (quartiles)", _COLUMNS, rows)], figures, claims)


_COLUMNS = (
    *("", "b x s", "by hand", "sx.Exec", "ratio"),
    *("selects: Exec, hand, plain", "masks", "bytes / by hand"),
)


def _rows(case: str, figure: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row for the times of each shape, and one for all that is counted."""
    selects, moved = figure["selects"], figure["bytes"]
    rows: list[Sequence[str]] = [
        (
            case,
            shape,
            *(str(Timing(**one[who])) for who in ("by hand", "exec")),
            *(str(Ratio(**one["ratio"])), "", "", ""),
        )
        for shape, one in figure["requests"].items()
    ]
    counted = (
        f"{selects['exec']}, {selects['by hand']}, {selects['plain']}",
        f"{figure['masks']} ({figure['spared']} spared)",
        f"{moved['exec'] / moved['by hand']:.2f}",
    )
    return [*rows, (case, "all", "", "", str(Ratio(**figure["ratio"])), *counted)]


def _claims(case: str, figure: Mapping[str, Any]) -> list[Claim]:
    selects, ratio = figure["selects"], figure["ratio"]["ratio"]
    count, most = selects["exec"] / selects["by hand"], f"{MOST_SELECTS:g}"
    return [
        Claim(f"{case}, time: at most {MOST_TIME} of by hand", ratio, ratio <= MOST_TIME),
        Claim(f"{case}, selects: at most {most} of by hand", count, count <= MOST_SELECTS),
    ]


def _measure(
    contest: Contest, task: str, shapes: Sequence[tuple[int, int]], rounds: int
) -> dict[str, Any]:
    """Counts at the last shape, and the time of the graphs alone: arguments are padded before."""
    ours, theirs = np.zeros(rounds), np.zeros(rounds)
    timed, worst, counts = {}, 0.0, {}
    for shape in shapes:
        graphs = compile_graphs(contest, task, shape)
        seconds = take_turns(graphs.calls, rounds=rounds)
        ours += seconds["exec"]
        theirs += seconds["by hand"]
        worst, counts = max(worst, graphs.difference), graphs.counts()
        timed["{}x{}".format(*shape)] = {
            **{name: asdict(Timing.of(values)) for name, values in seconds.items()},
            "ratio": asdict(Ratio.of(seconds["exec"], seconds["by hand"])),
        }
    return {
        **counts,
        "ratio": asdict(Ratio.of(ours.tolist(), theirs.tolist())),
        "requests": timed,
        "largest_difference": worst,
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("masks", __doc__, run=run, arguments=arguments)


if __name__ == "__main__":
    main()
