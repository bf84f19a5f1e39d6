"""Every mask, and what it says of tiles, against what it means."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention._blocks import BlockMask, refined_kinds
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._lists import before_lengths
from shapeexec.attention._positions import Gathered, block
from shapeexec.attention.masks import Documents, Mask, TileKind
from tests.attention.masks.cases import CASES, Call, Case, call
from tests.attention.tiles import tile_kinds

CALLS = {
    "1x1": (call((1, 1)), (64, 64)),
    "64x65": (call((64, 65)), (64, 64)),
    "127x129, shorter": (call((127, 129), shorter=(30, 61)), (64, 32)),
    "128x63, one empty": (call((128, 63), shorter=(0, 63)), (16, 48)),
    "65x128, 3 examples": (call((65, 128), batch=3, heads=1, shorter=(64, 1)), (13, 64)),
}

PER_HEAD = ("causal, an offset for each example", "packed documents", "dense", "function of all")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_call = pytest.mark.parametrize(("c", "tile"), CALLS.values(), ids=CALLS)


def made(case: Case, c: Call) -> tuple[Mask, np.ndarray]:
    return case.make(c, np.random.default_rng(0))


def kinds_of(mask: Mask, c: Call, tile) -> np.ndarray:
    grid = tile_grid(
        c.length, tile, query_lengths=c.queries, key_lengths=c.keys, batch=c.batch, heads=c.heads
    )
    kinds = tile_kinds(mask, grid)
    assert isinstance(kinds, np.ndarray)
    assert kinds.dtype == np.uint8
    return np.broadcast_to(kinds, (c.batch, c.heads, *kinds.shape[2:]))


def true_kinds(pairs: np.ndarray, c: Call, tile) -> np.ndarray:
    """The kind of every tile: full ones must lie before the sizes wholly."""
    pairs, inside = pairs & c.inside(), c.inside()
    rows, columns = (-(-n // t) for n, t in zip(c.length, tile, strict=True))
    kinds = np.zeros((c.batch, c.heads, rows, columns), np.uint8)
    for i in range(rows):
        for j in range(columns):
            at = (..., slice(i * tile[0], (i + 1) * tile[0]), slice(j * tile[1], (j + 1) * tile[1]))
            is_whole = inside[at].sum((-2, -1)) == tile[0] * tile[1]
            is_full = is_whole & pairs[at].all((-2, -1))
            kinds[:, :, i, j] = np.where(is_full, 2, pairs[at].any((-2, -1)))
    return kinds


def assert_never_wrong(kinds: np.ndarray, truth: np.ndarray) -> None:
    assert not truth[kinds == TileKind.EMPTY].any()
    assert (truth[kinds == TileKind.FULL] == TileKind.FULL).all()


@every_case
@every_call
@pytest.mark.parametrize("negated", [False, True], ids=["", "not"])
def test_tiles_are_never_wrong_and_exact_where_that_is_promised(case, c, tile, negated):
    mask, pairs = made(case, c)
    if negated:
        mask, pairs = ~mask, ~pairs
    kinds, truth = kinds_of(mask, c, tile), true_kinds(pairs, c, tile)
    assert_never_wrong(kinds, truth)
    has_function = "function" in case.name  # its answers do not know the lengths
    if case.exact and not (has_function and not c.inside().all()):
        np.testing.assert_array_equal(kinds, truth)


@every_case
def test_tiles_are_the_same_inside_jit(case):
    c, tile = CALLS["127x129, shorter"]
    mask, _ = made(case, c)

    def traced(mask, queries, keys):
        grid = tile_grid(
            c.length,
            tile,
            query_lengths=queries,
            key_lengths=keys,
            known=False,
            batch=c.batch,
            heads=c.heads,
        )
        return tile_kinds(mask, grid)

    kinds = jax.jit(traced)(jax.tree.map(jnp.asarray, mask), c.queries, c.keys)
    kinds = np.broadcast_to(kinds, (c.batch, c.heads, *kinds.shape[2:]))
    np.testing.assert_array_equal(kinds, kinds_of(mask, c, tile))


def ask_tile_by_tile(mask: Mask, c: Call, tile, *, batch, head):
    """What a mask allows in each tile, as a loop asks it: bool[B or 1, N or 1, T, S]."""
    rows, columns = tile_grid(c.length, tile).shape

    @jax.jit
    def ask(mask, i, j, batch, head):
        first = (i * tile[0], j * tile[1])
        said = mask.allows(block(first, tile, lengths=(c.queries, c.keys), batch=batch, head=head))
        return jnp.broadcast_to(said, (np.size(batch), np.size(head), *tile))

    said = [[ask(mask, i, j, batch, head) for j in range(columns)] for i in range(rows)]
    # A tile may overhang the arrays; what it says of pairs behind them is nobody's.
    return np.block([[np.asarray(part) for part in row] for row in said])[
        ..., : c.length[0], : c.length[1]
    ]


@every_case
def test_each_tile_allows_the_pairs_that_are_meant(case):
    c, tile = CALLS["127x129, shorter"]
    mask, pairs = made(case, c)
    said = ask_tile_by_tile(mask, c, tile, batch=np.arange(c.batch), head=np.arange(c.heads))
    np.testing.assert_array_equal(said, pairs)


@pytest.mark.parametrize("tile", [(64, 32), (127, 43)], ids=["takes", "slices"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in PER_HEAD], ids=lambda case: case.name
)
def test_each_tile_of_one_head_allows_the_pairs_that_are_meant(case, tile):
    c, _ = CALLS["127x129, shorter"]
    mask, pairs = made(case, c)
    for b, h in np.ndindex(c.batch, c.heads):
        said = ask_tile_by_tile(mask, c, tile, batch=b, head=h)
        np.testing.assert_array_equal(said[0, 0], pairs[b, h])


@every_case
@pytest.mark.parametrize("first", ["the longer", "the shorter"])
def test_a_closer_look_finds_every_tile_that_is_not_partial(case, first):
    c, tile = call((65, 127), shorter=(20, 31)), (16, 32)
    if first == "the shorter":
        c = dataclasses.replace(c, queries=c.queries[::-1], keys=c.keys[::-1])
    mask, pairs = made(case, c)
    grid = tile_grid(
        c.length, tile, query_lengths=c.queries, key_lengths=c.keys, batch=c.batch, heads=c.heads
    )
    kinds, truth = before_lengths(refined_kinds(mask, grid), grid), true_kinds(pairs, c, tile)
    np.testing.assert_array_equal(np.broadcast_to(kinds, truth.shape), truth)


@every_case
def test_a_block_mask_made_of_a_mask_means_the_same(case):
    c, tile = call((65, 127)), (16, 32)
    mask, pairs = made(case, c)
    sizes = dict(zip(("query_size", "key_size"), c.length, strict=True))
    blocks = BlockMask.from_mask(mask, **sizes, tile=tile, batch=c.batch, heads=c.heads)
    np.testing.assert_array_equal(np.broadcast_to(blocks.to_dense(), pairs.shape), pairs)


def test_known_positions_may_overhang_the_arrays():
    mask = Documents(np.array([4, 5, 6]), np.array([5, 6, 4, 6]))
    q, k = np.ogrid[:8, :8]
    at = Gathered(q * 0, q * 0, q, k, q * 0 + 3, q * 0 + 4)
    np.testing.assert_array_equal(
        mask.allows(at)[:3, :4], [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 1]]
    )


def test_garbage_behind_the_lengths_adds_no_tile():
    ids = np.repeat(np.arange(8, dtype=np.int32), 16)[None]
    garbage = ids.copy()
    garbage[:, 100:] = np.resize([np.iinfo(np.int32).min, np.iinfo(np.int32).max], 28)
    c = Call(1, 1, (128, 128), np.array([100]), np.array([100]))
    clean = kinds_of(Documents(ids), c, (32, 32))
    np.testing.assert_array_equal(kinds_of(Documents(garbage), c, (32, 32)), clean)
