"""Padding on the host, and cutting results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.execution import _transfer
from tests.execution.support import counted, ones


def test_host_arrays_are_padded_with_zeros_and_without_compiling():
    given = [ones(2, 3), jnp.asarray(ones(2, 3))]
    with counted() as count:
        padded = [_transfer.pad(x, (4, 3)) for x in given]
    assert count.compilations == 0
    for x in padded:
        np.testing.assert_array_equal(x, np.concatenate([ones(2, 3), np.zeros((2, 3))]))


def test_a_jax_array_at_capacity_is_itself():
    x = jnp.asarray(ones(3))
    assert _transfer.pad(x, (3,)) is x


def test_numpy_data_is_copied():
    x = ones(3)
    assert not np.shares_memory(_transfer.pad(x, (3,)), x)


def test_a_committed_array_stays_committed():
    x = jax.device_put(ones(3), jax.devices()[0])
    padded = _transfer.pad(x, (4,))
    assert padded.committed
    assert padded.sharding == x.sharding


def test_a_weak_type_stays_weak():
    x = jax.lax.full((3,), 2.0)
    assert x.weak_type
    assert _transfer.pad(x, (4,)).weak_type
    assert _transfer.cut(x, (2,)).weak_type


def test_a_result_is_cut_without_compiling():
    x = jnp.asarray(ones(4, 5))
    with counted() as count:
        np.testing.assert_array_equal(_transfer.cut(x, (2, 3)), ones(4, 5)[:2, :3])
    assert count.compilations == 0
    assert _transfer.cut(x, (4, 5)) is x


def test_a_result_may_be_cut_to_nothing():
    assert _transfer.cut(jnp.asarray(ones(4)), (0,)).shape == (0,)


def test_typed_keys_are_padded_with_keys():
    keys = jax.random.split(jax.random.key(0), 3)
    padded = _transfer.pad(keys, (4,))
    assert padded.shape == (4,)
    back = _transfer.cut(padded, (3,))
    np.testing.assert_array_equal(jax.random.key_data(back), jax.random.key_data(keys))


@pytest.mark.parametrize("committed", [False, True])
def test_a_struct_is_like_what_pad_makes(committed):
    for dtype in (np.float64, np.int8, jnp.bfloat16):
        x = ones(3).astype(dtype)
        if committed:
            x = jax.device_put(x, jax.devices()[0])
        struct, padded = _transfer.struct_like(x, (4,)), _transfer.pad(x, (4,))
        assert (struct.shape, struct.dtype) == (padded.shape, padded.dtype)
        assert struct.sharding == (padded.sharding if committed else None)
