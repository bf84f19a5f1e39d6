"""Block masks: made of arrays, masks and scores, and what they tell of themselves."""

import tracemalloc

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest

from shapeexec import ConfigError, dot_product_attention
from shapeexec.attention._blocks import BlockMask, refined_kinds
from shapeexec.attention._call_lists import call_lists, most_keys
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._lists import lists_by_query
from shapeexec.attention.masks import (
    Causal,
    Documents,
    Global,
    MaskFunction,
    SlidingWindow,
    TileKind,
)
from tests.attention.masks.cases import call
from tests.attention.masks.test_masks import (
    ask_tile_by_tile,
    assert_never_wrong,
    kinds_of,
    true_kinds,
)
from tests.tolerance import assert_close

mpl.use("Agg")

LENGTHS = [(1, 1), (63, 64), (65, 127), (128, 129)]


def runs(shape, seed=0):
    """Bools in runs, with full, empty and partial tiles."""
    return np.cumsum(np.random.default_rng(seed).random(shape) < 0.03, axis=-1) % 3 > 0


def mixed(shape):
    """Blocks of 16 x 32 allowed wholly, forbidden wholly, and in runs."""
    (*lead, queries, keys) = shape
    kinds = np.random.default_rng(0).integers(0, 3, (*lead, -(-queries // 16), -(-keys // 32)))
    kinds = np.kron(kinds, np.ones((16, 32), int))[..., :queries, :keys]
    return np.where(kinds == 2, runs(shape), kinds == 1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 1), (1, 3)])
def test_a_dense_mask_comes_back_from_its_tiles(length, lead):
    array = runs((*lead, *length))
    blocks = BlockMask.from_dense(array, (16, 32))
    np.testing.assert_array_equal(blocks.to_dense().reshape(array.shape), array)


def test_a_dense_mask_comes_back_inside_jit():
    array = runs((2, 1, 65, 127))
    dense = jax.jit(lambda a: BlockMask.from_dense(a, (16, 32)).to_dense())(array)
    np.testing.assert_array_equal(dense, array)


def test_an_array_without_partial_tiles_is_not_kept():
    array = np.kron(np.eye(4, dtype=bool), np.ones((16, 16), bool))
    assert BlockMask.from_dense(array, (16, 16)).elements is None
    assert BlockMask.from_dense(array, (32, 16)).elements is not None


@pytest.mark.parametrize("tile", [(16, 32), (32, 32), (8, 16), (24, 20), (200, 200)])
def test_tiles_of_another_size_are_never_wrong(tile):
    c = call((65, 127), shorter=(20, 31))
    array = mixed((2, 2, *c.length))
    blocks = BlockMask.from_dense(array, (16, 32))
    before = np.tri(*c.length, dtype=bool)
    for mask, pairs in ((blocks, array), (~blocks | Causal(), ~array | before)):
        assert_never_wrong(kinds_of(mask, c, tile), true_kinds(pairs, c, tile))


@pytest.mark.parametrize("tile", [(16, 32), (8, 16), (24, 20), (65, 127)])
def test_tiles_of_another_size_allow_the_same_pairs(tile):
    c = call((65, 127))
    array = mixed((2, 2, *c.length))
    blocks = BlockMask.from_dense(array, (16, 32))
    ends = {"batch": np.arange(2), "head": np.arange(2)}
    np.testing.assert_array_equal(ask_tile_by_tile(blocks, c, tile, **ends), array)
    np.testing.assert_array_equal(
        ask_tile_by_tile(blocks, c, tile, batch=1, head=0)[0, 0], array[1, 0]
    )


def test_a_function_of_examples_whose_number_nobody_told_stays_unknown():
    mask = MaskFunction(lambda b, h, q, k: q < 16 * b)
    blocks = BlockMask.from_mask(mask, query_size=32, key_size=32, tile=(16, 16))
    assert (blocks.kinds == TileKind.PARTIAL).all()
    told = BlockMask.from_mask(mask, query_size=32, key_size=32, tile=(16, 16), batch=3)
    np.testing.assert_array_equal(told.kinds[:, 0, :, 0], [[0, 0], [2, 0], [2, 2]])


def test_kinds_alone_are_exact_at_their_own_size():
    kinds = np.array([[0, 1, 2], [2, 0, 1]], np.uint8)
    blocks = BlockMask(kinds, (16, 32), (32, 96))
    c = call((32, 96), heads=1, batch=1)
    pairs = np.kron(kinds > 0, np.ones((16, 32), bool))[None, None]
    np.testing.assert_array_equal(blocks.to_dense(), pairs)
    np.testing.assert_array_equal(kinds_of(blocks, c, (16, 32)), true_kinds(pairs, c, (16, 32)))
    np.testing.assert_array_equal(kinds_of(blocks, c, (8, 8)), true_kinds(pairs, c, (8, 8)))
    for tile in ((32, 64), (24, 40), (16, 96), (200, 200)):
        assert_never_wrong(kinds_of(blocks, c, tile), true_kinds(pairs, c, tile))


@pytest.mark.parametrize("tile", [(16, 32), (8, 8), (32, 64), (24, 40), (200, 200)])
def test_full_tiles_are_full_whatever_the_elements_say(tile):
    kinds = np.array([[0, 1, 2], [2, 0, 1]], np.uint8)
    blocks = BlockMask(kinds, (16, 32), (32, 96), elements=Causal(-999))
    c = call((32, 96), heads=1, batch=1)
    pairs = np.kron(kinds == TileKind.FULL, np.ones((16, 32), bool))[None, None]
    np.testing.assert_array_equal(blocks.to_dense(), pairs)
    assert_never_wrong(kinds_of(blocks, c, tile), true_kinds(pairs, c, tile))


def test_density_is_the_share_of_tiles_with_work():
    kinds = np.array([[0, 1, 2], [2, 0, 0]], np.uint8)
    assert BlockMask(kinds, (8, 8), (16, 24)).density == 0.5
    traced = jax.jit(lambda k: BlockMask(k, (8, 8), (16, 24)).density)(kinds)
    assert traced == 0.5


@pytest.mark.parametrize("k", [1, 3, 99])
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_the_best_tiles_of_each_row_are_chosen(k, lead):
    scores = np.random.default_rng(0).normal(size=(*lead, 5, 7)).astype(np.float32)

    @jax.jit
    def kinds(scores):
        return BlockMask.from_topk(scores, k, tile=(16, 8), length=(80, 50)).kinds

    rank = (-scores).argsort(-1).argsort(-1)
    chosen = np.asarray(kinds(scores)).reshape(scores.shape)
    np.testing.assert_array_equal(chosen, np.where(rank < k, 2, 0))


def test_chosen_tiles_stay_within_a_mask_and_keep_what_is_always_kept():
    scores = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    blocks = BlockMask.from_topk(
        scores, 3, tile=(16, 16), length=(120, 120), within=Causal(), always=SlidingWindow(0)
    )
    dense, chosen = np.asarray(blocks.to_dense()), np.asarray(blocks.kinds) > 0
    assert not (dense & ~np.tri(120, dtype=bool)).any()
    assert dense[:, :, np.arange(120), np.arange(120)].all()
    assert chosen.sum(-1).max() == 3
    for i in range(8):
        # The diagonal, and the best 2 of those before it.
        best = np.argsort(-scores[:, :, i, :i], axis=-1)[..., :2]
        for b, n in np.ndindex(2, 3):
            assert set(np.flatnonzero(chosen[b, n, i])) == {i, *best[b, n].tolist()}


def test_what_has_no_score_is_never_chosen():
    scores = np.array([[np.nan, 1, -np.inf, 2], [np.nan, -np.inf, np.nan, -np.inf]], np.float32)
    kinds = BlockMask.from_topk(scores, 2, tile=(4, 4), length=(8, 16)).kinds
    np.testing.assert_array_equal(kinds[0, 0], [[0, 2, 0, 2], [0, 0, 0, 0]])


def test_no_gradient_flows_to_the_scores():
    def total(scores):
        blocks = BlockMask.from_topk(scores, 2, tile=(4, 4), length=(16, 16))
        return (blocks.to_dense() * jnp.float32(1)).sum() + 0 * scores.sum()

    assert not jax.grad(total)(np.eye(4, dtype=np.float32)).any()


def test_a_chosen_number_bounds_the_lists():
    scores = np.arange(16, dtype=np.float32).reshape(4, 4)
    blocks = BlockMask.from_topk(scores, 2, tile=(4, 4), length=(16, 16))
    joined = blocks & Documents(np.zeros(16, np.int32))
    assert most_keys(blocks, (4, 4)) == most_keys(joined, (4, 4)) == 2
    wider = BlockMask.from_topk(scores, 3, tile=(4, 4), length=(16, 16))
    assert most_keys(joined & wider, (4, 4)) == 2
    assert most_keys(blocks, (8, 8)) is most_keys(~blocks, (4, 4)) is None

    by_query, by_key = jax.jit(lists)(joined)
    assert by_query.tiles.shape == (1, 1, 4, 2)
    np.testing.assert_array_equal(by_query.tiles[0, 0], [[2, 3]] * 4)
    np.testing.assert_array_equal(by_key.counts[0, 0], [0, 0, 4, 4])


def lists(mask, length=(16, 16), **sizes):
    return call_lists(mask, length, tile=(4, 4), batch=2, heads=3, **sizes)


def test_lists_of_a_mask_without_arrays_are_made_once():
    assert lists(Causal() & SlidingWindow(5)) is lists(Causal() & SlidingWindow(5))
    assert lists(Causal() & SlidingWindow(5)) is not lists(Causal() & SlidingWindow(6))
    by_query, _ = lists(Causal() | MaskFunction(lambda b, h, q, k: (b > 0) & (q < 4 * h)))
    assert by_query.counts[..., 0].tolist() == [[1, 1, 1], [1, 4, 4]]


@pytest.mark.parametrize(
    "mask", [Causal(), Documents(np.arange(16) // 6)], ids=["static", "known array"]
)
@pytest.mark.parametrize("sizes", [None, np.array([16, 9], np.int32)], ids=["full", "shorter"])
def test_lists_are_the_same_inside_jit(mask, sizes):
    def work(mask, sizes):
        return lists(mask, query_lengths=sizes, key_lengths=sizes)

    known, traced = work(mask, sizes), jax.jit(work)(mask, sizes)
    for one, other in zip(known, traced, strict=True):
        assert isinstance(one.tiles, np.ndarray)
        assert one.reach == other.reach
        for name in ("full", "counts", "order"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for at in np.ndindex(one.counts.shape):
            count = one.counts[at]
            np.testing.assert_array_equal(one.tiles[at][:count], other.tiles[at][:count])


def test_a_block_mask_goes_through_jit_and_joins():
    blocks = BlockMask.from_dense(runs((65, 127)), (16, 32))
    out = jax.jit(lambda m: m & Causal())(blocks)
    np.testing.assert_array_equal(
        BlockMask.from_mask(out, query_size=65, key_size=127, tile=(16, 32)).to_dense()[0, 0],
        runs((65, 127)) & np.tri(65, 127, dtype=bool),
    )


def test_a_mask_that_a_traced_function_closes_over_is_looked_into():
    array = jnp.asarray(runs((32, 32)))
    mask = Documents(jnp.arange(32) % 2 * 2, jnp.full(32, 1)) | array

    def dense(x):
        blocks = BlockMask.from_mask(mask, query_size=32, key_size=32, tile=(16, 16))
        assert isinstance(blocks.kinds, np.ndarray)
        return x + blocks.to_dense()

    np.testing.assert_array_equal(jax.jit(dense)(0)[0, 0], np.asarray(array))


def test_long_sequences_need_megabytes():
    mask = Causal() & SlidingWindow(1024)
    tracemalloc.start()
    blocks = BlockMask.from_mask(mask, query_size=65536, key_size=65536)
    kinds = refined_kinds(mask | Global(200), tile_grid((65536, 65536), (128, 128)))
    listed = lists_by_query(blocks.kinds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32e6
    # Of query tile i: keys from 128 i - 1024 to 128 i + 127.
    assert listed.counts.max() == 9
    assert listed.full.max() == 7
    assert int((blocks.kinds > 0).sum()) == sum(min(i, 8) + 1 for i in range(512))
    # The first tile of queries is global, and of the second, where it is not causal, a part.
    assert (kinds[0, 0, 0] == TileKind.FULL).all()
    assert (kinds[0, 0, 1, 2:] == TileKind.PARTIAL).all()


def test_a_function_is_asked_in_bounded_memory():
    mask = MaskFunction(lambda b, h, q, k: (k <= q) & (q - k < 300))
    tracemalloc.start()
    grid = tile_grid((8192, 8192), (128, 128))
    kinds = refined_kinds(mask, grid)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6
    known = refined_kinds(Causal() & SlidingWindow(299), grid)
    np.testing.assert_array_equal(kinds, known)


def test_a_block_mask_prints_its_tiles_and_their_kinds():
    blocks = BlockMask.from_mask(Causal(), query_size=256, key_size=256, tile=(64, 64))
    text = repr(blocks)
    for part in (
        "256 x 256",
        "tiles of 64 x 64",
        "6 empty, 4 partial, 6 full",
        "62.5%",
        "Causal()",
    ):
        assert part in text
    seen = []
    jax.jit(
        lambda s: seen.append(repr(BlockMask.from_topk(s, 2, tile=(64, 64), length=(128, 256))))
    )(np.zeros((2, 4), np.float32))
    assert "at most 2 in a row" in seen[0]


def test_the_plot_shows_each_kind():
    blocks = BlockMask.from_mask(
        Causal() & SlidingWindow(100), query_size=250, key_size=256, tile=(64, 64)
    )
    axes = blocks.plot()
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), blocks.kinds[0, 0])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    counts = [int((blocks.kinds == kind).sum()) for kind in (0, 1, 2)]
    assert labels == [
        f"{name}: {n}" for name, n in zip(("empty", "partial", "full"), counts, strict=True)
    ]
    assert axes.get_ylim() == (250, 0)


@pytest.mark.parametrize("tile", [(64, 64), (32, 128)], ids=str)
def test_what_a_mask_of_tiles_means_does_not_depend_on_the_lengths_of_a_call(tile):
    random = np.random.default_rng(0)
    q, k = (jnp.asarray(random.normal(size=(2, 256, 2, 8)), np.float32) for _ in range(2))
    to_the_end = Causal(-100, align="end")
    blocks = BlockMask.from_mask(to_the_end, query_size=256, key_size=256, tile=tile)
    chosen = BlockMask.from_topk(
        np.ones((4, 4), np.float32), 4, tile=(64, 64), length=(256, 256), within=to_the_end
    )
    lengths = {
        "query_seq_lengths": jnp.array([256, 70], np.int32),
        "key_value_seq_lengths": jnp.array([128, 250], np.int32),
    }
    assert blocks.elements is not None
    for mask in (blocks, chosen):
        want = dot_product_attention(q, k, k, mask=jnp.asarray(mask.to_dense()), **lengths)
        for same in (mask, mask & Documents(np.zeros(256, int))):
            out = dot_product_attention(q, k, k, mask=same, **lengths)
            assert_close(out, want)


REFUSED = {
    "kinds": (
        lambda: BlockMask(np.zeros((2, 2), int), (8, 8), (16, 24)),
        r"kinds has shape \[2, 2\], not 2 x 3 tiles",
        "1, 2, 3|2, 3",
    ),
    "tile": (
        lambda: BlockMask.from_mask(Causal(), query_size=8, key_size=8, tile=(0, 8)),
        r"tile=\(0, 8\) is not a pair of positive integers",
        "128, 128",
    ),
    "scores": (
        lambda: BlockMask.from_topk(np.zeros((2, 2)), 1, tile=(8, 8), length=(16, 24)),
        r"scores has shape \[2, 2\], not 2 x 3 tiles",
        "B, N, 2, 3",
    ),
    "k": (
        lambda: BlockMask.from_topk(np.zeros((2, 2)), 0, tile=(8, 8), length=(16, 16)),
        "k=0 leaves no key tile",
        "k=1",
    ),
    "room": (
        lambda: BlockMask.from_topk(
            np.zeros((2, 2)), 1, tile=(8, 8), length=(16, 16), always=SlidingWindow(1)
        ),
        "k=1, but `always` keeps 2",
        "k=2 or more",
    ),
    "numbers of no kind": (
        lambda: BlockMask(np.full((2, 3), 3), (8, 8), (16, 24)),
        "with values other than 0, 1 and 2",
        "0 for an empty",
    ),
    "length": (
        lambda: BlockMask.from_mask(Causal(), query_size=8, key_size=8, tile=(4, 4)).check_axes(
            {"T": 9, "S": 8}
        ),
        "a BlockMask for T=8 in a call with T=9",
        "T=9",
    ),
    "array": (
        lambda: BlockMask.from_mask(
            Documents(np.zeros(7, int)), query_size=8, key_size=8, tile=(4, 4)
        ),
        "axis T is 7, not 8",
        r"\[B, T\]",
    ),
}


@pytest.mark.parametrize(("make", "what", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_the_way_out(make, what, fix):
    with pytest.raises(ConfigError, match=f"(?s){what}.*Fix:.*({fix})"):
        make()
