"""The lists of tiles: complete, disjoint, transposes of each other, and the same inside jit."""

import jax
import numpy as np
import pytest

from shapeexec import ConfigError
from shapeexec.attention._lists import lists_by_key, lists_by_query
from shapeexec.attention.masks import TileKind

SHAPES = [(1, 1, 1, 1), (1, 1, 5, 3), (2, 3, 4, 7), (2, 1, 1, 9), (1, 2, 9, 1)]


def random_kinds(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 3, shape).astype(np.uint8)


KINDS = {f"{shape}": random_kinds(shape) for shape in SHAPES}
KINDS["all empty"] = np.zeros((1, 2, 3, 4), np.uint8)
KINDS["all full"] = np.full((1, 2, 3, 4), 2, np.uint8)
KINDS["skewed"] = np.triu(np.full((6, 6), 2, np.uint8))[None, None]

every_kinds = pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)


def fields(lists):
    return {name: np.asarray(value) for name, value in vars(lists).items()}


@every_kinds
@pytest.mark.parametrize("by_key", [False, True], ids=["by query", "by key"])
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_the_lists_hold_each_tile_with_work_once(kinds, by_key, traced):
    make = lists_by_key if by_key else lists_by_query
    lists = fields(make(kinds)) if not traced else jax.jit(lambda k: vars(make(k)))(kinds)
    rows = kinds.swapaxes(-1, -2) if by_key else kinds
    for at in np.ndindex(rows.shape[:-1]):
        full, count = lists["full"][at], lists["counts"][at]
        tiles = np.asarray(lists["tiles"][at])
        assert tiles[:full].tolist() == np.flatnonzero(rows[at] == TileKind.FULL).tolist()
        partial = np.flatnonzero(rows[at] == TileKind.PARTIAL).tolist()
        assert tiles[full:count].tolist() == partial
        assert ((tiles >= 0) & (tiles < rows.shape[-1])).all()


@every_kinds
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_the_longest_rows_come_first(kinds, traced):
    make = (
        jax.jit(lambda k: vars(lists_by_query(k)))
        if traced
        else lambda k: fields(lists_by_query(k))
    )
    lists = make(kinds)
    for at in np.ndindex(kinds.shape[:2]):
        order, counts = np.asarray(lists["order"][at]), np.asarray(lists["counts"][at])
        assert sorted(order) == list(range(kinds.shape[2]))
        assert (np.diff(counts[order]) <= 0).all()


@every_kinds
def test_both_directions_hold_the_same_pairs(kinds):
    def pairs(lists):
        lists = fields(lists)
        for *at, row in np.ndindex(lists["counts"].shape):
            for i in range(lists["counts"][(*at, row)]):
                full = i < lists["full"][(*at, row)]
                yield *at, row, int(lists["tiles"][(*at, row, i)]), bool(full)

    transposed = {(b, n, q, k, full) for b, n, k, q, full in pairs(lists_by_key(kinds))}
    assert set(pairs(lists_by_query(kinds))) == transposed


def test_known_lists_are_as_wide_as_the_longest():
    assert lists_by_query(KINDS["skewed"]).tiles.shape == (1, 1, 6, 6)
    assert lists_by_query(np.eye(6, dtype=np.uint8)[None, None]).tiles.shape == (1, 1, 6, 1)
    assert lists_by_query(KINDS["all empty"]).tiles.shape == (1, 2, 3, 1)


@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_a_width_that_suffices_changes_nothing_but_the_room(traced):
    kinds = np.tri(6, dtype=np.uint8)[::-1, ::-1][None, None] * (np.arange(6) < 4)[:, None]
    kinds = kinds.astype(np.uint8)
    width = int((kinds > 0).sum(-1).max())

    def make(k):
        return vars(lists_by_query(k, width=width))

    whole, cut = fields(lists_by_query(kinds, width=6)), (jax.jit(make) if traced else make)(kinds)
    assert cut["tiles"].shape[-1] == width
    for at in np.ndindex(kinds.shape[:-1]):
        count = whole["counts"][at]
        np.testing.assert_array_equal(cut["tiles"][at][:count], whole["tiles"][at][:count])


def test_a_width_that_does_not_suffice_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)width=2.*6 others.*Fix:.*width=6 or more"):
        lists_by_query(KINDS["skewed"], width=2)


def test_inside_jit_no_sort_runs_over_the_tiles():
    kinds = np.zeros((2, 3, 32, 64), np.uint8)
    jaxpr = jax.make_jaxpr(lambda k: vars(lists_by_query(k)))(kinds)
    text = str(jaxpr)
    assert text.count("sort[") == 1
    assert "i32[2,3,32,64] i32[2,3,32,64] = sort" not in text
