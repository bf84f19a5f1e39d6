"""The `xla` back end: what it reads, and its tiles."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.backends import xla
from shapeexec.attention.masks import Lengths
from tests.attention.test_choose import CALL
from tests.tolerance import assert_close

SIZES = {  # by T and S: the queries and keys of a tile
    (1, 4096): (1, 256),
    (16, 300): (16, 256),
    (17, 300): (17, 128),
    (256, 256): (256, 256),
    (257, 256): (128, 256),
    (4096, 4096): (128, 128),
}


def attend(q, k, v, n):
    return sx.dot_product_attention(q, k, v, key_value_seq_lengths=n, implementation="xla")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_one_query_takes_no_copy_of_a_long_cache(dtype):
    cache = jax.ShapeDtypeStruct((2, 4096, 2, 64), dtype)
    query = jax.ShapeDtypeStruct((2, 1, 4, 64), dtype)
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    compiled = jax.jit(attend).lower(query, cache, cache, lengths).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < cache.size * cache.dtype.itemsize / 2


@pytest.mark.parametrize("group", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_cache_may_hold_anything_behind_its_length(group):
    random = np.random.default_rng(0)
    query = random.normal(size=(3, 2, 4, 8)).astype(np.float32)
    k, v = (random.normal(size=(3, 600, 4 // group, 8)).astype(np.float32) for _ in range(2))
    lengths = np.array([600, 257, 3], np.int32)
    is_valid = np.arange(600) < lengths[:, None]
    poisoned = [np.where(is_valid[..., None, None], x, np.nan) for x in (k, v)]

    def both(k, v):
        out, transpose = jax.vjp(lambda *x: attend(*x, lengths), query, k, v)
        tangent = jax.jvp(lambda *x: attend(*x, lengths), (query, k, v), (query, k, v))[1]
        return out, transpose(out), tangent

    of_padding, of_zeros = both(*poisoned), both(k, v)
    assert_close(of_padding, of_zeros)
    plain = jax.nn.dot_product_attention(query, k, v, key_value_seq_lengths=lengths)
    assert_close(of_zeros[0], plain)


@pytest.mark.parametrize("sizes", SIZES)
def test_short_sequences_are_one_tile_and_few_queries_have_long_ones(sizes):
    call = dataclasses.replace(CALL, query_size=sizes[0], key_size=sizes[1])
    assert xla.backend.tile(call, sx.Causal()) == SIZES[sizes]


def test_tiles_are_large_where_none_can_be_skipped_and_heads_are_few():
    call = dataclasses.replace(CALL, query_size=1000, key_size=300)
    assert xla.backend.tile(call, sx.Full()) == (512, 256)
    assert xla.backend.tile(dataclasses.replace(call, query_size=70), sx.Full()) == (70, 256)
    many = dataclasses.replace(call, batch=16)
    for other, mask in ((many, sx.Full()), (call, sx.Causal()), (call, sx.Full() & Lengths())):
        assert xla.backend.tile(other, mask) == (128, 128)
    ragged = dataclasses.replace(call, is_ragged=True)
    assert xla.backend.tile(ragged, sx.Full()) == (128, 128)


def test_a_query_whose_scores_are_all_infinitely_low_gives_0_with_padding_and_without():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(1, 6, 2, 4)).astype(np.float32) for _ in range(3))
    q[0, 0] = [-np.inf, 1, 1, 1]
    k[..., 0] = abs(k[..., 0])

    def out_and_gradients(q, k, v, lengths):
        out, transpose = jax.vjp(lambda *x: attend(*x, lengths), q, k, v)
        return out, *transpose(jnp.ones_like(out))

    padded = (np.pad(x, ((0, 0), (0, 2), (0, 0), (0, 0))) for x in (q, k, v))
    found = out_and_gradients(q, k, v, None)  # in one full tile
    want = out_and_gradients(*padded, np.array([6], np.int32))
    assert not np.any(found[0][:, 0])
    for one, other in zip(found[:2], want[:2], strict=True):
        assert_close(one, other[:, :6])
