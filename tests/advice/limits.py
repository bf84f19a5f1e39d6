"""Advice where the library gives up what would be too much; its limits are lowered for that."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

import shapeexec as sx
from shapeexec.shape import _attempt, _budget
from tests.advice.row import Advice, exact_ways, quoted, runs, somewhat
from tests.tolerance import assert_close

X = somewhat(8)
SIZE_SHAPES = ("s", "t", "u")


def halves(*arrays: Any) -> Any:
    """It wants even sizes."""
    return sum((x[0::2] * x[1::2]).sum() for x in arrays)


def added(*arrays: Any) -> Any:
    """It wants equal sizes."""
    return sum(arrays[1:], arrays[0])


def searched(fn: Callable[..., Any], **options: Any) -> Any:
    """An Exec of three arguments, whose search for facts ends after one trace."""
    with mock.patch.object(_budget, "MOST_TRIES", 1):
        return runs(fn, X, X, X, **{"in_shapes": SIZE_SHAPES} | options)


def given_up(
    name: str, fn: Callable[..., Any], fix: str, options: Callable[[str], dict[str, Any]]
) -> Advice:
    """A function of facts that are not found, by what the Fix line tells, and at exact sizes."""
    return Advice(
        name,
        "inconclusive",
        sx.InconclusiveShapeError,
        lambda: searched(fn),
        fix,
        lambda told: [searched(fn, **ways) for ways in (options(told), *exact_ways(told))],
        lambda: [fn(X, X, X)] * 3,
    )


def asked(**options: Any) -> Any:
    """A sum by pairs, when one question of the sizes is one too many."""
    with mock.patch.object(_attempt, "_MOST_ATTEMPTS", 1):
        return runs(lambda x: x.reshape(-1, 2).sum(), X, **options)


def branched(x: Any, y: Any) -> Any:
    return (x[: x.shape[0] // 2 + 1].sum() if x.shape[0] > 3 else x.sum()) + y.sum()


def warm(**sizes: Any) -> int:
    """How many of some calls compile after a warm-up."""
    ex = sx.Exec(branched, ("s", "t"), buckets=sx.Pow2())
    ex.warmup(X, X, **sizes)
    before = ex.stats.compiles
    for size in (3, 8, 400):
        x = np.ones(size, np.float32)
        assert_close(ex(x, X[:2]), branched(x, X[:2]))
    return ex.stats.compiles - before


ROWS = [
    given_up(
        "what divides",
        halves,
        'write the divisor into the spec, such as "8*u" (pad the data to it), or pass',
        lambda told: {"in_shapes": [quoted(told, '"')[0].replace("u", s) for s in SIZE_SHAPES]},
    ),
    given_up(
        "what is equal",
        added,
        "or pass constraints=...; or make `s` and `t` and `u` exact",
        lambda told: {"constraints": ("s == t", "t == u")},
    ),
    Advice(
        "too many questions",
        "constraints",
        sx.InconclusiveShapeError,
        asked,
        "give facts as constraints=...; or make `s` exact",
        lambda told: [
            asked(**ways) for ways in ({"constraints": "mod(s, 2) == 0"}, *exact_ways(told))
        ],
        lambda: [X.sum()] * 3,
    ),
    Advice(
        "too many combinations",
        "frozen",
        sx.ConfigError,
        lambda: warm(s=range(1, 401), t=range(1, 401)),
        "give fewer sizes, or warm up symbol by symbol",
        lambda told: [warm(s=(3, 8, 400), t=2), warm(s=range(1, 401), t=2)],
        lambda: [0, 0],
    ),
]
