"""The lists of tiles: complete, disjoint, transposes of each other, and the same inside jit."""

import functools
import itertools

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import ConfigError
from shapeexec.attention import _lists_kernel
from shapeexec.attention._call_lists import call_lists
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._lists import lists_by_key, lists_by_query
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._reach import Reach
from shapeexec.attention.masks import Lengths, TileKind
from tests.attention.lists import FIELDS
from tests.attention.lowering import lowered
from tests.attention.tiles import tile_kinds

HAS_MOSAIC = jax.__version_info__ >= (0, 11)
SHAPES = [(1, 1, 1, 1), (3, 2, 1, 1), (1, 1, 5, 3), (2, 3, 4, 7), (2, 1, 1, 9), (1, 2, 9, 1)]


def random_kinds(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 3, shape).astype(np.uint8)


KINDS = {f"{shape}": random_kinds(shape) for shape in SHAPES}
KINDS["all empty"] = np.zeros((1, 2, 3, 4), np.uint8)
KINDS["all full"] = np.full((1, 2, 3, 4), 2, np.uint8)
KINDS["skewed"] = np.triu(np.full((6, 6), 2, np.uint8))[None, None]


every_kinds = pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)


def fields(lists):
    return {name: np.asarray(getattr(lists, name)) for name in FIELDS}


def both(kinds):
    return arrays(lists_by_query(kinds)), arrays(lists_by_key(kinds))


def arrays(lists):
    return {name: getattr(lists, name) for name in FIELDS}


@every_kinds
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_the_lists_hold_each_tile_with_work_once_and_the_longest_row_first(kinds, traced):
    made = (jax.jit(both) if traced else both)(kinds)
    for lists, rows in zip(made, (kinds, kinds.swapaxes(-1, -2)), strict=True):
        tiles, full, counts, order = (np.asarray(lists[f]) for f in FIELDS)
        for at in np.ndindex(rows.shape[:-1]):
            listed = tiles[at][: full[at]].tolist(), tiles[at][full[at] : counts[at]].tolist()
            assert listed[0] == np.flatnonzero(rows[at] == TileKind.FULL).tolist()
            assert listed[1] == np.flatnonzero(rows[at] == TileKind.PARTIAL).tolist()
        assert ((tiles >= 0) & (tiles < rows.shape[-1])).all()
        for at in np.ndindex(rows.shape[:2]):
            assert sorted(order[at]) == list(range(rows.shape[2]))
            assert (np.diff(counts[at][order[at]]) <= 0).all()


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
        return arrays(lists_by_query(k, width=width))

    whole, cut = fields(lists_by_query(kinds, width=6)), (jax.jit(make) if traced else make)(kinds)
    assert cut["tiles"].shape[-1] == width
    for at in np.ndindex(kinds.shape[:-1]):
        count = whole["counts"][at]
        np.testing.assert_array_equal(cut["tiles"][at][:count], whole["tiles"][at][:count])


def test_a_width_that_does_not_suffice_is_refused():
    with pytest.raises(
        ConfigError, match=r"(?s)width=2, but a list holds 6 tiles.*Fix:.*width=6 or more"
    ):
        lists_by_query(KINDS["skewed"], width=2)


def test_inside_jit_no_sort_runs_over_the_tiles():
    kinds = np.zeros((2, 3, 32, 64), np.uint8)
    jaxpr = jax.make_jaxpr(lambda k: arrays(lists_by_query(k)))(kinds)
    text = str(jaxpr)
    assert text.count("sort[") == 1
    assert "i32[2,3,32,64] i32[2,3,32,64] = sort" not in text


@pytest.mark.parametrize("tiles", [1024, 1025, 3000])
def test_long_rows_need_no_constant_that_grows_by_the_square(tiles):
    kinds = random_kinds((1, 1, 2, tiles))
    made = jax.jit(lambda k: arrays(lists_by_query(k)))
    known = fields(lists_by_query(kinds, width=tiles))
    for name, array in made(kinds).items():
        np.testing.assert_array_equal(array, known[name])
    # The constants of two products have 4 MB each at 1,024 tiles; at 8,192 they had 268 MB.
    constants = len(made.lower(kinds).as_text()) // 2
    assert constants < 2**23 + 2**17


@every_kinds
@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("cut", [1, 2])
def test_the_kernel_makes_the_same_lists(kinds, side, cut):
    room = -(-kinds.shape[-2 if side == "key" else -1] // cut)
    make = lists_by_key if side == "key" else lists_by_query
    whole = fields(jax.jit(make)(kinds))
    made = fields(_lists_kernel.lists(kinds, room=room, side=side, interpret=True))
    for name in ("full", "counts", "order"):
        np.testing.assert_array_equal(made[name], whole[name])
    np.testing.assert_array_equal(made["tiles"], whole["tiles"][..., :room])


@pytest.mark.parametrize(
    ("capability", "shape", "is_kernel"),
    [
        ((9, 0), (2, 1, 32, 128), True),
        ((9, 0), (1, 1, 129, 128), False),
        ((8, 0), (2, 1, 32, 128), True),
        ((8, 0), (1, 1, 129, 128), False),
        ((7, 5), (1, 1, 8, 8), False),
        (None, (1, 1, 8, 8), False),
    ],
)
def test_a_kernel_makes_them_where_there_is_a_gpu_and_room(
    monkeypatch, capability, shape, is_kernel
):
    monkeypatch.setattr(_device, "compute_capability", lambda: capability)
    kinds = random_kinds(shape)
    for make in (lists_by_query, lists_by_key):
        text = lowered(lambda k, make=make: arrays(make(k)), kinds, platform="cuda")
        assert ("attention_lists" in text) == is_kernel
        # Elsewhere the same program runs without it.
        for name, value in fields(jax.jit(make)(kinds)).items():
            known = getattr(make(kinds), name)
            np.testing.assert_array_equal(value[..., : known.shape[-1]], known)


@pytest.mark.parametrize("capability", [(8, 0), _device.HOPPER])
def test_without_pallas_triton_operations_make_them_on_older_gpus(monkeypatch, capability):
    monkeypatch.setattr(_device, "compute_capability", lambda: capability)
    monkeypatch.setattr("shapeexec._compat.pallas_has", lambda module: module != "triton")
    text = lowered(lambda k: arrays(lists_by_query(k)), random_kinds((1, 1, 4, 4)), platform="cuda")
    assert ("attention_lists" in text) == (HAS_MOSAIC and capability == _device.HOPPER)


def test_inside_of_shard_map_a_kernel_makes_them_too(monkeypatch):
    # From jax 0.11 on Triton's is not lowered without a GPU here: that needs a mesh of its own.
    capability, implementation = (
        (_device.HOPPER, "mosaic_gpu") if HAS_MOSAIC else ((8, 0), "triton")
    )
    monkeypatch.setattr(_device, "compute_capability", lambda: capability)
    mesh, axes = jax.make_mesh((1,), ("devices",)), jax.P("devices")
    arrays = np.zeros((2, 512, 2, 64), np.float16), np.full(2, 300, np.int32)

    def attend(x, lengths):
        return sx.dot_product_attention(
            *(x, x, x),
            is_causal=True,
            key_value_seq_lengths=lengths,
            implementation=implementation,
        )

    mapped = jax.shard_map(attend, mesh=mesh, in_specs=axes, out_specs=axes)
    placed = jax.device_put(arrays, jax.NamedSharding(mesh, axes))
    lowered = jax.jit(mapped).trace(*placed).lower(lowering_platforms=("cuda",))
    assert "attention_lists" in lowered.as_text()


@pytest.mark.parametrize("capability", [(8, 0), _device.HOPPER])
def test_a_hopper_has_a_kernel_of_its_own(monkeypatch, capability):
    monkeypatch.setattr(_device, "compute_capability", lambda: capability)
    text = lowered(lambda k: arrays(lists_by_query(k)), random_kinds((1, 1, 4, 4)), platform="cuda")
    is_own = HAS_MOSAIC and capability == _device.HOPPER
    assert ("@mosaic_gpu" in text, "triton" in text) == (is_own, not is_own)


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 128, 128), (4, 1, 32, 100), (1, 1, 300, 9)])
def test_a_gpu_makes_the_lists_that_numpy_makes(shape):
    kinds = random_kinds(shape)
    for make in (lists_by_query, lists_by_key):
        known, made = fields(make(kinds)), fields(jax.jit(make)(kinds))
        for name in ("full", "counts", "order"):
            np.testing.assert_array_equal(made[name], known[name])
        for at in np.ndindex(known["counts"].shape):
            count = known["counts"][at]
            np.testing.assert_array_equal(made["tiles"][at][:count], known["tiles"][at][:count])


@pytest.mark.parametrize("sizes", [(1, 1), (128, 128), (129, 400), (300, 70), (4, 1000)])
@pytest.mark.parametrize("tile", [(128, 128), (4, 64)])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("given", ["both", "queries", "keys"])
def test_lists_of_lengths_alone_are_those_of_tiles(sizes, tile, shares, given):
    random = np.random.default_rng(0)
    lengths = [
        np.concatenate([[0, 1, size, size // 2], random.integers(0, size + 1, 8)]).astype(np.int32)
        for size in sizes
    ]
    lengths[0] = np.roll(lengths[0], 1)
    chosen = [given in ("both", name) for name in ("queries", "keys")]

    def of_calls(lengths):
        traced = iter(lengths)
        return [next(traced) if is_chosen else None for is_chosen in chosen]

    def lists(mask, *lengths):
        named = dict(zip(("query_lengths", "key_lengths"), of_calls(lengths), strict=True))
        options = {"tile": tile, "batch": 12, "heads": 2, "shares": shares}
        return call_lists(mask, sizes, **options, **named)

    traced = [length for length, is_chosen in zip(lengths, chosen, strict=True) if is_chosen]
    made = jax.jit(lambda *given: lists(sx.Full() & Lengths(), *given))(*traced)
    known = lists(sx.Full(), *traced)
    given = dict(zip(("query_lengths", "key_lengths"), of_calls(traced), strict=True))
    kinds = tile_kinds(sx.Full(), tile_grid(sizes, tile, known=True, batch=12, heads=2, **given))
    expected = lists_by_query(kinds), lists_by_key(kinds)
    text = lowered(lambda *given: arrays(lists(Lengths(), *given)[0]), *traced, platform="cuda")
    assert "scatter" not in text
    for one, other in [*zip(made, expected, strict=True), *zip(known, expected, strict=True)]:
        assert one.reach == Reach()
        assert other.reach is None
        assert shares or len({x.shape[:2] for x in fields(one).values()}) == 1
        mine, wanted = fields(one.alike()), fields(other)
        mine["tiles"] = mine["tiles"][..., : wanted["tiles"].shape[-1]]
        for name in FIELDS:
            np.testing.assert_array_equal(mine[name], wanted[name], name)


REACHES = {
    "full": (sx.Full(), Reach()),
    "causal": (sx.Causal(), Reach(0)),
    "causal, valid keys": (Lengths() & sx.Causal() & sx.Full(), Reach(0)),
    "more": (sx.Causal(200), Reach(200)),
    "less": (sx.Causal(-130), Reach(-130)),
    "at the end": (sx.Causal(align="end"), Reach(0, from_end=True)),
    "less at the end": (sx.Causal(-3, "end"), Reach(-3, from_end=True)),
    "none": (sx.Causal(-(10**12)), Reach(-(2**29))),
}


@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4, 1000), (4, 128)),
        ((1000, 700), (128, 128)),
        ((128, 129), (128, 128)),
        ((9, 300), (4, 64)),
    ],
)
def test_first_tiles_are_those_of_the_lists_that_they_replace(name, tile, sizes):
    mask, reach = REACHES[name]
    random = np.random.default_rng(0)
    ends = [[0, size, size, size - 1, 1, size // 2] for size in sizes]
    given = [np.array([*end, *random.integers(0, end[1], 40)], np.int32) for end in ends]
    given[0] = np.roll(given[0], 2)
    count = len(given[0])
    lengths = dict(zip(("query_lengths", "key_lengths"), given, strict=True))
    lists = functools.partial(call_lists, mask, sizes, tile=tile, batch=count, heads=1)
    by_query, by_key = lists(**lengths)
    assert by_query.reach == reach
    traced, traced_by_key = jax.jit(lambda lengths: lists(**lengths))(lengths)
    for one, other in ((traced, by_query), (traced_by_key, by_key)):
        mine, known = fields(one), fields(other)
        mine["tiles"] = mine["tiles"][..., : known["tiles"].shape[-1]]
        for field in ("full", "counts"):
            np.testing.assert_array_equal(mine[field], known[field], field)
    kinds = tile_kinds(mask, tile_grid(sizes, tile, known=True, batch=count, heads=1, **lengths))
    wanted = fields(lists_by_query(kinds))
    rows, longest = wanted["tiles"].shape[2:]
    along, across = (length[:, None] for length in given)
    row = np.arange(rows, dtype=np.int32)[None]
    full, counts = (np.asarray(x) for x in reach.bounds(row, (along, across), tile=tile))
    is_valid = row * tile[0] < along
    np.testing.assert_array_equal(np.where(is_valid, counts, 0), wanted["counts"][:, 0])
    np.testing.assert_array_equal(np.where(is_valid, full, 0), wanted["full"][:, 0])
    places = np.arange(longest)
    for at in np.argwhere(is_valid):
        own = wanted["counts"][at[0], 0, at[1]]
        np.testing.assert_array_equal(wanted["tiles"][at[0], 0, at[1], :own], places[:own])
    order = np.asarray(reach.order(row, along, of_row=tile[0]))
    order = np.broadcast_to(order, (count, rows))
    np.testing.assert_array_equal(np.sort(order), np.broadcast_to(row, order.shape))
    sorted_counts = np.take_along_axis(np.where(is_valid, counts, 0), order, 1)
    assert (np.diff(sorted_counts) <= 0).all()


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("offset", [None, 0, 1, 64, 128, 200, -128, -130, 127])
@pytest.mark.parametrize("tile", [(128, 128), (64, 128), (48, 128), (128, 64)])
def test_which_reaches_leave_a_mask_to_the_last_tile_alone(tile, offset, from_end):
    reach, inner = Reach(offset, from_end), 0
    for along, across in itertools.product([0, 1, 100, 256, 400], [0, 1, 64, 255, 256, 700]):
        shift = across - along if from_end else 0
        last = across if offset is None else np.arange(along)[:, None] + offset + shift
        seen = np.broadcast_to(np.arange(across) <= last, (along, across))
        for first in range(0, along, tile[0]):
            row = seen[first : first + tile[0]]
            of_tiles = [row[:, begin : begin + tile[1]] for begin in range(0, across, tile[1])]
            listed = [one for one in of_tiles if one.any()]
            inner += sum(not one.all() for one in listed[:-1])
    assert reach.ends_in_one(tile) <= (inner == 0)
    if tile[1] == 128 and tile[0] != 48:
        is_known = offset is None or (offset % 128 == 0 and not from_end)
        assert reach.ends_in_one(tile) == is_known


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.parametrize("offset", [None, 0, 1, 64, -1, -128])
def test_which_reaches_may_leave_a_row_without_tiles(offset, from_end):
    reach, counts = Reach(offset, from_end), []
    for lengths in itertools.product([1, 100, 256], [1, 64, 255, 700]):
        rows = np.arange(-(-lengths[0] // 128))
        counts.append(np.min(reach.bounds(rows, lengths, tile=(128, 128), xp=np)[1]))
    assert reach.may_be_empty == (min(counts) == 0)


@pytest.mark.parametrize(
    "mask",
    [
        sx.Causal() & sx.Causal(1),
        sx.Causal(np.array([1], np.int32)),
        sx.SlidingWindow(1),
        ~sx.Causal(),
        sx.Causal() & sx.Documents(np.zeros((1, 300), np.int32)),
    ],
)
def test_other_masks_have_lists_that_must_be_read(mask):
    by_query, by_key = call_lists(mask, (300, 300), tile=(128, 128), batch=1, heads=1)
    assert by_query.reach is by_key.reach is None


def test_queries_that_see_their_first_keys_are_not_the_first_ones_of_the_keys():
    by_query, by_key = call_lists(sx.Causal(), (300, 300), tile=(128, 128), batch=1, heads=1)
    assert by_query.reach == Reach(0)
    assert by_key.reach is None
