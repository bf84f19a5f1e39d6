"""Bounds: exact on the grid, and never too tight beyond it."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapeexec._errors import SpecError, UnboundedDimError
from shapeexec.shape._dim import evaluate, maximum, minimum
from tests.shape.dim_texts import TEXTS

RANGES = st.tuples(st.integers(-3, 6), st.integers(0, 5)).map(lambda p: (p[0], p[0] + p[1]))


def values(text, ranges):
    points = itertools.product(*(range(low, high + 1) for low, high in ranges.values()))
    found = []
    for point in points:
        try:
            found.append(evaluate(text, dict(zip(ranges, point, strict=True))))
        except ZeroDivisionError:
            found.append(None)
    return found


@given(TEXTS, RANGES, RANGES)
@example("b*s - 2*b", (1, 8), (1, 8))
@example("s^2 - s", (1, 9), (1, 1))
@example("(s - b)^3", (-2, 3), (1, 4))
@example("mod(s, 4)", (5, 6), (1, 1))
@example("s // b", (-3, 4), (-3, -1))
def test_extremes_agree_with_brute_force(text, s, b):
    ranges = {"s": s, "b": b}
    found = values(text, ranges)
    if None not in found:
        assert maximum(text, ranges) == max(found)
        assert minimum(text, ranges) == min(found)


@given(TEXTS, RANGES, RANGES)
@example("mod(s, b)", (0, 5), (1, 5))
@example("s % b", (-3, 5), (-4, -1))
@example("(s - b)**2", (0, 5), (1, 5))
@example("(s - b)**3 - s**0", (0, 5), (1, 5))
@example("s % b", (1, 1), (-4, 1))
@example("s // b", (1, 8), (0, 4))
@example("s // b", (1, 8), (-4, 4))
def test_with_and_without_the_grid_the_bounds_hold_wherever_there_is_a_value(text, s, b):
    ranges = {"s": s, "b": b}
    for value in values(text, ranges):
        if value is not None:
            assert minimum(text, ranges) <= value <= maximum(text, ranges)
            assert minimum(text, ranges, limit=0) <= value <= maximum(text, ranges, limit=0)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("b*s + 3", 10**18 + 3),
        ("s // 2 * b", 5 * 10**17),
        ("- b*s", -1),
        ("max(s - 7, 0) + b^2", 10**9 - 7 + 10**18),
        ("b*s*s*s", 10**36),
        ("b*s - 2*b", 10**18 - 2 * 10**9),
        ("s % 128", 127),
    ],
)
def test_a_huge_grid_is_bounded_exactly_where_the_dim_is_monotone(text, most):
    ranges = {"b": (1, 10**9), "s": (1, 10**9)}
    if text == "b*s - 2*b":  # rises with s, and what it does with b depends on s
        assert maximum(text, ranges) >= most
    else:
        assert maximum(text, ranges) == most


def test_values_beyond_int64_never_wrap_around():
    assert maximum("b^4 - b^2", {"b": (1, 100_000)}) >= 10**20 - 10**10


def test_a_symbol_without_a_range_is_at_least_one():
    assert maximum("100 - s", {}) == 99
    assert minimum("b*s", {}) == 1
    assert maximum("s % 3", {}) == 2
    assert maximum("-s // b", {}) == -1
    assert maximum(7, {}) == 7
    assert minimum(7, {}) == 7


def test_the_missing_bound_is_named():
    with pytest.raises(UnboundedDimError, match=r"(?s)^no lower bound.*bounds `s`.*Fix: +give `s`"):
        minimum("b - s", {"b": (1, 4)})


def test_an_empty_range_is_refused():
    with pytest.raises(SpecError, match=r"(?s)^no size of `s` lies in 1..0.*Fix: .*at least 1"):
        maximum("s", {"s": (1, 0)})
