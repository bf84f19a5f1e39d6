"""Dims: canonical text, arithmetic, evaluation on each kind of operand, conversion to JAX's."""

import copy
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shapeexec._errors import SpecError, UnboundedDimError
from shapeexec.shape import BATCH, SEQ_LEN, UNKNOWN, Dim
from shapeexec.shape._dim import dim_text, evaluate, from_jax, symbols_of, to_jax
from tests.shape.dim_texts import TEXTS

B, S = BATCH, SEQ_LEN
SIZES = st.integers(1, 9)


def python_value(text, **sizes):
    try:
        return eval(text, {"max": max, "min": min}, sizes)
    except ZeroDivisionError:
        assume(False)


def dim_of(text):
    try:
        return Dim(text)
    except SpecError:  # a divisor that is 0 at every size
        assume(False)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("2*s+1", "2*s + 1"),
        (" s // 2 ", "floordiv(s, 2)"),
        ("s % 3", "mod(s, 3)"),
        ("s**2 - b", "s^2 - b"),
        ("s^2 - b", "s^2 - b"),
        ("-s^2", "- s^2"),
        ("max(s - 2, 0)", "max(s - 2, 0)"),
        ("100 - s", "- s + 100"),
        ("(s + 1)*(s - 1)", "s^2 - 1"),
        ("floordiv(2*s, 2)", "s"),
        ("s - s", "0"),
        ("+7 % 4", "3"),
    ],
)
def test_the_text_is_what_jax_prints(written, text):
    assert Dim(written).text == str(Dim(written)) == text


@given(TEXTS, SIZES, SIZES)
def test_simplifying_keeps_the_value(text, s, b):
    expected = python_value(text, s=s, b=b)
    assert dim_of(text).evaluate(s=s, b=b) == expected


@given(TEXTS)
def test_the_printed_text_is_read_back_as_the_same_dim(text):
    dim = dim_of(text)
    assert Dim(dim.text) == dim
    assert hash(Dim(dim.text)) == hash(dim)


@given(TEXTS, SIZES, SIZES)
def test_arrays_of_numpy_evaluate_as_integers_do(text, s, b):
    expected = python_value(text, s=s, b=b)
    actual = evaluate(text, {"s": np.array([s]), "b": np.array([b])})
    np.testing.assert_array_equal(np.broadcast_to(actual, 1), [expected])


@pytest.mark.parametrize(
    "text",
    ["floordiv(s, b)", "mod(s, b)", "max(s, b)", "min(s, b)", "s^3 - 2*b", "- s + 100", "s // 3"],
)
@pytest.mark.parametrize(("s", "b"), [(-7, 2), (7, -2), (5, 3)])
def test_arrays_and_tracers_of_jax_floor_as_python_does(text, s, b):
    expected = evaluate(text, {"s": s, "b": b})
    env = {"s": jnp.int32(s), "b": jnp.int32(b)}
    assert evaluate(text, env) == expected
    traced = jax.jit(lambda env: evaluate(text, env))(env)
    assert traced == expected
    assert traced.dtype == jnp.int32


def test_integers_may_stand_beside_tracers():
    assert jax.jit(lambda s: evaluate("max(s, b)", {"s": s, "b": 3}))(jnp.int32(2)) == 3


@given(TEXTS, SIZES, SIZES)
def test_a_dim_of_jax_evaluates_as_the_dim_that_it_came_from(text, s, b):
    expected = python_value(text, s=s, b=b)
    dim = to_jax(dim_of(text), jax.export.SymbolicScope())
    assert from_jax(dim) == dim_of(text)
    assert evaluate(dim, {"s": s, "b": b}) == expected


def test_a_scope_that_fixes_a_symbol_gives_an_integer():
    scope = jax.export.SymbolicScope(["s == 5"])
    assert to_jax(Dim("2*s + 1"), scope) == 11


def test_dims_of_jax_can_be_put_in_for_symbols():
    (k,) = jax.export.symbolic_shape("k")
    assert from_jax(evaluate("max(s // 2, 1)", {"s": 2 * k})) == Dim("k")


def test_arithmetic_takes_integers_and_dims_on_both_sides():
    assert 2 * S + 1 == 1 + S * 2 == Dim("2*s + 1")
    assert 100 - S == -(S - 100) == Dim("100 - s")
    assert Dim("s // 2") == S // 2
    assert Dim("10 // s") == 10 // S
    assert Dim("s % b") == S % B
    assert Dim("10 % s") == 10 % S
    assert S**2 == S * S == Dim("s^2")
    assert B * (S + np.int64(1)) == Dim("b*s + b")
    assert Dim(2) ** 3 == 2 ** Dim(3) == 8


def test_arithmetic_with_anything_else_is_a_type_error():
    for other in (1.5, "s", None, True):
        with pytest.raises(TypeError, match="unsupported operand"):
            S + other


def test_a_static_dim_is_its_integer():
    assert Dim(512) == 512 == Dim("500 + 12")
    assert {512: "found"}[Dim(512)] == "found"
    assert Dim(512).is_static
    assert Dim(512).value == 512
    assert Dim(-3).value == -3
    assert S != 1
    assert Dim("s") != "s"


def test_a_dim_tells_its_symbols_and_its_name():
    assert S.name == "s"
    assert (2 * S).name is None
    assert Dim(3).name is None
    assert (B * S + 3).symbols == symbols_of("b*s + 3") == {"b", "s"}
    assert symbols_of(3) == frozenset()
    assert dim_text(np.int32(3)) == "3"


def test_a_dim_survives_pickle_and_cannot_change():
    assert pickle.loads(pickle.dumps(2 * S)) == 2 * S
    assert eval(repr(2 * S)) == 2 * S
    assert eval(repr(Dim(3))) == 3
    with pytest.raises(AttributeError):
        S.text = "b"


def test_each_unknown_is_a_symbol_of_its_own():
    names = []
    threads = [
        threading.Thread(target=lambda: names.extend(Dim(UNKNOWN).name for _ in range(100)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 400


def test_unknown_is_one_value_and_takes_no_part_in_arithmetic():
    assert copy.deepcopy(UNKNOWN) is pickle.loads(pickle.dumps(UNKNOWN)) is UNKNOWN
    for compute in (lambda: UNKNOWN + 1, lambda: S * UNKNOWN, lambda: 2 - UNKNOWN):
        with pytest.raises(
            SpecError, match=r"(?s)^UNKNOWN cannot be used in arithmetic.*Fix:.*name"
        ):
            compute()


def test_a_missing_size_is_named():
    with pytest.raises(
        SpecError, match=r"(?s)^no size is known for `s` in `b \* s`.*Fix: +give s="
    ):
        (B * S).evaluate(b=3)


def test_a_symbolic_dim_has_no_value():
    with pytest.raises(
        SpecError, match=r"(?s)^`b\*s` has no value.*Fix: .*evaluate\(b=..., s=...\)"
    ):
        _ = (B * S).value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2*", "invalid syntax"),
        ("", "invalid syntax"),
        ("s / 2", "`//` divides"),
        ("s.real", "Attribute"),
        ("f(s)", "the functions of a dimension"),
        ("__import__('os')", "the functions of a dimension"),
        ("(lambda: 1)()", "the functions of a dimension"),
        ("max(s)", "takes two"),
        ("max(s, b, default=1)", "takes two"),
        ("max", "not a symbol"),
        ("_", "stands for a whole static axis"),
        ("__s", "two underscores"),
        ("s**b", "exponent"),
        ("s**-1", "exponent"),
        ("9**9**9", "exponent"),
        ("1.5", "integers and names"),
        ("True", "integers and names"),
        ("s < b", "Compare"),
        ("~s", "signs"),
        ("s @ b", "operators"),
        ("s // 0", "zero"),
        ("(" * 500 + "s" + ")" * 500, "nested"),
    ],
)
def test_a_text_that_is_no_dimension_is_refused(text, why):
    with pytest.raises(SpecError) as caught:
        Dim(text)
    assert caught.value.what == f"`{text}` is not a dimension."
    assert why in caught.value.why
    assert '"' in caught.value.fix  # an example to write


@pytest.mark.parametrize("value", [1.0, None, True, [1]])
def test_a_value_that_is_no_dimension_is_refused(value):
    with pytest.raises(SpecError, match=r"(?s)is not a dimension.*Fix: +an integer, a string"):
        Dim(value)


def test_a_symbol_without_a_bucket_is_unbounded_where_it_matters():
    assert Dim("min(s, 10)").upper_bound() == 10
    assert Dim("b*s + 3").upper_bound(b=4, s=8) == 35
    with pytest.raises(
        UnboundedDimError, match=r"(?s)^no upper bound is known.*`b\*s`.*Fix: +give `s` a bucket"
    ):
        (B * S).upper_bound(b=4)


def test_importing_starts_no_back_end():
    program = (
        "import shapeexec.shape, jax._src.xla_bridge as bridge\n"
        "assert not bridge._backends, bridge._backends"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_first_thing_that_a_process_computes_may_be_a_quotient():
    program = (
        "import numpy as np, shapeexec as sx\n"
        "ex = sx.Exec(lambda x: x[: x.shape[0] // 2], ('s',), buckets=sx.Pow2())\n"
        "assert ex(np.ones(7, np.float32)).tolist() == [1.0, 1.0, 1.0]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
