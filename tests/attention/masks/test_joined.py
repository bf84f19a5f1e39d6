"""Masks joined by & | ~, at random, against the same joined in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapeexec import ConfigError
from shapeexec.attention._blocks import to_dense
from shapeexec.attention.masks import (
    ALiBi,
    And,
    Causal,
    Dense,
    Documents,
    Full,
    Global,
    Lengths,
    Not,
    Or,
    SlidingWindow,
)
from tests.attention.masks.cases import CASES, call
from tests.attention.masks.test_masks import assert_never_wrong, kinds_of, true_kinds

LEAVES = [case for case in CASES if "function" not in case.name]
trees = st.recursive(
    st.sampled_from(LEAVES),
    lambda part: st.tuples(st.sampled_from("&|~"), part, part),
    max_leaves=6,
)
sizes = st.sampled_from([1, 2, 31, 63, 64, 65, 127, 128, 129])


def build(tree, c, rng):
    if not isinstance(tree, tuple):
        return tree.make(c, rng)
    join, left, right = tree
    (one, pairs), (other, others) = build(left, c, rng), build(right, c, rng)
    if join == "~":
        return ~one, ~pairs
    return (one & other, pairs & others) if join == "&" else (one | other, pairs | others)


@given(
    tree=trees,
    length=st.tuples(sizes, sizes),
    shorter=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    seed=st.integers(0, 99),
)
def test_what_is_joined_means_what_its_parts_mean(tree, length, shorter, seed):
    c = call(length, heads=1, shorter=shorter)
    mask, pairs = build(tree, c, np.random.default_rng(seed))
    # `align="end"` and `Lengths()` ask for the call's own lengths, which `to_dense` has not.
    if not any(c.inside().all() or word in str(tree) for word in ("end", "lengths")):
        np.testing.assert_array_equal(to_dense(mask, c.length, batch=c.batch, heads=1), pairs)
    tile = (16, 32)
    assert_never_wrong(kinds_of(mask, c, tile), true_kinds(pairs, c, tile))


@pytest.mark.parametrize("low", [-70, -16, -1, 0, 3])
@pytest.mark.parametrize("high", [-80, -17, -2, 0, 1, 64])
def test_bands_joined_have_exact_tiles(low, high):
    c, tile = call((129, 96), shorter=(50, 33)), (16, 24)
    mask = Causal(high) & Lengths() & SlidingWindow(-low, None)
    _, _, q, k, _, _ = c.grids()
    pairs = c.full((k - q >= low) & (k - q <= high))
    np.testing.assert_array_equal(kinds_of(mask, c, tile), true_kinds(pairs, c, tile))


def test_nested_masks_are_flat_and_full_ones_leave():
    a, b, c = Causal(), Global(2), SlidingWindow(3)
    assert (a & b) & c == a & (b & c) == And((a, b, c))
    assert (a | b) | c == a | (b | c) == Or((a, b, c))
    assert a & Full() == a == Full() & a
    assert Full() & Full() == Full() == a | Full()
    assert ~~a == a
    assert ~(a & b) == Not(And((a, b)))


@pytest.mark.parametrize("library", [np, jnp])
def test_arrays_join_masks_from_either_side(library):
    array = library.asarray(np.arange(12).reshape(3, 4) % 3 == 0)
    dense, pairs = Dense(array), np.tri(3, 4, dtype=bool)
    for mask in (Causal() & array, array & Causal()):
        assert sorted(map(repr, mask.masks)) == sorted(map(repr, (Causal(), dense)))
        np.testing.assert_array_equal(to_dense(mask, (3, 4))[0, 0], pairs & np.asarray(array))
    for mask in (Causal() | array, array | Causal()):
        np.testing.assert_array_equal(to_dense(mask, (3, 4))[0, 0], pairs | np.asarray(array))


def test_what_is_no_mask_does_not_join():
    for other in (3, "causal", None, ALiBi.for_heads(2)):
        with pytest.raises(TypeError):
            Causal() & other
        with pytest.raises(TypeError):
            other | Causal()


def test_and_or_not_are_refused():
    for join in (lambda a, b: a and b, lambda a, b: a or b, lambda a, _: not a):
        with pytest.raises(
            ConfigError, match=r"(?s)Causal\(\) has no truth value.*Fix:.*&, \|"
        ) as no:
            join(Causal(), Global(1))
        assert isinstance(no.value, TypeError)


def test_what_is_joined_reads_as_it_was_written():
    mask = (Causal() & SlidingWindow(9)) | ~Documents(np.zeros(4, np.int32)) | Global(3)
    text = "(Causal() & SlidingWindow(left=9)) | ~Documents(query_ids=int32[1,4]"
    assert repr(mask).startswith(text)
    assert repr(~(Causal() | Global(1)) & Full()) == "~(Causal() | Global(n=1))"
