"""pad_safe: the masked function, for those who pad themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking import pad_safe
from tests.execution.support import ones, refused
from tests.tolerance import assert_close

NAN = np.float32(np.nan)


def padded(x, *shape):
    out = np.full(shape, NAN)
    out[tuple(map(slice, x.shape))] = x
    return out


def test_padding_may_be_anything():
    mean = pad_safe(lambda x: x.mean(), ("s",))
    for size in (1, 2, 4):
        assert float(mean({"s": size}, padded(ones(size), 4))) == ones(size).mean()


def test_a_pad_safe_function_may_be_jitted_with_sizes_as_data():
    softmax = jax.jit(pad_safe(jax.nn.softmax, ("b, s",)))
    for b, s in ((1, 3), (2, 4), (3, 1)):
        got = softmax({"b": b, "s": s}, padded(ones(b, s), 3, 4))
        assert_close(got[:b, :s], jax.nn.softmax(ones(b, s)), scale=0)
    assert softmax._cache_size() == 1


def test_a_pad_safe_function_may_be_vmapped_over_sizes():
    sizes = jnp.array([1, 3, 4])
    batch = np.stack([padded(ones(n), 4) for n in (1, 3, 4)])
    total = jax.vmap(pad_safe(lambda x: x.max() - x.mean(), ("s",)))({"s": sizes}, batch)
    assert_close(total, np.stack([ones(n).max() - ones(n).mean() for n in (1, 3, 4)]))


def test_trees_pass_in_and_out():
    fn = pad_safe(lambda x: {"sum": x["a"].sum(), "same": x["b"]}, ({"a": "s", "b": None},))
    got = fn({"s": 2}, {"a": padded(ones(2), 4), "b": 3.0})
    assert float(got["sum"]) == 3
    assert float(got["same"]) == 3


def test_known_sizes_decide_branches():
    fn = pad_safe(lambda x: x.sum() if x.shape[0] > 2 else x.max(), ("s",))
    assert [float(fn({"s": n}, padded(ones(n), 4))) for n in (2, 3)] == [2, 6]


def test_sizes_that_are_data_decide_none():
    fn = pad_safe(lambda x: x.sum() if x.shape[0] > 2 else x.max(), ("s",))
    with refused(sx.InconclusiveShapeError, "`s > 2` cannot be decided", "constraint"):
        fn({"s": jnp.int32(3)}, ones(4))


def test_a_constraint_decides_for_sizes_that_are_data():
    fn = pad_safe(lambda x: x.sum() if x.shape[0] > 2 else x.max(), ("s",), constraints="s >= 3")
    assert float(fn({"s": jnp.int32(3)}, padded(ones(3), 4))) == 6


@pytest.mark.parametrize("sizes", [{}, {"t": 3}, {"s": 3, "t": 3}], ids=str)
def test_sizes_are_wanted_for_each_symbol_and_no_other(sizes):
    with refused(sx.SpecError, "but the specs have s.", "sizes={'s': ...}"):
        pad_safe(lambda x: x, ("s",))(sizes, ones(4))


@pytest.mark.parametrize("size", [0, 5, -1])
def test_a_size_that_the_arguments_cannot_hold_is_an_error(size):
    with refused(sx.SpecError, f"`s` is {size}, but the arguments hold 1 to 4.", "at least 1"):
        pad_safe(lambda x: x, ("s",))({"s": size}, ones(4))


def test_options_are_checked_at_once():
    with refused(sx.ConfigError, "poison='bad' is not known.", "one of nan"):
        pad_safe(lambda x: x, ("s",), poison="bad")
    with refused(sx.ConfigError, "constraints: 's' is not a comparison.", "comparison"):
        pad_safe(lambda x: x, ("s",), constraints=["s"])
    with refused(sx.ConfigError, "constraints=3 are not strings.", 'constraints="s >= 2"'):
        pad_safe(lambda x: x, ("s",), constraints=3)


def test_what_has_no_rule_is_an_error():
    with pytest.raises(sx.UnsupportedPrimitiveError):
        pad_safe(lambda x: jax.new_ref(x)[...], ("s",))({"s": 3}, ones(4))
