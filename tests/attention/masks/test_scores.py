"""Score modifiers against the formulas of their papers, written down plainly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention._positions import block
from shapeexec.attention.masks import ALiBi, RelativeBias
from tests.tolerance import EQUAL, assert_close


def modified(modifier, *, first=(0, 0), tile=(12, 15), heads=3):
    """What is added to scores of 0, f32[1, N, 12, 15]."""
    at = block(first, tile, lengths=([99], [99]), batch=np.arange(1), head=np.arange(heads))
    return jnp.broadcast_to(modifier.modify(at, jnp.zeros((1, heads, *tile))), (1, heads, *tile))


def distances(first=(0, 0), tile=(12, 15)):
    q, k = np.ogrid[first[0] : first[0] + tile[0], first[1] : first[1] + tile[1]]
    return k - q


@pytest.mark.parametrize("first", [(0, 0), (24, 15)])
def test_alibi_takes_off_by_distance(first):
    slopes = np.array([0.5, 0.25, 2.0], np.float32)
    expected = -slopes[:, None, None] * abs(distances(first)).astype(np.float32)
    assert_close(modified(ALiBi(slopes), first=first)[0], expected, loose=EQUAL)


def test_the_slopes_are_those_of_the_paper():
    eight = [2.0**-n for n in range(1, 9)]
    assert_close(ALiBi.for_heads(8).slopes[0], np.float32(eight), loose=EQUAL)
    # 12 heads: the 8, and then 4 of the 16, from its first on by twos.
    sixteen = [2.0 ** (-n / 2) for n in range(1, 17)]
    assert_close(ALiBi.for_heads(12).slopes[0], np.float32(eight + sixteen[0:8:2]), loose=EQUAL)


@pytest.mark.parametrize("left", [None, 0, 1, 4])
def test_a_relative_bias_is_looked_up_by_clipped_distance(left):
    table = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    start = 2 if left is None else left
    entry = np.clip(distances(), -start, 4 - start) + start
    np.testing.assert_array_equal(modified(RelativeBias(table, left))[0], table[:, entry])


def t5_bucket(distance: int, buckets: int, most: int, *, bidirectional: bool) -> int:
    """The bucket of key - query, after the T5 paper's description and code."""
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    if distance < buckets // 2:
        return offset + distance
    large = math.log(distance / (buckets // 2)) / math.log(most / (buckets // 2))
    return offset + min(buckets // 2 + int(large * (buckets - buckets // 2)), buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_buckets_of_t5_are_distances(bidirectional):
    table = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    modifier = RelativeBias.t5(table, bidirectional=bidirectional, max_distance=20)
    for first in ((0, 0), (60, 0), (0, 60)):
        expected = np.vectorize(lambda d: t5_bucket(int(d), 8, 20, bidirectional=bidirectional))(
            distances(first)
        )
        got = np.asarray(modified(modifier, first=first)[0])
        np.testing.assert_array_equal(got, np.moveaxis(table[expected], -1, 0))


def test_gradients_reach_the_table():
    table = np.zeros((8, 3), np.float32)

    def total(table):
        return modified(RelativeBias.t5(table, bidirectional=True, max_distance=20)).sum()

    gradient = jax.grad(total)(table)
    assert gradient.sum() == 12 * 15 * 3
