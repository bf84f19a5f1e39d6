"""Padding modes pad as `numpy.pad`, on the host and on an accelerator, and refuse what is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapeexec as sx
from shapeexec.execution import _transfer
from shapeexec.execution._handle import Padded, pad
from tests.execution.support import ones, refused

MODES = ["zeros", "edge", "reflect", "wrap", 7, True]
DTYPES = [np.int8, np.uint16, np.int32, np.bool_, np.float16, np.float32, np.complex64, "bfloat16"]


def by_numpy(x: np.ndarray, capacity: tuple[int, ...], mode: object) -> np.ndarray:
    """What NumPy makes of an array; where it has no element to repeat it raises, and zeros stay."""
    widths = [(0, want - have) for have, want in zip(x.shape, capacity, strict=True)]
    if mode in ("edge", "reflect", "wrap") and x.size:
        return np.pad(x, widths, mode=mode)
    number = 0 if isinstance(mode, str) else mode
    return np.pad(x, widths, constant_values=np.asarray(number).astype(x.dtype))


def padded_by(way: str, x: np.ndarray, capacity: tuple[int, ...], *, mode: object) -> np.ndarray:
    if way == "handle":
        larger = jnp.asarray(np.pad(x, [(0, 3)] * x.ndim, constant_values=np.ones((), x.dtype)))
        return np.asarray(pad(Padded(larger, x.shape), capacity, mode=mode))
    own = x if way == "NumPy" else jnp.asarray(x)
    return np.asarray(_transfer.pad(own, capacity, mode=mode))


WAYS = ["NumPy", "JAX", "handle"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("on_accelerator", [False, True])
def test_padding_is_numpys_however_long_it_is(monkeypatch, way, mode, size, on_accelerator):
    if on_accelerator:
        monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    x = np.arange(1, 1 + 2 * size, dtype=np.float32).reshape(size, 2)
    for capacity in [(size, 2), (size + 1, 2), (2 * size, 3), (4 * size + 3, 7)]:
        actual = padded_by(way, x, capacity, mode=mode)
        np.testing.assert_array_equal(actual, by_numpy(x, capacity, mode))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", ["zeros", "edge", "reflect", "wrap", 1])
def test_padding_has_the_dtype_of_its_array(way, dtype, mode):
    x = np.asarray([[1, 0, 1], [0, 1, 1]]).astype(jnp.dtype(dtype))
    actual = padded_by(way, x, (4, 8), mode=mode)
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual, by_numpy(x, (4, 8), mode))


@given(
    st.sampled_from(["edge", "reflect", "wrap"]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_padding_of_any_shape_is_numpys(mode, shape, more):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    capacity = (shape[0] + more[0], shape[1] + more[1])
    np.testing.assert_array_equal(
        _transfer.pad(x, capacity, mode=mode), by_numpy(x, capacity, mode)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["host", "accelerator"])
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_without_an_element_to_repeat_padding_is_zero(monkeypatch, way, place, mode):
    if place == "accelerator":
        monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    x = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(padded_by(way, x, (2, 4), mode=mode), np.zeros((2, 4)))


@pytest.mark.parametrize("mode", MODES)
def test_typed_keys_repeat_the_last_key_in_each_mode(mode):
    keys = jax.random.split(jax.random.key(0), 2)
    padded = jax.random.key_data(_transfer.pad(keys, (4,), mode=mode))
    np.testing.assert_array_equal(padded, jax.random.key_data(keys[jnp.array([0, 1, 1, 1])]))


@pytest.mark.parametrize("returns", ["device", "padded"])
def test_a_padded_array_is_a_copy_and_keeps_its_weak_type(returns):
    x = jax.lax.full((3,), 2.0)
    assert _transfer.pad(x, (4,), mode="edge").weak_type
    own = np.ones(4, np.float32)
    assert not np.shares_memory(_transfer.pad(own, (4,), mode="edge"), own)


FITS = [
    (7, np.int8, True),
    (200, np.int8, False),
    (-1, np.uint8, False),
    (0.5, np.int32, False),
    (2.0, np.int32, True),
    (np.inf, np.int32, False),
    (np.nan, np.int32, False),
    (2, np.bool_, False),
    (1, np.bool_, True),
    (1e30, np.float32, True),
    (1e300, np.float32, False),
    (np.inf, np.float32, True),
    (np.nan, jnp.bfloat16, True),
    (1e5, np.float16, False),
    (1j, np.float32, False),
    (1j, np.complex64, True),
]


@pytest.mark.parametrize(("number", "dtype", "fits"), FITS)
def test_a_number_has_to_fit_the_dtype(number, dtype, fits):
    run = sx.Exec(lambda x: x, ("s",), masking=False, padding=number)
    x = np.ones(3).astype(dtype)
    if fits:
        assert run(x).shape == (3,)
        return
    with refused(
        sx.ConfigError, f"does not fit args[0], which is {x.dtype}", "padding={0: ..., 1: ...}"
    ):
        run(x)


@pytest.mark.parametrize("padding", ["pow2", "mean", None, [1], {0: "pow2"}])
def test_what_is_no_mode_is_refused(padding):
    with refused(sx.ConfigError, "is not a padding mode", "buckets= says how far") as caught:
        sx.Exec(lambda x: x, ("s",), masking=False, padding=padding)
    assert caught.value.option == "padding"


@pytest.mark.parametrize(
    ("padding", "what"),
    [
        ({1.5: "edge"}, "1.5 is not an argument"),
        ({-1: "edge"}, "-1 is not an argument"),
        ({"y": 0}, "the function has no argument 'y'"),
    ],
)
def test_a_mode_is_for_an_argument_that_there_is(padding, what):
    with refused(sx.ConfigError, what, ""):
        sx.Exec(lambda x: x, ("s",), masking=False, padding=padding)


def test_modes_are_told_by_position_and_by_name():
    def both(x, y):
        return x.sum(), y.sum()

    for padding in ({0: "edge", "y": 5}, {"x": "edge", 1: 5}):
        run = sx.Exec(both, ("s", "s"), masking=False, padding=padding)
        assert [float(n) for n in run(ones(3), ones(3))] == [9.0, 11.0]
        assert [filling.mode for filling in run.plan(ones(3), y=ones(3)).fillings] == ["edge", 5]
    by_name = sx.Exec(both, ("s",), kwarg_shapes={"y": "s"}, masking=False, padding={1: 5})
    assert [float(n) for n in by_name(ones(3), y=ones(3))] == [6.0, 11.0]
