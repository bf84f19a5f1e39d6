"""`_compat.dims`: what is asked of a symbolic dim is heard, and JAX's own answers are kept."""

import contextlib
import dataclasses
import inspect
import math
import numbers
import operator
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from shapeexec import _compat
from tests.marks import written


class Listener:
    """Records what it hears, and gives fixed answers."""

    def __init__(self, answer=None, value=None):
        self.answer, self.value = answer, value
        self.asked, self.needs, self.heard, self.places = [], [], [], []

    def decide(self, left, op, right, place):
        self.asked.append((op, right))
        self.places.append(place)
        return self.answer and self.answer(right)

    def need(self, dim, what, place):
        self.needs.append(what)
        return self.value

    def hear(self, left, op, right):
        self.heard.append((op, str(right)))

    def calculate(self, name, left, right):
        return None  # all is left to JAX

    def as_array(self, dim, via):
        return None

    def is_of_numpy(self, dim):
        return False


def struct(dim):
    return jax.ShapeDtypeStruct((dim,), np.float32)


REFUSALS = (TypeError, jax.errors.InconclusiveDimensionOperation)


def listener_of(ask, **answers):
    """The listener, after code asked something of a symbolic dim."""
    (s,) = export.symbolic_shape("s")
    listener = Listener(**answers)
    with _compat.listen_to_dims(listener, s.scope), contextlib.suppress(*REFUSALS):
        ask(s)
    return listener


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (lambda s: s == 4, [("==", 4)]),
        (lambda s: s != 4, [("==", 4)]),
        (lambda s: s in (4, 5), [("==", 4), ("==", 5)]),
        (lambda s: bool(s % 2), [("==", 0)]),
        (lambda s: s == s, []),  # noqa: PLR0124 - proven
        (lambda s: s >= 1, []),
        (lambda s: jax.eval_shape(lambda x: x.sum() + jnp.ones(x.shape), struct(s)), []),
        (eval("lambda s: s == 4"), [("==", 4)]),  # code that was typed in, not imported
        (lambda s: dataclasses.make_dataclass("D", ["n"])(s) == 4, []),
        (lambda s: jax.eval_shape(lambda x: jnp.packbits(x > 0), struct(s)), [("==", 0)]),
    ],
    ids=written,
)
def test_what_user_code_and_jaxs_library_ask_is_heard(ask, asked):
    listener = listener_of(ask)
    assert listener.asked == asked
    assert all("test_compat_dims.py" in place or place == "<string>:1" for place in listener.places)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_an_order_that_is_open_is_asked(op):
    ask = eval(f"lambda s: s {op} 4")
    assert listener_of(ask, answer=lambda right: True).asked == [(op, 4)]
    (s,) = export.symbolic_shape("s")
    with pytest.raises(jax.errors.InconclusiveDimensionOperation):
        ask(s)


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        ({4: 1}.get, "hash"),
        (str, "str"),
        (repr, "str"),
        ("{:3}".format, "str"),
        (int, "int"),
        (range, "int"),
        (operator.index, "int"),
        (float, "float"),
        (math.sqrt, "float"),
    ],
    ids=written,
)
def test_a_value_that_user_code_needs_is_heard(ask, what):
    assert listener_of(ask, value="5").needs == [what]


def test_jaxs_core_is_heard_and_not_answered():
    def ask(s):
        x = struct(s)
        jax.eval_shape(lambda x: x[: x.shape[0] // 2] + jnp.ones(1), x)

    listener = listener_of(ask, answer=lambda right: True)
    assert ("==", "1") in listener.heard
    assert ("//", "2") in listener.heard
    assert {op for op, _ in listener.heard} >= {"==", "//", "max", "min"}
    assert ("==", 1) not in listener.asked


@pytest.mark.parametrize(
    ("module", "asked", "heard"), [(jnp.zeros, [("==", 4)], []), (jax.jit, [], [("==", "4")])]
)
def test_a_cache_that_compares_keys_asks_nothing(module, asked, heard):
    filename = inspect.getfile(inspect.unwrap(module))
    scope = {"equal": operator.eq}
    exec(
        compile("def look_up(s): equal((s,), (4,))\ndef ask(s): (s,) == (4,)", filename, "exec"),
        scope,
    )
    listener = listener_of(scope["look_up"], answer=lambda right: True)
    assert (listener.asked, listener.heard) == ([], [])
    listener = listener_of(scope["ask"], answer=lambda right: True)
    assert (listener.asked, listener.heard) == (asked, heard)


def test_a_size_is_an_int_to_user_code_that_asks():
    (s,) = export.symbolic_shape("s")
    with _compat.listen_to_dims(Listener(), s.scope):
        assert isinstance(s, int)
        assert isinstance(s, numbers.Integral)
        assert not isinstance(s, str)
        assert export.is_symbolic_dim(s)
    assert not isinstance(s, int)


def test_a_size_indexes():
    def fn(x):
        n = x.shape[0]
        return x[n - 1] + x.at[n // 2].set(0.0)[0]

    (s,) = export.symbolic_shape("s")
    with pytest.raises(IndexError):
        jax.eval_shape(fn, struct(s))
    listener_of(lambda s: jax.eval_shape(fn, struct(s)))
    with _compat.listen_to_dims(Listener(), s.scope):
        assert jax.eval_shape(fn, struct(s)).shape == ()


def test_an_answer_is_given():
    (s,) = export.symbolic_shape("s")
    with _compat.listen_to_dims(Listener(answer=lambda right: right == 4, value="7"), s.scope):
        assert s == 4
        assert s != 5
        assert bool(s)
        assert not s > 8
        assert f"{s}, {s:3}" == "7,   7"
    assert s != 4
    assert str(s) == "s"


# What JAX made of dims is remembered, and nobody's question is


def as_jax_asks(code, **names):
    """The value of an expression as if it stood in a file of JAX's core."""
    return eval(compile(code, jax.core.__file__, "eval"), names)


def test_arithmetic_that_is_repeated_gives_the_same_dim():
    (s,) = export.symbolic_shape("s")
    with _compat.listen_to_dims(Listener(), s.scope):
        assert (s + 1) // 2 is (s - 1) // 2 + 1
        assert s * np.int64(2) is s + s
    assert s + 1 is not s + 1


def test_dims_that_are_gone_are_taken_for_no_others():
    (s,) = export.symbolic_shape("s")
    with _compat.listen_to_dims(Listener(), s.scope):
        for i in range(2, 300):
            assert str(-(s * i) - 5) == f"- {i}*s - 5"


@pytest.mark.parametrize("code", ["s == t", "s != t", "bool(s - t)", "s < t"])
def test_user_code_is_heard_where_jax_asked_the_same_before(code):
    s, t = export.symbolic_shape("s, t")
    listener = Listener()
    with _compat.listen_to_dims(listener, s.scope):
        for _ in range(2):
            with contextlib.suppress(*REFUSALS):
                as_jax_asks(code, s=s, t=t)
        assert listener.asked == []
        for _ in range(2):
            with contextlib.suppress(*REFUSALS):
                eval(code)
    assert len(listener.asked) == 2


@pytest.mark.parametrize("code", ["s // t", "s % t", "divmod(s, t)", "7 // t"])
def test_a_divisor_is_asked_for_wherever_user_code_divides(code):
    s, t = export.symbolic_shape("s, t")
    listener = Listener()
    with _compat.listen_to_dims(listener, s.scope):
        as_jax_asks(code, s=s, t=t)
        assert listener.asked == []
        eval(code)
        eval(code)
    assert listener.asked == [("==", 0)] * 2


def test_dims_of_another_scope_are_not_heard_of():
    (s,), (t,) = export.symbolic_shape("s"), export.symbolic_shape("t")
    listener = Listener()
    with _compat.listen_to_dims(listener, s.scope):
        assert t != 4
        assert s != t
    assert listener.asked == []


def test_what_another_thread_asks_is_heard():
    (s,) = export.symbolic_shape("s")
    listener, answers = Listener(answer=lambda right: True), []
    with _compat.listen_to_dims(listener, s.scope):
        thread = threading.Thread(target=lambda: answers.append(s == 4))
        thread.start()
        thread.join()
    assert (listener.asked, answers) == ([("==", 4)], [True])


def test_the_place_is_the_users_line():
    (s,) = export.symbolic_shape("s")
    listener = Listener()
    with _compat.listen_to_dims(listener, s.scope):
        _ = s == 4  # here
    assert "# here" in _compat.describe_line(listener.places[0])
