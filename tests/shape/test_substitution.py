"""What the symbols of a call are in a trace: guards replace them, and sizes find the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapeexec.shape._dim import Dim, evaluate
from shapeexec.shape._guards import Guard
from shapeexec.shape._substitution import substitution


def split(symbol, divisor, remainder):
    return Guard(f"mod({symbol}, {divisor})", "==", str(remainder), splits=True)


@pytest.mark.parametrize(
    ("guards", "inner"),
    [
        ([Guard("s", "==", "5")], {"s": "5"}),
        ([Guard("5", "==", "s")], {"s": "5"}),
        ([Guard("s", "==", "t")], {"t": "s"}),
        ([Guard("t", "==", "2*s + 1")], {"t": "2*s + 1"}),
        ([Guard("s - 1", "==", "t")], {"t": "s - 1"}),
        ([Guard("s", "==", "t"), Guard("t", "==", "4")], {"t": "4", "s": "4"}),
        ([Guard("s", "==", "t"), Guard("t", "==", "u")], {"t": "s", "u": "s"}),
        ([split("s", 2, 1)], {"s": "2*s_by_2 - 1"}),
        ([split("s", 2, 0)], {"s": "2*s_by_2"}),
        ([split("s", 3, 1)], {"s": "3*s_by_3 - 2"}),
        ([split("s", 2, 1), Guard("s", "==", "t")], {"s": "2*s_by_2 - 1", "t": "2*s_by_2 - 1"}),
    ],
    ids=str,
)
def test_a_guard_replaces_a_symbol(guards, inner):
    found, others = substitution(guards)
    assert found.inner == {symbol: Dim(text) for symbol, text in inner.items()}
    assert others == []


@pytest.mark.parametrize(
    ("guards", "inner"),
    [
        ([Guard("t", ">=", "s"), Guard("s", ">=", "t")], {"t": "s"}),
        ([Guard("t", "<=", "s"), Guard("s", "<=", "t")], {"t": "s"}),
        ([Guard("t", ">", "s"), Guard("s + 1", ">=", "t")], {"t": "s + 1"}),
        ([Guard("t", "<", "s + 1"), Guard("t", ">=", "s")], {"t": "s"}),
        ([Guard("s", "<=", "4"), Guard("s", ">", "3")], {"s": "4"}),
        ([Guard("t", ">", "s"), Guard("s", ">=", "t")], {}),
        ([Guard("t", ">=", "s"), Guard("s", ">=", "t - 1")], {}),
        ([Guard("t", ">=", "s"), Guard("t", ">=", "s")], {}),
    ],
    ids=str,
)
def test_two_bounds_that_meet_are_an_equation(guards, inner):
    found, _ = substitution(guards)
    assert found.inner == {symbol: Dim(text) for symbol, text in inner.items()}


@pytest.mark.parametrize(
    "guard",
    [
        Guard("s", ">=", "2"),
        Guard("s", "!=", "2"),
        Guard("mod(s, 2)", "==", "0"),
        Guard("2*s", "==", "10"),
        Guard("floordiv(s, 2)", "==", "3"),
        Guard("mod(s, 2)", "==", "s", splits=True),
        Guard("s^2", "==", "s"),
        Guard("s", "==", "0"),
    ],
    ids=str,
)
def test_other_guards_replace_nothing(guard):
    found, others = substitution([guard])
    assert (found.inner, others) == ({}, [guard])


@given(st.integers(1, 200), st.lists(st.integers(2, 4), max_size=3), st.integers(0, 30))
def test_sizes_are_found_again(size, divisors, slack):
    guards, dim, sizes = [], "s", {"s": size}
    for divisor in divisors:
        guards.append(split(dim, divisor, evaluate(dim, sizes) % divisor))
        found, others = substitution(guards)
        assert others == []
        (own,) = found.outer
        dim = found.outer[own].text
    found, _ = substitution(guards)
    own = found.sizes(sizes)
    assert evaluate(found.inward("s"), own) == size
    assert all(value >= 1 for value in own.values())
    assert found.symbols(own) == {"s"}
    ((_, (low, high)),) = found.ranges({"s": (size, size + slack)}).items()
    (value,) = own.values()
    assert 1 <= low <= value <= high
    assert min(found.ranges({"s": (1, size)}).values()) >= (1, 1)
    (name,) = own
    assert evaluate(found.inward("s"), {name: high}) <= size + slack


def test_a_dim_goes_in_and_out():
    found, _ = substitution([split("s", 2, 1)])
    assert found.inward("floordiv(s + 1, 2)") == Dim("s_by_2")
    assert evaluate(found.outward("s_by_2"), {"s": 5}) == 3


def test_a_side_of_a_guard_may_be_negative_at_the_size_that_another_fixes():
    found, _ = substitution([Guard("s", "==", "2")])
    assert str(found.inward("s - 3")) == "-1"
