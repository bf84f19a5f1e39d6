"""Shapes: printing, matching, and what each method returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec._errors import SpecError
from shapeexec.shape import BATCH, UNKNOWN, Dim, Shape

SHAPE = Shape(jnp.float32, BATCH, "2*s", 7)


def test_an_axis_is_an_integer():
    shape = Shape("float32", 3, 4)
    assert shape.with_dim(np.int64(-1), 5) == Shape("float32", 3, 5)
    for axis in (1.0, "1", None, True):
        with pytest.raises(SpecError, match="has no axis"):
            shape.with_dim(axis, 5)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Shape(jnp.float32, "b", "s", 512), "f32[b,s,512]"),
        (Shape("float32", "b*s + 3", 7), "f32[b*s + 3,7]"),
        (Shape(jnp.bfloat16), "bf16[]"),
        (Shape(bool, 2), "bool[2]"),
        (Shape(np.uint8, Dim("s") + 1), "u8[s + 1]"),
        (Shape(jax.dtypes.float0, "s"), "float0[s]"),
    ],
)
def test_a_shape_prints_as_jaxprs_print_it(shape, text):
    assert str(shape) == text


def test_a_shape_of_keys_prints_and_compares():
    keys = jax.ShapeDtypeStruct((3,), jax.random.key(0).dtype)
    assert str(Shape.of(keys).with_dynamic_batch()) == "key<fry>[b]"
    assert Shape.of(keys) == Shape(keys.dtype, 3)
    assert Shape.of(keys) != Shape(jnp.uint32, 3)


def test_the_text_is_the_one_in_a_jaxpr():
    dims = jax.export.symbolic_shape("b, 2*s + 1")
    struct = jax.ShapeDtypeStruct(dims, jnp.float32)
    printed = str(jax.jit(jnp.sin).trace(struct).jaxpr)
    assert str(Shape.of(struct)) in printed


def test_equal_dims_make_equal_shapes():
    assert Shape("float32", "b", "s + s", 7) == SHAPE
    assert len({SHAPE, Shape("float32", "b", "s + s", 7)}) == 1
    assert Shape("float16", "b", "2*s", 7) != SHAPE


def test_a_shape_tells_its_rank_dims_and_symbols():
    assert SHAPE.rank == 3
    assert SHAPE.dims == (Dim("b"), Dim("2*s"), 7)
    assert type(SHAPE.dims[2]) is int
    assert SHAPE.symbols == {"b", "s"}
    assert not SHAPE.is_static
    assert Shape(jnp.float32, 3, "4").is_static
    assert SHAPE.dtype == np.float32


def test_unknown_dims_of_a_shape_differ():
    first, second = Shape(bool, UNKNOWN, UNKNOWN).dims
    assert first != second


@pytest.mark.parametrize(
    "pattern",
    [
        "b, s, 7",
        "x, y, 7",
        "b, 2*s, 7",
        "a, ...",
        "..., 7",
        "_, ..., _",
        "...",
        "_, _, _",
        (UNKNOWN, "q", 7),
        (..., 7),
        SHAPE,
        Shape(jnp.float32, UNKNOWN, UNKNOWN, 7),
    ],
    ids=str,
)
def test_a_shape_matches_what_it_is_an_instance_of(pattern):
    assert SHAPE.matches(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "b, s",
        "b, s, 8",
        "b, b, 7",
        "7, s, 7",
        "b, s, 7, 1",
        "b, s, 7, 1, ...",
        "x, y, x",
        Shape(jnp.bfloat16, "b", "2*s", 7),
    ],
    ids=str,
)
def test_a_shape_does_not_match_what_it_contradicts(pattern):
    assert not SHAPE.matches(pattern)


def test_an_expression_matches_at_what_its_symbols_matched():
    assert Shape(int, 3, 7).matches("s, 2*s + 1")
    assert Shape(int, 7, 3).matches("2*s + 1, s")
    assert not Shape(int, 3, 8).matches("s, 2*s + 1")
    assert Shape(int, "k + 1", "2*k + 2").matches("s, 2*s")


def test_one_axis_can_be_replaced():
    assert str(SHAPE.with_dim(-1, "c")) == "f32[b,2*s,c]"
    assert str(SHAPE.with_dim(0, 4)) == "f32[4,2*s,7]"
    assert Shape(jnp.float32, 3, 4).with_dynamic_batch() == Shape(jnp.float32, "b", 4)


@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_out_of_range_is_refused(axis):
    with pytest.raises(SpecError, match=r"(?s)^f32\[b,2\*s,7\] has no axis.*Fix: .*-3 to 2"):
        SHAPE.with_dim(axis, 1)


def test_a_scalar_has_no_batch():
    with pytest.raises(SpecError, match=r"(?s)^f32\[\] has no axis 0.*Fix: .*rank 1 or more"):
        Shape(jnp.float32).with_dynamic_batch()


def test_sizes_and_buckets_make_a_shape_static():
    assert SHAPE.evaluate(b=3, s=4) == Shape(jnp.float32, 3, 8, 7)
    assert SHAPE.upper_bound(b=8, s=16) == Shape(jnp.float32, 8, 32, 7)
    assert Shape(bool, "100 - s").upper_bound(s=128) == Shape(bool, 99)


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), jnp.zeros((2, 3)), np.float32(1)])
def test_an_array_has_a_shape(array):
    assert Shape.of(array) == Shape(jnp.float32, *array.shape)


@pytest.mark.parametrize("value", [3.0, "x", np.float32, None])
def test_what_is_no_array_has_none(value):
    with pytest.raises(SpecError, match=r"(?s)has no shape and dtype.*Fix: .*jnp.asarray"):
        Shape.of(value)


def test_a_dtype_that_is_none_is_refused():
    with pytest.raises(SpecError, match=r"(?s)^'nope' is not a dtype.*Fix: .*jnp.float32"):
        Shape("nope")
