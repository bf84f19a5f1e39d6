"""What is known of padding is true: of what NumPy and XLA compute alike, and of nothing else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking import _facts, _knowledge
from shapeexec.masking._knowledge import FINITE, UNSPECIFIED, Known, constant, uniform
from tests.execution.support import assert_runs_as, ones
from tests.marks import written

P = sx.Pow2()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x - 1).astype(jnp.uint8).min(),
        lambda x: (-jnp.log(x)).astype(jnp.int32).max(),
        lambda x: (jnp.log(x) - 1).astype(jnp.int8).min(),
        lambda x: (1 / (x * jnp.tanh(-1 - x))).min(),
        lambda x: (1 / -x).max() + (1 / x).min(),
        lambda x: jnp.dot(jnp.where(x > 0, x, jnp.finfo(x.dtype).min).astype(jnp.bfloat16), x),
        lambda x: jnp.dot(jax.lax.reduce_precision(x - jnp.finfo(x.dtype).max, 8, 7), x * 0 + x),
        lambda x: jnp.exp(-jnp.log(x)).min(),
        lambda x: (x.astype(jnp.int32) // 0).max(),
        lambda x: jnp.sqrt(x - 1).sum() * jnp.max(jnp.sign(-x)),
        lambda x: (x * jnp.inf).max() + (x != 0).all(),
        lambda x: (x**3).prod() + (x**0).sum(),
        lambda x: jnp.max(x[:, None] + x[None, :] * -1, (0, 1)),
        lambda x: jnp.cumsum(x).sum() + jax.lax.cumsum(x, reverse=True).sum(),
        lambda x: jnp.cumsum(x[:, None] * x[None, :], 0).max(0),
    ],
    ids=written,
)
@pytest.mark.parametrize("size", [3, 5])
def test_masks_that_are_spared_change_nothing(fn, size):
    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=P), ones(size))


def through(name, *values, dtype: Any = np.float32, operand_dtype: Any = np.float32, **params):
    known = [uniform(1, value) for value in values]
    call = _facts.Call(params=params, dtype=np.dtype(dtype), operand_dtype=np.dtype(operand_dtype))
    return _facts.through_pointwise(name, known, call=call, rank=1).axes[0]


F = np.float32


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("add", (constant(F(0)), constant(F(1))), constant(F(1))),
        ("exp", (constant(F(0)),), constant(F(1))),
        ("exp", (constant(F(-np.inf)),), constant(F(0))),
        ("exp", (constant(F(3)),), UNSPECIFIED),
        ("log", (constant(F(0)),), constant(F(-np.inf))),
        ("mul", (constant(F(0)), UNSPECIFIED), UNSPECIFIED),
        ("mul", (constant(F(0)), FINITE), constant(F(0))),
        ("sub", (constant(F(np.inf)), constant(F(np.inf))), UNSPECIFIED),
        ("div", (constant(F(1)), constant(F(0))), UNSPECIFIED),
        ("tanh", (FINITE,), FINITE),
        ("tanh", (UNSPECIFIED,), UNSPECIFIED),
        ("tan", (FINITE,), UNSPECIFIED),
        ("reduce_precision", (FINITE,), UNSPECIFIED),
        ("lt", (constant(F(0)), constant(F(1e-40))), UNSPECIFIED),
        ("sign", (constant(F(-1e-40)),), FINITE),
    ],
)
def test_a_pointwise_primitive_makes_of_known_padding(name, values, result):
    assert through(name, *values) == result


@pytest.mark.parametrize(
    ("value", "dtype", "result"),
    [
        (F(2), np.int32, constant(np.int32(2))),
        (F(-1), np.int8, constant(np.int8(-1))),
        (F(-1), np.uint8, FINITE),
        (F(np.inf), np.int32, FINITE),
        (F(1.5), np.int32, FINITE),
        (F(np.inf), np.float16, constant(np.float16(np.inf))),
        (F(1e30), np.float16, UNSPECIFIED),
        (F(2), np.bool_, FINITE),
        (F(1), np.bool_, constant(np.bool_(1))),
        (np.complex64(1 + 1j), np.float32, UNSPECIFIED),
    ],
)
def test_a_constant_stays_known_if_a_conversion_keeps_it(value, dtype, result):
    got = through(
        "convert_element_type", constant(value), dtype=dtype, operand_dtype=np.asarray(value).dtype
    )
    assert got == result


@pytest.mark.parametrize(
    ("source", "dtype", "known"),
    [
        (np.int32, np.float32, FINITE),
        (np.bool_, jnp.float8_e4m3fn, FINITE),
        (jnp.bfloat16, np.float32, FINITE),
        (np.float32, jnp.bfloat16, UNSPECIFIED),
        (np.float64, np.float32, UNSPECIFIED),
        (np.int32, np.float16, UNSPECIFIED),
    ],
    ids=str,
)
def test_finite_numbers_stay_finite_where_all_fit(source, dtype, known):
    assert through("convert_element_type", FINITE, dtype=dtype, operand_dtype=source) == known


NARROW = [jnp.float8_e3m4, jnp.float8_e4m3fn, np.complex64]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", _facts.names_with(lambda facts: facts.keeps_finite))
def test_nothing_stays_finite_in_8_bits_or_as_a_complex_number(name, dtype):
    assert through(name, FINITE, dtype=dtype, operand_dtype=dtype) == UNSPECIFIED
    assert through(name, FINITE, operand_dtype=np.float16, dtype=np.float16) == FINITE


@pytest.mark.parametrize("name", ["log1p", "sign", "sqrt", "exp", "logistic"])
@pytest.mark.parametrize("value", [1e-30, np.inf, 3e38 + 3e38j])
def test_nothing_is_known_of_what_a_complex_number_becomes(name, value):
    number = constant(np.complex64(value))
    got = through(name, number, dtype=np.complex64, operand_dtype=np.complex64)
    assert got == UNSPECIFIED


def test_nothing_is_known_of_a_conversion_that_numpy_refuses():
    zero, narrow = constant(jnp.float8_e4m3fn(0)), jnp.float8_e8m0fnu
    got = through("convert_element_type", zero, dtype=narrow, operand_dtype=jnp.float8_e4m3fn)
    assert got == UNSPECIFIED


def test_a_nan_is_no_constant():
    assert constant(F(np.nan)) == UNSPECIFIED


@pytest.mark.parametrize("value", [F(1e-40), jnp.bfloat16(-1e-40), np.complex64(1 + 1e-40j)])
def test_a_subnormal_number_is_no_constant(value):
    assert constant(value) == FINITE


FAR = {  # what is far from padding of zeros, and overflows
    "subnormal": (lambda x: jnp.where(x < 1e-40, 0.0, x + 1).sum(), np.float32),
    "complex": (lambda x: (x * jnp.cos(jnp.where(x == 0, 200j, x))).sum(), np.complex64),
    "ceil": (lambda x: (x * jnp.ceil(jnp.where(x == 0, 15.5, x))).max(), jnp.float8_e3m4),
    "logistic": (
        lambda x: (x * jax.nn.sigmoid(jnp.where(jnp.sin(x) == 0, -88, x))).max(),
        jnp.float8_e4m3fn,
    ),
    "converted": (lambda x: x.astype(jnp.float8_e8m0fnu).astype(F).max(), jnp.float8_e4m3fn),
}


@pytest.mark.parametrize(("fn", "dtype"), FAR.values(), ids=FAR)
def test_what_numpy_and_xla_compute_apart_is_masked(fn, dtype):
    x = jnp.ones(5, dtype)
    assert sx.Exec(fn, ("s",), buckets=P)(x) == jax.jit(fn)(x)


def test_integers_are_finite_whatever_happens():
    assert through("pow", UNSPECIFIED, UNSPECIFIED, dtype=np.int32) == FINITE


def test_what_two_sets_have_in_common_is_known():
    join = _knowledge.join
    assert join([constant(F(1)), constant(F(1))]) == constant(F(1))
    assert join([constant(F(1)), constant(F(2))]) == FINITE
    assert join([constant(F(1)), constant(F(np.inf))]) == UNSPECIFIED


def test_filling_one_axis_leaves_little_known_of_the_corner():
    known = Known(UNSPECIFIED, (constant(F(0)), UNSPECIFIED)).filled([1], constant(F(1)))
    assert known.axes == (FINITE, constant(F(1)))


def test_a_second_reader_needs_no_second_mask():
    def fn(x):
        y = x + 1
        return y.sum() + jnp.dot(y, y)

    assert len(sx.Exec(fn, ("s",), buckets=P).explain(ones(3)).added) == 1


def test_a_product_with_rows_of_zeros_may_be_nan():
    def fn(a, b):
        return (a @ b.T).sum(1), jnp.sign(a @ b.T).sum(1)

    a, b = np.array([[np.inf, 1], [2, 3]], np.float32), ones(3, 2)
    ex = sx.Exec(fn, (None, "s, 2"), buckets=sx.Linear(8))
    for actual, expected in zip(ex(a, b), jax.jit(fn)(a, b), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_product_of_zeros_and_finite_numbers_is_zero():
    def fn(x, n):
        return (jnp.ones((3, 2)) @ x.T).sum(1), (n @ n.T).sum(), jnp.einsum("bs,bs->b", n, n).sum()

    ex = sx.Exec(fn, ("s, 2", "s, 2"), buckets=sx.Linear(8))
    args = ones(3, 2), ones(3, 2).astype(np.int32)
    assert not ex.explain(*args).added
    assert_runs_as(fn, ex, *args)


@pytest.mark.parametrize("of", [lambda x: x * 0.25, lambda x: 2 * x, lambda x: x / 4], ids=written)
def test_a_zero_is_filled_in_front_of_a_constant_factor(of):
    def fn(x):
        return jnp.dot(of(jnp.exp(x + 1)), x)

    ex = sx.Exec(fn, ("s",), buckets=P)
    text = str(jax.make_jaxpr(lambda x: _masked(ex, x))(ones(3)))
    assert text.index("select_n") < max(text.find(" mul "), text.find(" div "))
    assert_runs_as(fn, ex, ones(3))


@pytest.mark.parametrize(
    "of",
    [
        lambda x, y: x * y,
        lambda x, y: y / x,
        lambda x, y: x * jnp.inf,
        lambda x, y: x / (y * 0),
        lambda x, y: (x * 2, x)[0] + x,
    ],
    ids=written,
)
def test_a_zero_is_not_filled_in_front_of_another_factor(of):
    def fn(x, y):
        return of(jnp.exp(x + 1), y).sum()

    ex = sx.Exec(fn, ("s", "s"), buckets=P)
    assert len(ex.explain(ones(3), ones(3)).added) == 1
    assert_runs_as(fn, ex, ones(3), ones(3))


def _masked(ex, x):
    plan = ex.plan(x)
    padded = np.zeros(plan.in_capacities[0], np.float32)
    recipe = plan.recipe
    return recipe.masked({"s": x.shape[0]}, recipe.trace.jaxpr.consts, leaves=[padded])


def test_a_fact_names_the_rows_that_may_differ():
    zero = jnp.float32(0)
    rows = "in rows whose valid elements are all NaN"
    assert str(constant(zero)) == "0.0"
    assert str(constant(zero, unless="nan")) == f"0.0, or NaN {rows}"
    assert str(constant(zero, unless="nonfinite")) == f"0.0, except {rows} or inf"
