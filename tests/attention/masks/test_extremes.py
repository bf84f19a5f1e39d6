"""Numbers and ids at the ends of their dtypes mean what they say."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec import ConfigError
from shapeexec.attention._blocks import BlockMask, to_dense
from shapeexec.attention._call_lists import call_lists
from shapeexec.attention.masks import (
    Causal,
    Dilated,
    Documents,
    Global,
    Lengths,
    PrefixLM,
    SlidingWindow,
    TileKind,
)

LENGTH, TILE = (9, 7), (4, 4)
Q, K = np.arange(9).astype(object)[:, None], np.arange(7).astype(object)  # Python's integers
MOST = (2**31 - 1, 2**31, 2**32 + 1, sys.maxsize, 2**70)
NUMBERS = {
    "int": int,
    "numpy": lambda n: np.array([n], np.int64),
    "jax": lambda n: jnp.array([max(min(n, 2**31 - 1), -(2**31))], jnp.int32),
}
MASKS = {
    "causal": (Causal, lambda n: Q + n >= K),
    "causal to the end": (lambda n: Causal(n, align="end"), lambda n: Q - 9 + n >= K - 7),
    "window left": (lambda n: SlidingWindow(n, 2), lambda n: (Q - n <= K) & (K <= Q + 2)),
    "window right": (lambda n: SlidingWindow(5, n), lambda n: (Q - 5 <= K) & (Q + n >= K)),
    "window": (lambda n: SlidingWindow(n, n), lambda n: (Q - n <= K) & (Q + n >= K)),
    "global": (Global, lambda n: (n > Q) | (n > K)),
    "prefix": (PrefixLM, lambda n: (n > K) | (K <= Q)),
    "lengths": (lambda n: Lengths(n, n), lambda n: (n > Q) & (n > K)),
    "dilated": (Dilated, lambda n: (K - Q) % n == 0),
}


def pairs_of(mask) -> np.ndarray:
    return np.asarray(to_dense(mask, LENGTH))[0, 0]


def assert_means(mask, pairs) -> None:
    """Asked element by element and tile by tile, in NumPy and in a graph."""
    pairs = np.broadcast_to(pairs, LENGTH).astype(bool)
    np.testing.assert_array_equal(pairs_of(mask), pairs)
    np.testing.assert_array_equal(jax.jit(lambda m: to_dense(m, LENGTH))(mask)[0, 0], pairs)
    rows, columns = ([slice(i, i + 4) for i in range(0, n, 4)] for n in LENGTH)
    true = [[int(pairs[r, c].any()) + int(pairs[r, c].all()) for c in columns] for r in rows]
    true = np.array(true)
    sizes = dict(zip(("query_size", "key_size"), LENGTH, strict=True))
    kinds = BlockMask.from_mask(mask, **sizes, tile=TILE).kinds[0, 0]
    np.testing.assert_array_equal(kinds, true)
    if leaves := jax.tree.leaves(mask):
        traced = jax.jit(lambda m: BlockMask.from_mask(m, **sizes, tile=TILE).kinds)(mask)[0, 0]
        assert ((traced == true) | (traced == TileKind.PARTIAL)).all(), leaves


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", MASKS)
def test_a_number_beyond_all_positions_means_what_it_says(name, kind):
    make, pairs = MASKS[name]
    for most in MOST:
        for number in (most, -most):
            is_window_of_none = name.startswith("window") and number < 0
            if (kind != "int" and abs(number) >= 2**63) or is_window_of_none:
                continue
            if name == "dilated" and number < 1:
                continue
            assert_means(make(NUMBERS[kind](number)), pairs(number))


def test_a_window_that_ends_before_it_begins_at_any_size_is_refused():
    for most in MOST:
        with pytest.raises(ConfigError, match="allows no key"):
            SlidingWindow(5, -most)
    assert not pairs_of(SlidingWindow(-5, sys.maxsize))[:3, :5].any()


WIDTHS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", WIDTHS, ids=lambda dtype: dtype.__name__)
def test_integers_of_every_width_are_one_number(dtype):
    most = int(np.iinfo(dtype).max)
    for number in (3, most):
        assert_means(Causal(dtype(number)), Q + number >= K)
        assert_means(Causal(np.array([number], dtype)), Q + number >= K)
    assert_means(PrefixLM(jnp.asarray(np.array([3], dtype))), (K < 3) | (K <= Q))


@pytest.mark.parametrize("make", [Causal, Global, PrefixLM, Dilated, SlidingWindow, Lengths])
@pytest.mark.parametrize("value", [True, np.True_, 1.5, "x", [[1]], np.array([1.0])], ids=repr)
def test_what_is_no_integer_is_refused(make, value):
    with pytest.raises(
        ConfigError, match=r"(?s)(is not an array|is .*int|is .*bool|is .*float).*Fix"
    ):
        make(value)


def test_strides_that_are_none():
    for bad in (0, -3, np.array([2, 0])):
        with pytest.raises(ConfigError, match=r"step=.*is less than 1"):
            Dilated(bad)
    # Of what is traced nobody knows the values: multiples of -3 are those of 3, 0 has one.
    traced = jax.jit(lambda n: to_dense(Dilated(n), LENGTH))
    np.testing.assert_array_equal(traced(-3)[0, 0], (K - Q) % 3 == 0)
    np.testing.assert_array_equal(traced(0)[0, 0], K == Q)


IDS = {
    "one beyond 32 bits": np.array([1] * 4 + [2**32 + 1] * 3),
    "the ends": np.array([-(2**63), -1, 0, 0, 2**63 - 1, 2**31, -1]),
    "unsigned": np.array([2**64 - 1, 0, 2**32, 0, 1, 2**63, 2**64 - 1], np.uint64),
    "unsigned 32": np.array([2**32 - 1, 2**31, 2**31 - 1, 0, 0, 2**31, 5], np.uint32),
    "bytes": np.array([255, 127, 128, 0, 0, 1, 255], np.uint8),
    "small": np.array([-128, 127, 0, 0, 0, 1, 127], np.int8),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_are_compared_as_they_were_given(name):
    ids = IDS[name]
    wide = ids.astype(object)
    mask = Documents(ids)
    truth = wide[:, None] == wide
    np.testing.assert_array_equal(to_dense(mask, (7, 7))[0, 0], truth)
    np.testing.assert_array_equal(jax.jit(lambda m: to_dense(m, (7, 7)))(mask)[0, 0], truth)
    kinds = BlockMask.from_mask(mask, query_size=7, key_size=7, tile=(2, 2))
    np.testing.assert_array_equal(kinds.to_dense()[0, 0], truth)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([2**32 - 1], np.uint32), np.array([-1], np.int32)),
        (np.array([2**64 - 1], np.uint64), np.array([-1], np.int64)),
        (np.array([255], np.uint8), np.array([-1], np.int8)),
        (jnp.array([255], jnp.uint8), jnp.array([-1], jnp.int8)),
        (jnp.array([2**31], jnp.uint32), np.array([5], np.int64)),
    ],
    ids=str,
)
def test_ids_of_two_dtypes_are_equal_where_their_values_are(one, other):
    assert not to_dense(Documents(one, other), (1, 1)).any()
    assert not jax.jit(lambda m: to_dense(m, (1, 1)))(Documents(one, other)).any()
    same = Documents(one, np.asarray(one).astype(np.uint64))
    assert jax.jit(lambda m: to_dense(m, (1, 1)))(same).all()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jnp.array([1], jnp.uint32), jnp.array([1], jnp.int32)),
        (jnp.array([1], jnp.int32), np.array([2**32])),
        (np.array([-1]), jnp.array([1], jnp.uint32)),
    ],
    ids=str,
)
def test_ids_that_no_dtype_at_hand_holds_are_refused(one, other):
    with pytest.raises(
        ConfigError, match=r"(?s)no integer dtype that JAX has here holds.*Fix:.*one dtype"
    ):
        Documents(one, other)


@pytest.mark.parametrize("ids", [np.zeros(3), np.zeros(3, bool), np.array(["a"]), [2**70]], ids=str)
def test_ids_that_are_no_integers_are_refused(ids):
    with pytest.raises(ConfigError, match=r"(?s)query_ids.*Fix:.*integer"):
        Documents(ids)


def test_under_x64_ids_of_64_bits_stay_what_they_are():
    with jax.enable_x64(True):
        ids = jnp.array([1, 2**32 + 1])
        mask = Documents(ids)
        assert mask.query_ids.dtype == np.int64
        dense = jax.jit(lambda m: to_dense(m, (2, 2)))(mask)
        np.testing.assert_array_equal(dense[0, 0], np.eye(2, dtype=bool))
        assert not to_dense(Documents(jnp.array([2**32 - 1], np.uint32), jnp.array([-1])), (1, 1))


def test_sequences_too_long_for_sums_of_positions_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)536870913 keys.*Fix:.*parts"):
        call_lists(Causal(), (1, 2**29 + 1), tile=(1, 2**29), batch=1, heads=1)
