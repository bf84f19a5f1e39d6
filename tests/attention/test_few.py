"""Few queries on a Hopper: how they are packed, and the kernel, in the interpreter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.backends.mosaic_gpu import _few, _prepared
from shapeexec.attention.backends.mosaic_gpu._packing import packing_of
from shapeexec.attention.backends.mosaic_gpu._rules import rule_of
from shapeexec.attention.backends.mosaic_gpu._shares import LIST_UNITS, TILE_UNITS, share
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dense,
    Documents,
    Full,
    MaskFunction,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
)
from tests.attention.hopper import RNG, Case, random_bias
from tests.attention.test_choose import CALL
from tests.tolerance import FEW, epsilon, tolerance

pytestmark = pytest.mark.usefixtures("no_races")


def test_lengths_are_read_unless_all_are_known_to_be_whole():

    assert _prepared._if_shorter(np.array([7, 7]), 7) is None
    for given in (np.array([7, 5]), jnp.array([7, 7])):
        np.testing.assert_array_equal(_prepared._if_shorter(given, 7), given)


TABLE = RelativeBias(random_bias(8, 9), left=4)


@pytest.mark.parametrize(
    ("queries", "heads", "mask", "bias", "list_heads", "expected"),
    [
        (1, (32, 8), Full(), None, 1, 4),
        (16, (64, 8), Full(), None, 1, 8),
        (16, (32, 1), Full(), None, 1, 8),
        (16, (24, 2), Full(), None, 1, 6),
        (1, (8, 8), Full(), None, 1, 1),
        (1, (8, 2), Full(), None, 8, 1),
        (1, (8, 2), Full(), TABLE, 1, 1),
        (1, (8, 2), Full(), RelativeBias(random_bias(1, 9), left=4), 1, 4),
        (1, (8, 2), BlockMask(np.ones((8, 1, 2), np.uint8), (128, 128), (1, 256)), None, 1, 1),
        (1, (8, 2), Full(), ALiBi.for_heads(8), 1, 4),
    ],
)
def test_heads_that_share_keys_are_rows_of_one_tile_unless_they_are_asked_apart(
    queries, heads, mask, bias, list_heads, expected
):
    signature = dataclasses.replace(
        CALL, query_size=queries, query_heads=heads[0], key_heads=heads[1]
    )
    rule = rule_of(mask, bias)
    packing = packing_of(signature, rule, list_heads=list_heads, most_rows=128)
    assert packing.heads == expected
    assert packing.rows == expected * queries == expected * packing.pitch


@pytest.mark.parametrize(
    ("queries", "heads", "mask", "pitch"),
    [
        (1, (32, 8), Full(), 1),
        (2, (32, 8), Full(), 8),
        (4, (32, 8), Causal(align="end"), 8),
        (8, (32, 8), Full(), 8),
        (9, (32, 8), Full(), 9),  # 4 heads of 16 rows fit, but 9 rows cannot be copied
        (16, (32, 8), Dense(np.ones((1, 1, 16, 256), bool)), 16),
        (4, (32, 8), Dense(np.ones((1, 1, 4, 256), bool)), 4),  # an array for rows without gaps
        (4, (64, 4), Full(), 4),  # gaps would take a second warpgroup
        (8, (64, 4), Full(), 8),
    ],
)
def test_queries_are_read_head_by_head_where_that_takes_no_more_warpgroups(
    queries, heads, mask, pitch
):
    signature = dataclasses.replace(
        CALL, query_size=queries, query_heads=heads[0], key_heads=heads[1]
    )
    packing = packing_of(signature, rule_of(mask, None), list_heads=1, most_rows=128)
    assert packing.pitch == pitch
    assert packing.by_head == (pitch % 8 == 0)


def test_few_queries_are_one_tile_of_the_lists_so_tiles_before_the_end_are_full():
    from shapeexec.attention.backends import mosaic_gpu  # noqa: PLC0415 - only here

    few = dataclasses.replace(CALL, query_size=4)
    assert mosaic_gpu.backend.tile(few, Full()) == (4, 128)
    assert mosaic_gpu.backend.tile(dataclasses.replace(few, is_backward=True), Full()) == (128, 128)
    assert _few.are_few(dataclasses.replace(few, query_size=16))
    assert not _few.are_few(dataclasses.replace(few, query_size=17))
    assert not _few.are_few(dataclasses.replace(few, value_size=136))


def test_work_that_32_bits_cannot_count_is_refused(monkeypatch):
    from shapeexec.attention.backends import mosaic_gpu  # noqa: PLC0415 - only here

    monkeypatch.setattr(mosaic_gpu._support, "of_device", lambda platform: None)

    def reason(**changes):
        signature = dataclasses.replace(CALL, **{"query_size": 1, "key_size": 2**20, **changes})
        return mosaic_gpu.backend.refuses(signature, Full(), platform="cuda")

    assert reason(batch=2**10) is None
    assert reason(batch=2**11) == (
        "it divides work with numbers of 32 bits, and 32768 lists of 8192 tiles are more"
    )
    assert reason(batch=2**11, query_size=17) is None
    most = 2**30 // (8192 * TILE_UNITS + LIST_UNITS)
    shares, _ = share(np.full(most, 8192, np.int32), longest=8192, programs=132)
    assert 0 < int(shares.total()) <= 131 * int(shares.size()) + int(shares.size()) < 2**31


def case(name, mask, **changes):
    given = {"queries": 3, "keys": 300, "heads": (4, 2)}
    return Case(name, mask, **(given | changes))


def extreme(*shape):
    bias = random_bias(*shape)
    bias[..., ::3] = -np.inf
    bias[:, 0, 1] = -np.inf  # nothing to attend to
    bias[:, 0, 2, 1] = 1e30
    bias[:, 1, 0] = -1e30  # all alike
    return bias


def of_heads_that_differ():
    """An array of pairs that leaves some heads of some examples without whole tiles."""
    allowed = np.ones((2, 4, 3, 300), bool)
    empty = {(0, 1): (1, 2), (0, 2): (0,), (0, 3): (0, 1, 2)}
    empty |= {(1, 0): (0, 1, 2), (1, 2): (2,), (1, 3): (0, 2)}
    for (example, head), tiles in empty.items():
        for tile in tiles:
            allowed[example, head, :, tile * 128 : (tile + 1) * 128] = False
    return allowed


IDS = np.sort(RNG.integers(0, 3, (2, 300)), axis=1).astype(np.int32)
CASES = (
    case("one query", Full(), queries=1, batch=2, sizes=([1, 1], [300, 5])),
    case("NaN behind", Full(), batch=3, sizes=([3, 0, 2], [200, 300, 0])),
    case("a key behind each part", Full(), queries=1, batch=3, sizes=([1] * 3, [65, 193, 257])),
    case("causal", Causal(align="end")),
    case("an array of pairs", Dense(RNG.random((1, 1, 3, 300)) < 0.5)),
    case("an array of each head", Dense(RNG.random((2, 4, 3, 300)) < 0.5), batch=2),
    case("one query, an array of each head", Dense(RNG.random((1, 4, 1, 300)) < 0.5), queries=1),
    case("a mask of keys", Dense(RNG.random((2, 1, 1, 300)) < 0.5), batch=2),
    case("documents", Documents(IDS[:, ::100].copy(), IDS), batch=2, sizes=([3, 2], [300, 200])),
    case("rows without keys", SlidingWindow(0, 0) & ~Dense(np.eye(3, 300, dtype=bool)[None, None])),
    case("by head", MaskFunction(lambda b, h, q, k: (q + k + h + 2 * b) % 3 > 0), batch=2),
    case("ALiBi", Causal(align="end"), bias=ALiBi.for_heads(4)),
    case("by distance", Full(), bias=RelativeBias(random_bias(4, 150), left=100)),
    case("a bias of pairs", Full(), bias=random_bias(1, 4, 3, 300)),
    case("a bias of queries", Full(), bias=random_bias(1, 1, 3, 1)),
    case("a bias of heads", Full(), bias=random_bias(1, 4, 1, 1)),
    case("extreme biases", Full(), bias=extreme(1, 4, 3, 300)),
    case("two warpgroups", Full(), queries=16, heads=(8, 1), head_sizes=(128, 128)),
    case("eight queries of six heads", Causal(align="end"), queries=8, heads=(6, 2), batch=2),
    case("an array, without gaps", Dense(RNG.random((1, 1, 8, 300)) < 0.5), queries=8),
    case("packed with an array", Dense(RNG.random((1, 1, 5, 300)) < 0.5), queries=5),
    case("no multiple of eight", Causal(align="end"), queries=9, heads=(2, 2)),
    case("fp16", Full(), head_sizes=(128, 64), dtype="float16"),
    case("lists of heads that differ", Dense(of_heads_that_differ()), batch=2),
    case("an odd number of units", Full(), queries=1, heads=(2, 1)),
    case(
        "a share begins in the last tile, of half its keys",
        Full(),
        queries=16,
        heads=(8, 1),
        batch=2,
        sizes=([16, 16], [300, 200]),
    ),
    case("narrow heads, other values", Full(), head_sizes=(40, 72), heads=(5, 1)),
    # Kernels that serve every number of keys in whole tiles, from three on.
    case("any length, one query", Full(), queries=1, keys=384, heads=(8, 2), batch=2),
    case(
        "any length, NaN behind",
        Causal(align="end"),
        keys=512,
        batch=5,
        sizes=([3, 0, 2, 3, 3], [400, 512, 0, 3, 129]),
    ),
    case("any length, a window", SlidingWindow(0, 200), keys=512, batch=3),
    case(
        "any length, documents",
        Documents(IDS[:, ::100].copy(), np.repeat(IDS[:, ::3], 5, 1)[:, :384].copy()),
        keys=384,
        batch=2,
        sizes=([3, 2], [384, 200]),
    ),
    case("any length, a mask of keys", Dense(RNG.random((2, 1, 1, 512)) < 0.5), keys=512, batch=2),
    case(
        "any length, a mask of keys of each head",
        Dense(RNG.random((2, 4, 1, 384)) < 0.5),
        keys=384,
        heads=(4, 4),
        batch=2,
    ),
    case("any length, a mask of queries", Dense(np.eye(3, 1, -1, bool)[None, None]), keys=384),
    case(
        "any length, numbers of examples and heads",
        PrefixLM(np.array([40, 300], np.int32)),
        keys=384,
        batch=2,
        bias=ALiBi(random_bias(2, 4)),
    ),
    case("any length, two warpgroups", Full(), queries=16, keys=384, heads=(8, 1)),
    case("any length, narrow heads", Full(), keys=384, head_sizes=(40, 72), heads=(5, 1)),
)
QUICK = (
    "NaN behind",
    "a key behind each part",
    "half of a tile behind the last page",
    "lists of heads that differ",
    "an odd number of units",
    "two warpgroups",
    "a share begins in the last tile, of half its keys",
    "any length, NaN behind",
    "any length, documents",
    "any length, a mask of keys of each head",
    "any length, NaN behind, in pages",
)
PAGED = (
    case(
        "half of a tile behind the last page",
        SlidingWindow(0, 270),
        batch=3,
        keys=320,
        sizes=([3, 0, 2], [290, 320, 0]),
    ),
    case("NaN behind, whole tiles", Full(), batch=2, keys=256, sizes=([3, 3], [200, 129])),
    case("one query", Full(), batch=2, keys=192, queries=1),
    case(
        "a key behind each part",
        Full(),
        batch=4,
        keys=192,
        queries=1,
        sizes=([1] * 4, [33, 97, 161, 129]),
    ),
    case("documents", Documents(IDS[:, ::100].copy(), IDS[:, :256].copy()), batch=2, keys=256),
    case("a bias of pairs", Full(), bias=random_bias(1, 4, 3, 320), keys=320, sizes=([3], [170])),
    case("two warpgroups", Full(), queries=16, heads=(8, 1), head_sizes=(128, 128), keys=256),
    case("narrow heads", Full(), head_sizes=(40, 64), heads=(5, 1), keys=320),
    case(
        "any length, NaN behind, in pages",
        Causal(align="end"),
        batch=3,
        keys=384,
        sizes=([3, 0, 2], [290, 384, 60]),
    ),
)


def marked(cases, *more):
    return [
        pytest.param(one, *more, id=one.name, marks=() if one.name in QUICK else pytest.mark.slow)
        for one in cases
    ]


INTERPRETED = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="jax < 0.11 has no interpreter for it"
)


@INTERPRETED
@pytest.mark.parametrize("case", marked(CASES))
def test_the_kernel_gives_what_the_formulas_give(case):
    check(case, case.with_nan_behind()[:3], signature=case.signature, work=case.work())


@INTERPRETED
@pytest.mark.parametrize(
    ("case", "rows"),
    [*marked(PAGED, 64), *marked([one for one in PAGED if one.keys % 128 == 0], 128)],
)
def test_the_kernel_reads_pages(case, rows):
    q, k, v, _ = case.with_nan_behind()
    count = case.keys // rows
    places = np.random.default_rng(0).permutation(case.batch * count + 1)
    unused, pages = places[0], places[1:].reshape(case.batch, count)
    is_owned = np.arange(count) * rows < case.valid[1].sum(1, keepdims=True)

    def in_pages(x):
        whole = jnp.full((len(places), rows, *x.shape[2:]), np.nan, x.dtype)
        return whole.at[pages].set(x.reshape(case.batch, count, rows, *x.shape[2:]))

    pages = jnp.asarray(np.where(is_owned, pages, unused), np.int32)
    check(
        case,
        (q, in_pages(k), in_pages(v)),
        signature=dataclasses.replace(case.signature, page_size=rows),
        work=dataclasses.replace(case.work(), pages=pages),
    )


@INTERPRETED
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("bias", [None, random_bias(1, 1, 1, 300)])
def test_a_query_that_is_nan_gives_nan_alone(queries, bias):
    given = case("", Full(), queries=queries, heads=(2, 2), bias=bias)
    q, k, v, _ = given.with_nan_behind()
    q = q.at[0, 0, 1, 3].set(jnp.nan)
    work = {"signature": given.signature, "work": given.work(), "bias": given.poisoned_bias()}
    out, logsumexp = interpreted().forward(**work, q=q, k=k, v=v)
    is_nan = np.zeros((1, queries, 2), bool)
    is_nan[0, 0, 1] = True
    np.testing.assert_array_equal(np.isnan(out), np.broadcast_to(is_nan[..., None], out.shape))
    np.testing.assert_array_equal(np.isnan(logsumexp), is_nan.transpose(0, 2, 1))


def interpreted():
    """The back end, in the interpreter."""
    from jax.experimental.pallas import mosaic_gpu as plgpu  # noqa: PLC0415 - not in jax 0.10

    from shapeexec.attention.backends import mosaic_gpu  # noqa: PLC0415 - beside it

    parameters = plgpu.InterpretGPUParams(detect_races=True)  # pyright: ignore[reportAttributeAccessIssue] - not in jax 0.10
    return mosaic_gpu.MosaicGpu(parameters)


def check(case, given, *, signature, work):
    """Assert that the kernel gives what the formulas give."""
    q, k, v = given
    bias = case.poisoned_bias()
    out, logsumexp = interpreted().forward(signature, work, q=q, k=k, v=v, bias=bias)
    want = case.reference()
    of_formulas = want.logsumexp.transpose(0, 2, 1)
    assert logsumexp.dtype == np.float32
    limit = tolerance(np.float32, loose=FEW)
    np.testing.assert_allclose(logsumexp, of_formulas, limit, limit)
    assert out.dtype == case.dtype
    assert out.shape == want.out.shape
    limit = epsilon(case.dtype) * max(1, np.abs(want.out).max())
    np.testing.assert_allclose(np.asarray(out, np.float64), want.out, atol=limit)
    assert not np.asarray(out)[want.out == 0].any(), "what attends to nothing is 0"
