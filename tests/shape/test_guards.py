"""A trace by itself, and guards by themselves: what they stand on, and what is left behind."""

import jax
import numpy as np
import pytest

from shapeexec._errors import InconclusiveShapeError
from shapeexec.shape import _attempt
from shapeexec.shape._dim import Dim
from shapeexec.shape._guards import Guard, parse_constraint
from shapeexec.shape._trace import Leaf, trace


def test_a_dim_that_stands_for_a_symbol_is_at_least_1():
    def fn(x, y):
        assert y.shape[0] == x.shape[0] - 1
        return y[1:]

    leaves = [Leaf((Dim(symbol),), np.dtype(np.float32)) for symbol in "st"]
    traced = trace(fn, leaves, sizes={"s": 5, "t": 4})
    assert [str(guard) for guard in traced.guards] == ["t == s - 1"]
    assert str(traced.jaxpr.out_avals[0].shape) == "(s - 2,)"
    assert traced.symbols == {"s", "t"}


def test_a_function_that_works_is_traced_once():
    tries = []
    trace(
        lambda x: tries.append(x) or x[1:].sum(),
        [Leaf((Dim("s"),), np.dtype(np.float32))],
        sizes={"s": 3},
    )
    assert len(tries) == 1


def test_without_sizes_a_question_is_an_error():
    leaf = Leaf((Dim("s"),), np.dtype(np.float32))
    with pytest.raises(InconclusiveShapeError, match="`s == 4` cannot be decided") as caught:
        trace(lambda x: x if x.shape[0] == 4 else 2 * x, [leaf], sizes=None)
    assert caught.value.symbols == {"s"}
    assert "Fix:" in str(caught.value)


def test_a_constraint_decides_without_sizes():
    leaf = Leaf((Dim("s"),), np.dtype(np.float32))
    facts = [parse_constraint("s >= 5")]
    traced = trace(lambda x: x if x.shape[0] > 4 else 2 * x, [leaf], sizes=None, constraints=facts)
    assert traced.guards == ()


def test_constraints_whose_bounds_jax_seeks_without_end_are_not_told_it():
    facts = ("b >= 1", "b^2 >= b", "min(b^2, b) == b^2")
    assert _attempt._is_accepted(facts)
    assert not _attempt._is_accepted((*facts, "b == min(b^2, b)"))


def test_jax_is_as_it_was_after_a_trace_that_failed():
    (before,) = jax.export.symbolic_shape("s")
    names = (
        "__eq__",
        "__ne__",
        "__hash__",
        "__str__",
        "__lt__",
        "__floordiv__",
        "__getattribute__",
    )
    methods = {name: getattr(type(before), name) for name in names}
    index = jax.core.Tracer.__getitem__
    with pytest.raises(ZeroDivisionError):
        trace(lambda x: 1 / 0, [Leaf((Dim("s"),), np.dtype(np.float32))], sizes={"s": 3})
    assert {name: getattr(type(before), name) for name in methods} == methods
    assert not {"__bool__", "__index__", "__float__"} & vars(type(before)).keys()
    assert jax.core.Tracer.__getitem__ is index


# Guards by themselves


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_guard_or_its_negation_holds(op, size):
    asked = Guard("s", op, "4")
    decided = asked.decided({"s": size})
    assert decided.holds({"s": size})
    assert (decided == asked) == asked.holds({"s": size})


def test_where_a_guard_was_asked_does_not_tell_guards_apart():
    assert Guard("s", ">", "4", "a.py:1") == Guard("s", ">", "4")


@pytest.mark.parametrize("text", ["s>=2", " s >= 2 ", "mod(s, 8) == 0", "b*s != 2*s - 1"])
def test_a_constraint_is_a_guard(text):
    assert parse_constraint(text).holds({"s": 8, "b": 3})
