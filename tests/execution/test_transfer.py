"""Padding on the host, and cutting results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _transfer
from tests.execution.support import counted, ones


def test_host_arrays_are_padded_with_zeros_and_without_compiling():
    given = [ones(2, 3), jnp.asarray(ones(2, 3))]
    with counted() as count:
        padded = [_transfer.pad(x, (4, 3)) for x in given]
    assert count.compilations == 0
    for x in padded:
        np.testing.assert_array_equal(x, np.concatenate([ones(2, 3), np.zeros((2, 3))]))


@pytest.mark.parametrize("capacity", [(4, 3), (2, 5), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "given",
    [np.ones((2, 3), np.float32), np.ones((2, 3), np.int64), np.ones((2, 3), jnp.bfloat16)],
    ids=lambda x: str(x.dtype),
)
@pytest.mark.parametrize("place", [np.asarray, jnp.asarray, np.ndarray.tolist])
def test_the_pad_of_one_capacity_is_pad(given, capacity, place):
    x = place(given)

    def general(x):
        return _transfer.pad(x, capacity)

    padded = _transfer.pad_of_zeros(capacity, otherwise=general)(x)
    assert type(padded) is type(general(x))
    assert padded.dtype == general(x).dtype
    np.testing.assert_array_equal(padded, general(x))
    assert place is not np.asarray or not np.shares_memory(padded, x)


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


def test_rows_are_stacked_at_capacity_and_the_first_fills_what_is_missing():
    rows = [ones(2, 3), jnp.asarray(ones(1, 3)), [[7.0, 8.0, 9.0]]]
    with counted() as count:
        stacked = _transfer.stack(rows, (2, 3), count=5)
    assert count.compilations == 0
    assert stacked.shape == (5, 2, 3)
    assert stacked.dtype == np.float32
    for row, given in zip(stacked, [*rows, rows[0], rows[0]], strict=True):
        np.testing.assert_array_equal(row[: len(given)], given)
        assert not row[len(given) :].any()
    assert _transfer.stack([np.int64(1), 2], (), count=2).dtype == np.int32


def test_a_stack_of_committed_rows_is_committed():
    committed = jax.device_put(ones(3), jax.devices()[0])
    stacked = _transfer.stack([ones(2), committed], (3,), count=2)
    assert stacked.committed
    assert stacked.sharding == committed.sharding


def test_typed_keys_are_stacked():
    keys = [jax.random.split(jax.random.key(n), 2) for n in range(2)]
    stacked = _transfer.stack([keys[0], keys[1][:1]], (2,), count=3)
    assert stacked.shape == (3, 2)
    assert (jax.random.key_data(stacked[2]) == jax.random.key_data(keys[0])).all()


def test_a_row_is_cut_without_compiling():
    x = jnp.asarray(ones(2, 4, 5))
    with counted() as count:
        np.testing.assert_array_equal(
            _transfer.cut_row(x, 1, shape=(2, 3)), ones(2, 4, 5)[1, :2, :3]
        )
    assert count.compilations == 0
    keys = jax.random.split(jax.random.key(0), (2, 4))
    assert _transfer.cut_row(keys, 1, shape=(3,)).shape == (3,)


def test_elsewhere_than_on_the_host_rows_are_stacked_and_cut_by_compiled_programs(monkeypatch):
    monkeypatch.setattr(_transfer, "_is_on_host", lambda x: False)
    rows = [jnp.asarray(ones(n, 2)) for n in (3, 1)]
    stacked = _transfer.stack([*rows, ones(2, 2)], (3, 2), count=4)
    assert isinstance(stacked, jax.Array)
    for number, size in enumerate((3, 1, 2)):
        np.testing.assert_array_equal(
            _transfer.cut_row(stacked, number, shape=(size, 2)), ones(size, 2)
        )
    np.testing.assert_array_equal(stacked[3], stacked[0])


def test_a_hit_on_arrays_at_capacity_transfers_nothing():
    ex = sx.Exec(lambda w, x: (w * x).sum() / x.shape[0], (None, "s"), buckets="pow2")
    w, x = jnp.float32(2), jnp.ones(8)
    assert ex(w, x) == 2
    with jax.transfer_guard("disallow"):
        again = ex(w, x)
    assert again == 2
    assert (ex.stats.hits, ex.stats.compiles) == (1, 1)
