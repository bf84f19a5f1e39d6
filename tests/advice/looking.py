"""Advice on padding and cutting by hand, on graphs that are looked at, and on programs."""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import matplotlib as mpl
import numpy as np

import shapeexec as sx
from tests.advice.row import Advice, exact_ways, quoted, somewhat, value

X, PLANE = somewhat(5), somewhat(2, 3)
PADDED, SIZES = sx.pad_to_bucket(PLANE, "b, s", buckets={"b": "pow2", "s": 4})
TRUE = {"b": 2, "s": 3}


def double(x: Any) -> Any:
    return 2 * x


def by_hand(
    name: str, broken: Callable[[], Any], fix: str, follow: Callable[[str], Any], expected: Any
) -> Advice:
    return Advice(name, "by hand", sx.SpecError, broken, fix, follow, lambda: expected)


def called(dtype: Any = np.float32) -> sx.Exec:
    """What has run at size 5."""
    ex = sx.Exec(double, ("s",), buckets=sx.Pow2())
    ex(X)
    ex(X.astype(dtype))
    return ex


def graphs(
    name: str, broken: Callable[[], Any], fix: str, follow: Callable[[str], Any], expected: Any
) -> Advice:
    return Advice(name, "graphs", sx.ConfigError, broken, fix, follow, lambda: expected)


def bars(ex: sx.Exec) -> int:
    """How many graphs the picture has."""
    with mpl.rc_context({"backend": "agg"}):
        return len(ex.graphs.plot().axes[0].containers[0])


def without_matplotlib(look: Callable[[sx.Exec], Any]) -> Any:
    with mock.patch.dict(sys.modules, {"shapeexec.execution._plot": None}):
        return look(called())


ROWS = [
    by_hand(
        "no spec",
        lambda: sx.unpad(PADDED, TRUE),
        'pass the spec: unpad(x, sizes, spec="b, s"), or the sizes that pad_to_bucket returned',
        lambda told: [
            value(f"sx.{told.split(': ')[1].split(', or')[0]}", x=PADDED, sizes=TRUE),
            sx.unpad(PADDED, SIZES),
        ],
        [PLANE] * 2,
    ),
    Advice(
        "within an Exec",
        "by hand",
        sx.InconclusiveShapeError,
        lambda: sx.Exec(lambda x: double(sx.pad_to_bucket(x, "s", buckets=8)[0]), ("s",))(X),
        "pad and cut outside of the Exec, or call the function without it; or make `s` exact",
        lambda told: [
            sx.Exec(double, ("s",))(sx.pad_to_bucket(X, "s", buckets=8)[0]),
            double(sx.pad_to_bucket(X, "s", buckets=8)[0]),
            *(
                sx.Exec(lambda x: double(sx.pad_to_bucket(x, "s", buckets=8)[0]), ("s",), **ways)(X)
                for ways in exact_ways(told)
            ),
        ],
        lambda: [np.pad(2 * X, (0, 3))] * 4,
    ),
    by_hand(
        "traced sizes",
        lambda: jax.jit(lambda x, n: sx.unpad(x, {"s": n}, spec="s"))(X, 3),
        'unpad outside of jit, with the sizes of pad_to_bucket or such as {"s": 5}',
        lambda told: sx.unpad(np.pad(X, (0, 3)), value(told.split("such as ")[1]), spec="s"),
        X,
    ),
    by_hand(
        "a merged axis",
        lambda: sx.unpad(PADDED.reshape(-1), TRUE, spec="b*s"),
        "cut the arrays before they are merged, or run the function in an Exec",
        lambda told: [
            sx.unpad(PADDED, TRUE, spec="b, s").reshape(-1),
            sx.Exec(lambda x: x.reshape(-1), ("b, s",))(PLANE),
        ],
        [PLANE.reshape(-1)] * 2,
    ),
    by_hand(
        "a symbol without a size",
        lambda: sx.unpad(PADDED, {"b": 1}, spec="b, s"),
        "name one of b, or `_` for an axis to leave as it is",
        lambda told: sx.unpad(PADDED, {"b": 1}, spec=f"b, {quoted(told)[0]}"),
        np.pad(PLANE, ((0, 0), (0, 1)))[:1],
    ),
    by_hand(
        "an array that is not at capacity",
        lambda: sx.unpad(PADDED[:, :2], SIZES),
        "pass an array at capacity, or write `_` for an axis that is not padded",
        lambda told: [
            sx.unpad(PADDED, SIZES),
            sx.unpad(PADDED[:, :2], SIZES, spec=f"b, {quoted(told)[0]}"),
        ],
        [PLANE, PLANE[:, :2]],
    ),
    graphs(
        "the name of a symbol",
        lambda: called().graphs["s"],
        'a number, graphs[0], or sizes, graphs[{"s": 100}]',
        lambda told: [
            called().graphs[0].buckets["s"],
            value(
                "graphs[" + told.split("graphs[")[2].replace("100", "7"), graphs=called().graphs
            ).buckets["s"],
        ],
        [8, 8],
    ),
    Advice(
        "a number beyond all graphs",
        "graphs",
        sx.GraphIndexError,
        lambda: called().graphs[1],
        "graphs[0] to graphs[0]",
        lambda told: value(told.split(" to ")[1], graphs=called().graphs).buckets["s"],
        lambda: 8,
    ),
    graphs(
        "sizes that have no graph",
        lambda: called().graphs[{"s": 100}],
        "a size for each symbol, in a bucket that a call has used or warmup() made",
        lambda told: called().graphs[{"s": 6}].buckets["s"],
        8,
    ),
    graphs(
        "sizes of two graphs",
        lambda: called(np.float16).graphs[{"s": 5}],
        "choose by number, such as graphs[0]",
        lambda told: value(told.split("such as ")[1], graphs=called(np.float16).graphs).buckets[
            "s"
        ],
        8,
    ),
    graphs(
        "a column that there is not",
        lambda: called().graphs.table("size"),
        "one of buckets, parts, hits,",
        lambda told: [
            called().graphs.table(column).count("\n") > 1
            for column in told.removeprefix("one of ").split(", ")
        ],
        [True] * 8,
    ),
    graphs(
        "a picture of no graphs",
        sx.Exec(double, ("s",)).graphs.plot,
        "call the Exec, or warm it up",
        lambda told: bars(called()),
        1,
    ),
    graphs(
        "a picture without matplotlib",
        lambda: without_matplotlib(lambda ex: ex.graphs.plot()),
        "pip install matplotlib, or print the table",
        lambda told: without_matplotlib(lambda ex: "s=8" in str(ex.graphs)),
        True,
    ),
    Advice(
        "a spec for the function",
        "programs",
        sx.ConfigError,
        lambda: sx.trace(sx.Shape("float32", "s"), double),
        "the function first, then a spec per argument: sx.trace(f, ",
        lambda told: str(value(told.split(": ")[1], f=double).results[0].shape) == "f32[b,s]",
        lambda: True,
    ),
    Advice(
        "no spec for an argument",
        "programs",
        sx.SpecError,
        lambda: sx.trace(double),
        "one spec for each argument of the function, in their order",
        lambda told: str(sx.trace(double, "s").results[0].shape) == "f32[s]",
        lambda: True,
    ),
]
