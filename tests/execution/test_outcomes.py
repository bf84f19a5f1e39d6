"""A function with many outcomes is warned of as soon as that can be foreseen."""

import warnings

import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._outcomes import outcomes
from shapeexec.shape._guards import Guard


@pytest.mark.parametrize(
    ("guards", "count"),
    [
        ([], 1),
        ([Guard("s", "<", "4"), Guard("s", ">=", "4")], 2),
        ([Guard("s", "<", "4"), Guard("s", "<", "9")], 4),
        ([Guard("mod(s, 3)", "==", "1"), Guard("mod(s, 3)", "!=", "0")], 3),
        ([Guard("mod(s, 8)", "==", "1"), Guard("mod(t, 2)", "==", "1")], 16),
        ([Guard("s", "==", "5"), Guard("s", "!=", "6")], 3),
    ],
)
def test_outcomes_are_counted_by_question(guards, count):
    assert outcomes(guards) == count


def calls_until_warned(fn, sizes):
    run = sx.Exec(fn, ("s",), buckets=sx.Pow2())
    for number, size in enumerate(sizes, start=1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.plan(np.ones(size, np.float32))
        if any("Each outcome has its own graph" in str(each.message) for each in caught):
            return number
    return None


def by_remainders(x):
    n = x.shape[0]
    return x * (1 + (n % 2 == 0)) * (1 + 2 * (n % 3 == 0)) * (1 + 4 * (n % 5 == 0))


def by_ranges(x):
    n = x.shape[0]
    return x * sum(n > limit for limit in (2, 4))


def by_size(x):
    return x * {n: n for n in range(1, 99)}[x.shape[0]]


@pytest.mark.parametrize(
    ("fn", "trace"), [(by_remainders, 3), (by_ranges, None), (by_size, 8)], ids=["3", "-", "8"]
)
def test_an_exec_warns_at_the_third_trace_if_it_can_or_else_at_the_eighth(fn, trace):
    assert calls_until_warned(fn, (1, 2, 3, 5, 6, 10, 15, 30, 31)) == trace


def test_an_exec_warns_of_many_traces_once():
    run = sx.Exec(by_remainders, ("s",), buckets=sx.Pow2())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (1, 2, 3, 5, 6, 10, 15, 30):
            run.plan(np.ones(size, np.float32))
    assert len(caught) == 1
