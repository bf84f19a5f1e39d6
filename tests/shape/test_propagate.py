"""Symbolic shapes through JAX functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapeexec as sx
from shapeexec import BATCH, SEQ_LEN, UNKNOWN, Shape

X = Shape(jnp.float32, BATCH, SEQ_LEN)

PROGRAMS = (
    (lambda x: jnp.concatenate([x.reshape(-1, 1), jnp.ones((3, 1))]), "f32[b*s + 3,1]"),
    (lambda x: x.T, "f32[s,b]"),
    (lambda x: jnp.argmax(x, 1), "i32[b]"),
    (lambda x: x.mean(), "f32[]"),
    (lambda x: jnp.pad(x, ((0, 1), (2, 2))), "f32[b + 1,s + 4]"),
    (lambda x: x[:, ::2], "f32[b,floordiv(s + 1, 2)]"),
    (lambda x: jnp.eye(x.shape[1], dtype=bool), "bool[s,s]"),
    (jax.grad(lambda x: (x**2).sum()), "f32[b,s]"),
)


@pytest.mark.parametrize(("fn", "expected"), PROGRAMS, ids=[text for _, text in PROGRAMS])
def test_symbols_pass_through_a_function(fn, expected):
    assert str(sx.eval_shape(fn, X)) == expected


@pytest.mark.parametrize("fn", [fn for fn, _ in PROGRAMS], ids=[text for _, text in PROGRAMS])
@given(b=st.integers(1, 9), s=st.integers(1, 9))
def test_the_shape_at_known_sizes_is_that_of_the_function(fn, b, s):
    exact = jax.eval_shape(fn, jax.ShapeDtypeStruct((b, s), jnp.float32))
    assert sx.eval_shape(fn, X).evaluate(b=b, s=s) == Shape.of(exact)


def test_trees_go_in_and_come_out():
    out = sx.eval_shape(lambda p, x: {"y": x @ p["w"]}, {"w": Shape("float32", "s", 7)}, X)
    assert {name: str(shape) for name, shape in out.items()} == {"y": "f32[b,7]"}


def test_arrays_and_structs_will_do():
    out = sx.eval_shape(jnp.matmul, X, Shape("float32", "s", 4))
    assert out == sx.eval_shape(lambda x, w: x @ w, X, Shape("float32", "s", 4))
    assert str(sx.eval_shape(jnp.add, np.ones(3, np.float32), jnp.ones(3))) == "f32[3]"


def test_two_unknown_dims_are_not_taken_for_the_same():
    x = Shape("float32", UNKNOWN, 3)
    assert sx.eval_shape(lambda x: x * 2, x) == Shape("float32", "unknown_0_0", 3)
    with pytest.raises(sx.InconclusiveShapeError, match="combines axes whose sizes agree"):
        sx.eval_shape(jnp.add, x, Shape("float32", UNKNOWN, 3))


def test_a_question_that_needs_a_size_is_an_error_with_the_line_that_asks():
    with pytest.raises(sx.InconclusiveShapeError, match=r"cannot be decided for all sizes") as told:
        sx.eval_shape(lambda x: x if x.shape[1] > 6 else x * 2, X)
    assert "constraints=" in str(told.value)
    assert "x.shape[1] > 6" in told.value.where
    assert told.value.symbols == {"s"}


@pytest.mark.parametrize("constraints", ["s >= 3", ("s >= 3",), ["b >= 2", "s >= 3"]])
def test_a_constraint_decides_it(constraints):
    out = sx.eval_shape(lambda x: jax.lax.top_k(x, 3)[0], X, constraints=constraints)
    assert str(out) == "f32[b,3]"


def test_no_constraints_are_none():
    assert str(sx.eval_shape(lambda x: x, X, constraints=None)) == "f32[b,s]"


def test_constraints_that_are_no_texts_are_told():
    with pytest.raises(sx.ConfigError, match="constraints=3 are not strings"):
        sx.eval_shape(lambda x: x, X, constraints=3)


def test_what_the_function_itself_gets_wrong_is_told():
    with pytest.raises(sx.InconclusiveShapeError, match="dot_general requires contracting"):
        sx.eval_shape(jnp.matmul, X, Shape("float32", 5, 4))
