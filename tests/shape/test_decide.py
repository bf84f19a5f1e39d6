"""Signs of dims are decided by what all sizes have in common, or shown to be open by two sizes."""

import math

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export

from shapeexec import _compat
from shapeexec.shape import _dim
from shapeexec.shape._arithmetic import Listener
from shapeexec.shape._decide import _bounds, sign_bounds
from shapeexec.shape._questions import Questions
from shapeexec.shape._substitution import Substitution
from tests.shape.dim_texts import dim_texts


@given(dim_texts(), st.data())
def test_bounds_hold_at_every_size(text, data):
    try:
        low, high = _bounds(text)
    except ZeroDivisionError:  # it divides numbers by 0, and has no value at any size
        return
    for _ in range(5):
        sizes = {s: data.draw(st.integers(1, 40)) for s in _dim.symbols_of(text)}
        try:
            value = _dim.evaluate(text, sizes)
        except ZeroDivisionError:
            continue
        assert low <= value <= high


@pytest.mark.parametrize(
    ("text", "bounds"),
    {
        "- 2*floordiv(- h, 2) - 1 - h": (-1, 0),
        "2*floordiv(h + 1, 2) - h + 1": (1, 2),
        "4*floordiv(h, 4) - h": (-3, 0),
        "3*floordiv(floordiv(h, 2), 3) - floordiv(h, 2)": (-2, 0),
        "max(0, s - 3) - s": (-3, -1),
        "floordiv(s - 3, 2) + 1": (0, math.inf),
    }.items(),
)
def test_what_is_divided_meets_what_it_is_compared_with(text, bounds):
    assert _bounds(text) == bounds


def test_two_signs_show_that_nothing_decides():
    assert sign_bounds("s - 3", (), is_strict=True) == (-math.inf, math.inf)
    assert sign_bounds("s - 3", (("s - 3", ">="),), is_strict=True) is None
    assert sign_bounds("s - 1", (), is_strict=True) == (0, math.inf)
    assert sign_bounds("-s", (), is_strict=False) == (-math.inf, -1)


SPELLINGS = (
    lambda s: (s + 1) // 2,
    lambda s: -(-s // 2),
    lambda s: (s - 1) // 2 + 1,
    lambda s: (s + 5) // 2 - 2,
    lambda s: -((s + 1) // -2),
)


def listened(fn):
    scope = export.SymbolicScope()
    (s,) = export.symbolic_shape("s", scope=scope)
    with _compat.listen_to_dims(Listener(Questions({"s": 5}, Substitution(), {})), scope):
        return _dim.dim_text(fn(s))


def test_quotients_have_one_form():
    spelled = {listened(fn) for fn in SPELLINGS if fn is not SPELLINGS[-1]}
    assert spelled == {"floordiv(s + 1, 2)"}
    assert listened(lambda s: ((s + 1) // 2 + 1) // 2) == "floordiv(s + 3, 4)"


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([-3, -2, 2, 3, 4])), max_size=4))
def test_a_quotient_in_its_form_is_the_quotient(steps):
    def fn(s):
        for shift, divisor in steps:
            s = (s + shift) // divisor
        return s

    text = listened(fn)
    for size in range(1, 50):
        assert _dim.evaluate(text, {"s": size}) == fn(size)


def test_jax_is_left_alone_outside_of_a_trace():
    (s,) = jax.export.symbolic_shape("s")
    assert str(-(-s // 2)) == "- floordiv(- s, 2)"
