"""How the work of few queries is divided among programs, and their parts joined, by operations."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention.backends.mosaic_gpu._join import joined
from shapeexec.attention.backends.mosaic_gpu._shares import LIST_UNITS, TILE_UNITS, share
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
    ("name", "programs", "alike", "xp"),
    [
        *((name, programs, 1, np) for name in COUNTS for programs in (1, 5, 132)),
        *((name, programs, 3, np) for name in COUNTS for programs in (5, 132)),
        ("one long among short ones", 5, 1, jnp),  # as if they were traced
        ("nothing", 132, 3, jnp),
    ],
)
def test_each_tile_is_in_the_share_of_one_program(name, programs, alike, xp):
    counts = COUNTS[name]
    given = xp.asarray(counts, np.int32)
    shares, parts = share(given, longest=max(*counts, 1), programs=programs, alike=alike)
    of_lists = attended(shares)
    # One list of each group, then the next one of each group.
    tiles = [[*itertools.chain(*one.values())] for one in of_lists]
    assert tiles == [[*range(count)] for count in counts] * alike
    assert max(map(len, of_lists)) <= parts
    first, number = shares.parts_of(np.arange(shares.lists))
    np.testing.assert_array_equal(number, list(map(len, of_lists)))
    places = [which + program for which, one in enumerate(of_lists) for program in one]
    assert places == [f + i for f, n in zip(first, number, strict=True) for i in range(n)]
    assert len(set(places)) == len(places)
    assert max(places, default=0) < shares.places


@pytest.mark.parametrize("alike", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", COUNTS)
def test_lists_are_found_by_their_units_and_numbered_as_they_were_given(name, alike):
    counts = np.array(COUNTS[name], np.int32)
    shares, _ = share(counts, longest=max(*counts, 1), programs=7, alike=alike)
    units = np.tile(counts * TILE_UNITS + LIST_UNITS, alike)
    low, tiles = shares.bounds(np.arange(shares.lists))
    np.testing.assert_array_equal(tiles, np.tile(counts, alike))
    np.testing.assert_array_equal(low, np.cumsum(units) - units)
    np.testing.assert_array_equal(shares.end(low, tiles), np.cumsum(units))
    assert int(shares.total()) == units.sum()
    given = np.arange(shares.lists).reshape(len(counts), alike).T.reshape(-1)
    np.testing.assert_array_equal(shares.given(np.arange(shares.lists)), given)
    of_any = dataclasses.replace(
        shares, groups=jnp.int32(len(counts)), sums=jnp.asarray(shares.sums)
    )
    lists = jnp.arange(shares.lists)
    np.testing.assert_array_equal(of_any.given(lists), given)
    np.testing.assert_array_equal(of_any.bounds(lists), [low, tiles])
    assert (of_any.total(), of_any.size()) == (shares.total(), shares.size())
    np.testing.assert_array_equal(shares.given(shares.all_lists), np.arange(shares.lists))


@pytest.mark.parametrize("groups", [1, 40, 3_000, 5_000])
def test_sums_of_tiles_have_no_large_constant(groups):
    counts = np.random.default_rng(0).integers(0, 9, groups).astype(np.int32)
    known, _ = share(counts, longest=8, programs=132)
    np.testing.assert_array_equal(known.sums, [counts.sum(), *np.cumsum([0, *counts])[:-1]])
    traced = jax.jit(lambda x: share(x, longest=8, programs=132)[0].sums)
    np.testing.assert_array_equal(traced(counts), known.sums)
    # For 70,000 examples a table of pairs was a constant of 5 GB, which no program can hold.
    assert len(traced.lower(counts).as_text()) < 10_000


@pytest.mark.parametrize("alike", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 300])
def test_the_list_that_holds_a_unit_is_found_among_any_number(groups, alike):
    counts = np.random.default_rng(groups).integers(0, 3, groups).astype(np.int32)
    shares, _ = share(counts, longest=2, programs=132, alike=alike)
    units = np.tile(counts * TILE_UNITS + LIST_UNITS, alike)
    expected = np.repeat(np.arange(groups * alike), units)
    found = holders(shares, np.arange(len(expected) + 5))
    np.testing.assert_array_equal(found, np.append(expected, [groups * alike - 1] * 5))


def holders(shares, units):
    """The lists that hold units, as kernels find them: for any number of groups, or for one."""
    units = jnp.asarray(units, np.int32)

    @jax.jit
    def found(sums, groups):
        of_any = dataclasses.replace(shares, sums=sums, groups=groups)
        return jax.vmap(of_any.holder)(units)

    shares = dataclasses.replace(shares, sums=jnp.asarray(shares.sums))
    of_one = np.asarray(jax.jit(jax.vmap(shares.holder))(units))
    np.testing.assert_array_equal(found(shares.sums, jnp.int32(shares.groups)), of_one)
    return of_one


def attended(shares):
    """For each list the tiles that each program attends to, as the kernel finds them."""
    shares = dataclasses.replace(shares, sums=np.asarray(shares.sums))
    size, total = int(shares.size()), int(shares.total())
    begins = np.arange(shares.programs) * size
    of_lists = [{} for _ in range(shares.lists)]
    for program, which in enumerate(holders(shares, begins)):
        begin, end = begins[program], min(begins[program] + size, total)
        at = begin
        while at < end:
            low, tiles = shares.bounds(which)
            first, stop = (int(shares.tiles_before(x, low, tiles)) for x in (begin, end))
            if first < stop:
                of_lists[which][program] = list(range(first, stop))
            at, which = shares.end(low, tiles), which + 1  # noqa: PLW2901 - the kernel's loop
    return of_lists


def test_a_long_list_among_short_ones_is_divided_among_all_programs():
    counts = np.array([512] + [1] * 63, np.int32)
    shares, parts = share(counts, longest=512, programs=132)
    assert int(shares.size()) == -(-(575 * TILE_UNITS + 64 * LIST_UNITS) // 132)
    assert parts == len(attended(shares)[0]) == 114
    assert share(jnp.asarray(counts), longest=512, programs=132)[1] == 134


def test_no_share_has_all_short_lists_of_an_example():
    lengths = np.random.default_rng(0).integers(1, 1025, 64)
    shares, _ = share((-(-lengths // 128)).astype(np.int32), longest=8, programs=132, alike=8)
    of_lists = attended(shares)
    number = [sum(program in one for one in of_lists) for program in range(132)]
    assert max(number) <= 2 * np.mean(number)  # 19 and 5 if the lists of an example were neighbours


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
    bounds = []
    jax.eval_shape(lambda x: bounds.append(share(x, **of_groups)[1]), counts)
    shares, parts = share(counts, **of_groups)
    _, number = shares.parts_of(shares.all_lists)
    assert number.max() == parts <= bounds[0]
    assert int(shares.total()) <= int(shares.size()) * programs


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
