"""How the work of few queries is divided among programs, and their parts joined, by operations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention.backends.mosaic_gpu._join import joined
from shapeexec.attention.backends.mosaic_gpu._shares import share
from shapeexec.attention.backends.mosaic_gpu._weights import BiasedWeights, Weights
from tests.tolerance import tolerance

COUNTS = {
    "alike": [9] * 8,
    "one long among short ones": [1, 0, 31, 2, 0, 0, 1],
    "a single one": [513],
    "nothing": [0, 0, 0],
    "many": list(range(40)),
    "less work than programs": [1, 2],
}


@pytest.mark.parametrize(
    ("name", "programs", "xp"),
    [
        *((name, programs, np) for name in COUNTS for programs in (1, 5, 132)),
        ("one long among short ones", 5, jnp),  # as if they were traced
        ("nothing", 132, jnp),
    ],
)
def test_each_tile_is_in_the_share_of_one_program(name, programs, xp):
    counts = COUNTS[name]
    given = xp.asarray(counts, np.int32)
    shares, parts = share(given, longest=max(*counts, 1), programs=programs)
    size = int(shares.size())
    seen = [(n, tile) for n, count in enumerate(counts) for tile in range(count)]
    cut = [seen[first : first + size] for first in range(0, len(seen), size)]
    assert len(cut) <= programs
    assert int(shares.total()) == len(seen)
    chosen = some(range(len(cut)))
    found = holders(shares, [number * size for number in chosen])
    assert found == [cut[number][0][0] for number in chosen]
    starts = np.cumsum([0, *counts])
    lists = some(range(len(counts)))
    assert bounds(shares, lists) == [(starts[i], starts[i + 1]) for i in lists]
    of_list = [sum(any(n == i for n, _ in mine) for mine in cut) for i in range(len(counts))]
    assert max(of_list) <= parts
    first, number = shares.parts_of(shares.all_lists)
    np.testing.assert_array_equal(number, of_list)
    program_of = {n: i for i, mine in reversed(list(enumerate(cut))) for n, _ in mine}
    assert {n: int(first[n]) - n for n in program_of} == program_of
    places = [int(first[n]) + i for n, count in enumerate(of_list) for i in range(count)]
    assert len(set(places)) == len(places)
    assert max(places, default=0) < shares.places


@pytest.mark.parametrize("groups", [1, 40, 3_000, 5_000])
def test_starts_are_the_sums_before_with_no_large_constant(groups):
    counts = np.random.default_rng(0).integers(0, 9, groups).astype(np.int32)
    known, _ = share(counts, longest=8, programs=132)
    np.testing.assert_array_equal(known.starts, np.cumsum([0, *counts]))
    traced = jax.jit(lambda x: share(x, longest=8, programs=132)[0].starts)
    np.testing.assert_array_equal(traced(counts), known.starts)
    # For 70,000 examples a table of pairs was a constant of 5 GB, which no program can hold.
    assert len(traced.lower(counts).as_text()) < 10_000


@pytest.mark.parametrize("alike", [1, 3])
@pytest.mark.parametrize("name", COUNTS)
def test_lists_that_are_alike_are_shared_out_as_if_they_were_given_one_by_one(name, alike):
    counts, longest = np.array(COUNTS[name], np.int32), max(*COUNTS[name], 1)
    together, _ = share(counts, longest=longest, programs=7, alike=alike)
    apart, _ = share(np.repeat(counts, alike), longest=longest, programs=7)
    assert int(together.size()) == int(apart.size())
    assert together.lists == apart.lists
    tiles, lists = some(range(int(apart.total()))), some(range(apart.lists))
    assert holders(together, tiles) == holders(apart, tiles)
    assert bounds(together, lists) == bounds(apart, lists)
    np.testing.assert_array_equal(*(x.parts_of(x.all_lists) for x in (together, apart)))


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 300])
def test_the_list_that_holds_a_tile_is_found_among_any_number(groups):
    counts = np.random.default_rng(groups).integers(0, 3, groups).astype(np.int32)
    counts[-1] = 1
    shares, _ = share(counts, longest=2, programs=132)
    expected = np.repeat(np.arange(groups), counts)
    tiles = some(range(len(expected)))
    assert holders(shares, [*tiles, len(expected) + 5]) == [*expected[tiles], groups - 1]


def some(numbers):
    """At most 40 of the numbers: JAX takes a millisecond for each."""
    return numbers[:: -(-len(numbers) // 40)] if len(numbers) else numbers


def holders(shares, tiles):
    """The lists that hold tiles, as kernels find them."""
    shares = dataclasses.replace(shares, starts=jnp.asarray(shares.starts))
    return [int(shares.holder(jnp.int32(tile))) for tile in tiles]


def bounds(shares, lists):
    """The first tile of each list, and that of the next one."""
    shares = dataclasses.replace(shares, starts=jnp.asarray(shares.starts))
    return [tuple(map(int, shares.bounds(jnp.int32(number)))) for number in lists]


def test_a_long_list_among_short_ones_is_divided_among_all_programs():
    counts = np.array([512] + [1] * 63, np.int32)
    shares, parts = share(counts, longest=512, programs=132)
    assert int(shares.size()) == 5
    assert parts == 103
    assert share(jnp.asarray(counts), longest=512, programs=132)[1] == 134


@pytest.mark.parametrize(
    ("batch", "longest", "share_of_length"),
    [(8, 64, 0.34), (8, 512, 0.06), (1, 512, 0.85), (64, 32, 0.3)],
)
def test_caches_that_are_partly_full_keep_all_programs_at_work(batch, longest, share_of_length):
    lengths = np.random.default_rng(0).uniform(0, 2 * share_of_length, batch).clip(0, 1)
    counts = np.ceil(lengths * longest).astype(np.int32)
    counts[0] = round(share_of_length * longest)
    shares, _ = share(jnp.asarray(counts), longest=longest, programs=132, alike=8)
    assert int(shares.total()) / int(shares.size()) > 0.9 * 132


@pytest.mark.parametrize("programs", [5, 16, 132])
@pytest.mark.parametrize("alike", [1, 4, 8])
@pytest.mark.parametrize("seed", range(8))
def test_no_list_has_more_parts_than_the_bound_that_is_known_when_it_is_traced(
    programs, alike, seed
):
    random = np.random.default_rng(seed)
    longest = int(random.integers(1, 80))
    counts = random.integers(0, longest + 1, random.integers(1, 12)).astype(np.int32)
    counts[random.random(len(counts)) < 0.5] = 0
    counts[0] = longest
    of_groups = {"longest": longest, "programs": programs, "alike": alike}
    shares, parts = share(jnp.asarray(counts), **of_groups)
    ends = np.cumsum(np.repeat(counts, alike))
    size, begins = int(shares.size()), ends - np.repeat(counts, alike)
    assert ((ends - 1) // size - begins // size + 1).max() <= parts
    assert int(shares.total()) <= size * programs


@pytest.mark.parametrize("garbage", [np.nan, 7.0])
@pytest.mark.parametrize("xp", [np, jnp])  # known, or as if they were traced
def test_what_is_joined_is_the_softmax_over_all_parts_that_there_are(garbage, xp):
    counts = np.array([3, 0, 5], np.int32)
    shares, parts = share(xp.asarray(counts), longest=5, programs=4)
    is_there = np.arange(parts) < np.array([2, 0, 3])[:, None]
    random = np.random.default_rng(0)
    out, logsumexp = random.normal(size=(3, parts, 2, 4)), random.normal(size=(3, parts, 2))
    logsumexp[0, 0, 1] = -np.inf  # of a row that attends to nothing in this part
    weights = np.where(is_there[..., None], np.exp(logsumexp), 0)
    total = weights.sum(1)
    expected = (weights[..., None] * out).sum(1) / np.where(total, total, 1)[..., None]
    given = [in_places(shares, x, garbage) for x in (out, logsumexp)]
    value, (statistics,) = joined(Weights(1.0), shares, given, parts=parts, rows=2)
    limit = tolerance(np.float32)
    np.testing.assert_allclose(value, expected, limit, limit)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(statistics, np.log(total), limit, limit)


def in_places(shares, of_parts, garbage):
    """[lists, parts, ...] as kernels store it, with garbage where no part is."""
    stored = np.full((shares.places, *of_parts.shape[2:]), garbage, np.float32)
    for one, first, number in zip(of_parts, *shares.parts_of(shares.all_lists), strict=True):
        stored[int(first) :][: int(number)] = one[: int(number)]
    return jnp.asarray(stored)


@pytest.mark.parametrize("weights", [Weights(1.0), BiasedWeights()])
def test_nan_in_one_part_is_nan_in_all(weights):
    counts = np.array([4], np.int32)
    shares, parts = share(counts, longest=4, programs=2)
    assert parts == 2
    out = jnp.ones((2, 1, 4)).at[1].set(jnp.nan)
    statistics = [jnp.ones((2, 1)).at[1].set(jnp.nan) for _ in weights.empty_statistics]
    value, results = joined(weights, shares, [out, *statistics], parts=parts, rows=1)
    assert np.isnan(value).all()
    assert np.isnan(weights.logsumexp(results)).all()
    largest = weight = jnp.full(1, jnp.nan)
    alive = weights.is_alive(largest, weight)
    assert np.isnan(weights.logsumexp(weights.statistics(largest, weight, alive))).all()
