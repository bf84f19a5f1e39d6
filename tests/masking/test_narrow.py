"""Which narrow dtypes pass through masks: one row each, and two programs for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import masking
from tests.execution.support import refused
from tests.tolerance import EQUAL, assert_close

FLOATS = """
    float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz
""".split()
WITHOUT_PRODUCTS = ["float4_e2m1fn", "int4", "uint4"]
"""XLA multiplies none of them on a CPU, padded or not."""


def moved(x: jax.Array) -> tuple[jax.Array, ...]:
    """What moves and compares elements, and what reads them in float32."""
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(axis=0)  # one scale for all rows: padding must not decide it
    quantized = (wide / scale).astype(x.dtype)
    return x.max(axis=0), jnp.sort(x, axis=0), x[::-1], jnp.concatenate([x, x]), quantized


def multiplied(x: jax.Array) -> jax.Array:
    contract = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(x, x, contract, preferred_element_type=jnp.float32)


def numbers(name: str, rows: int) -> jax.Array:
    values = np.random.default_rng(rows).integers(1, 5, (rows, 4))
    return jnp.asarray(values, jnp.float32).astype(jnp.dtype(name))


def assert_exact(fn, name: str) -> None:
    ex = sx.Exec(fn, ("b, 4",), buckets=8)
    for rows in (3, 8, 1):
        got, want = ex(numbers(name, rows)), jax.jit(fn)(numbers(name, rows))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert one.dtype == other.dtype
            assert_close(one.astype(jnp.float32), other.astype(jnp.float32), loose=EQUAL)
    assert ex.cache_size == 1


@pytest.mark.parametrize("poison", ["nan", "max"])
@pytest.mark.parametrize("name", [*FLOATS, *WITHOUT_PRODUCTS])
def test_elements_of_a_narrow_dtype_are_moved_and_quantized(name, poison, monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", poison)
    assert_exact(moved, name)


@pytest.mark.parametrize("name", FLOATS)
def test_a_product_of_a_narrow_dtype_sums_the_valid_rows(name, monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "max")
    assert_exact(multiplied, name)


def test_powers_of_two_have_no_zero_to_fill_with():
    name = "float8_e8m0fnu"
    assert_exact(lambda x: (jnp.sort(x, axis=0), x[::-1], x.astype(jnp.float32).sum(axis=0)), name)
    ex = sx.Exec(multiplied, ("b, 4",), buckets=8)
    with refused(sx.UnsupportedPrimitiveError, "`dot_general` over padded `b`", "cast to float32"):
        ex(numbers(name, 3))
    assert_exact(lambda x: multiplied(x.astype(jnp.float32)), name)


def test_the_identity_of_a_sum_of_powers_of_two_is_refused():
    with refused(sx.ConfigError, "float8_e8m0fnu has no 0.", "cast to float32") as caught:
        masking.zero(jnp.float8_e8m0fnu)
    assert caught.value.option == "dtype"
    assert isinstance(caught.value, TypeError)


def test_a_library_that_scales_tiles_is_refused():
    def run(a: jax.Array, b: jax.Array, *scales: jax.Array) -> jax.Array:
        return jax.nn.scaled_matmul(a, b, *scales, preferred_element_type=jnp.float32)

    shape = jax.ShapeDtypeStruct
    rows, scales = (2, 3, 64), (2, 3, 2)
    args = [shape(rows, jnp.float8_e4m3fn)] * 2 + [shape(scales, jnp.float8_e8m0fnu)] * 2
    ex = sx.Exec(run, ("b, s, 64", "b, 3, 64", "b, s, 2", "b, 3, 2"))
    with refused(sx.UnsupportedPrimitiveError, "`scaled_matmul_wrapper`", "`b` and `s` exact"):
        ex.plan(*args)
        ex.explain(*args)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_attention_of_a_narrow_dtype_is_refused_by_its_kernels(name):
    x = numbers(name, 3).reshape(1, 3, 1, 4)
    with refused(sx.BackendError, "no back end can run this attention.", "convert to float32"):
        sx.dot_product_attention(x, x, x, mask=sx.Causal())
