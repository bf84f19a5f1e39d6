"""The public function on a GPU, by the back end that it chooses: right, and always the same bits.

Run on such a machine by `JAX_PLATFORMS=cuda python -m pytest tests/attention -m gpu`.
"""

import concurrent.futures
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.masks import Dense, Documents, Mask, PrefixLM
from tests.attention.kernels import (
    Case,
    Random,
    Sizes,
    by_head_and_example,
    causal,
    causal_at_the_end,
    made,
    poisoned,
    window,
)
from tests.attention.lowering import hopper_kernels
from tests.tolerance import BY_NORM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU"),
]
NAMES = ("out", "dq", "dk", "dv")
PAYS = "shapeexec.attention.backends.mosaic_gpu._in_groups.pays"


def documents(random: Random, sizes: Sizes) -> Mask:
    ids = np.sort(random.integers(0, 6, sizes[:2]), axis=1).astype(np.int32)
    return Documents(ids) & sx.Causal()


def array(random: Random, sizes: Sizes) -> Mask:
    return Dense(random.random((1, sizes[3], *sizes[1:3])) < 0.5)


def prefix_or_keys(random: Random, sizes: Sizes) -> Mask:
    absent = Dense(random.random((sizes[0], 1, 1, sizes[2])) < 0.2)
    return (PrefixLM(np.array([7, 300], np.int32)) | sx.Global(3)) & ~absent


def random_tiles(random: Random, sizes: Sizes) -> Mask:
    """Of 128 by 128, the diagonal kept; in partial ones causal."""
    count = sizes[1] // 128
    kinds = np.where(random.random((count, count)) < 0.4, random.integers(1, 3, (count, count)), 0)
    np.fill_diagonal(kinds, 1)
    length = (sizes[1], sizes[1])
    return sx.BlockMask(kinds.astype(np.uint8), (128, 128), length, elements=sx.Causal())


def tiles_of_each_head(random: Random, sizes: Sizes) -> Mask:
    count = (-(-sizes[1] // 128), -(-sizes[2] // 128))
    kinds = random.integers(0, 3, (1, sizes[3], *count)).astype(np.uint8)
    return sx.BlockMask(kinds, (128, 128), sizes[1:3], elements=sx.Causal())


WIDE = (2, 640, 640, 4, 2, 128, 128)
NARROW = (2, 640, 640, 4, 2, 64, 64)
CASES = (
    Case("full", WIDE, "bfloat16"),
    Case("causal", WIDE, "float16", causal),
    Case("window", WIDE, "bfloat16", window(200, 3)),
    Case("documents", WIDE, "bfloat16", documents),
    Case("an array of each head", WIDE, "bfloat16", array),
    Case("tiles of each head", WIDE, "bfloat16", tiles_of_each_head),
    Case("a function of example and head", WIDE, "bfloat16", by_head_and_example),
    Case("joined by or and not", WIDE, "bfloat16", prefix_or_keys),
    Case("causal, NaN behind lengths", WIDE, "bfloat16", causal, ([640, 333], [500, 333])),
    Case("full, NaN behind lengths", WIDE, "bfloat16", lengths=([1, 640], [129, 0])),
    Case("odd lengths", (1, 333, 205, 2, 2, 64, 64), "bfloat16", causal_at_the_end),
    Case("one query", (1, 1, 129, 2, 1, 64, 64), "bfloat16"),
    Case("hardly anything", (1, 7, 3, 2, 1, 128, 128), "bfloat16"),
    Case("heads of 40", (1, 264, 264, 2, 2, 40, 40), "bfloat16", causal),
    Case("heads of 80, values of 64", (1, 264, 264, 2, 2, 80, 64), "bfloat16", causal),
    Case("heads of 192", (1, 264, 264, 2, 2, 192, 192), "bfloat16", causal),
    Case("heads of 256", (1, 264, 264, 2, 1, 256, 256), "bfloat16", causal),
    Case("tiles, heads of 64", (1, 1024, 1024, 2, 2, 64, 64), "bfloat16", random_tiles),
    Case("heads of 64, values of 128", (2, 640, 640, 4, 2, 64, 128), "float16", causal),
    Case("heads of 64, documents", NARROW, "bfloat16", documents),
    Case("heads of 64, an array of each head", NARROW, "bfloat16", array),
    Case("heads of 64, NaN behind lengths", NARROW, "bfloat16", causal, ([640, 333], [500, 333])),
    Case("one tile", (2, 120, 128, 4, 2, 128, 128), "float16", causal, ([64, 120], [120, 30])),
    Case(
        "one tile, NaN behind lengths",
        (6, 128, 128, 4, 2, 64, 64),
        "bfloat16",
        lengths=([128, 33, 64, 65, 0, 100], [128, 64, 100, 33, 64, 0]),
    ),
    Case("two tiles, heads of 64", (2, 200, 256, 4, 4, 64, 64), "float16", causal),
    Case(
        "two tiles, NaN behind lengths",
        (7, 256, 256, 2, 2, 64, 64),
        "bfloat16",
        lengths=([256, 33, 64, 129, 0, 190, 256], [256, 192, 100, 33, 64, 0, 128]),
    ),
    Case(
        "half tiles, NaN behind lengths",
        (3, 384, 384, 4, 2, 64, 64),
        "bfloat16",
        causal,
        ([384, 190, 60], [300, 384, 130]),
    ),
    Case("tiles, many", (1, 2048, 2048, 2, 2, 128, 128), "bfloat16", random_tiles),
)


BY_SCORES = (
    Case("causal", (3, 1024, 1024, 2, 2, 128, 128), "bfloat16", causal),
    Case(
        "more keys", (3, 640, 896, 4, 2, 128, 64), "float16", lengths=([640, 1, 400], [896, 7, 0])
    ),
    Case("at the end", (2, 896, 1024, 2, 1, 128, 128), "bfloat16", causal_at_the_end),
    Case("fewer keys", (2, 1152, 512, 2, 2, 128, 128), "bfloat16", causal, ([1152, 90], [500, 70])),
    Case("documents", (2, 1152, 1152, 4, 2, 96, 128), "bfloat16", documents),
    Case("a window", (2, 1024, 1024, 2, 2, 128, 128), "bfloat16", window(300, 3)),
)
"""Calls whose gradients of scores are stored."""


@functools.partial(jax.jit, static_argnames="at_once")
def attention(operands, mask, lengths, *, at_once=False):
    """Output and gradients; jitted, so that masks' arrays are traced, as in a model."""
    q, k, v, d_out = operands
    options = {"implementation": "mosaic_gpu", "deterministic": False} if at_once else {}

    def attend(q, k, v):
        given = dict(zip(("query_seq_lengths", "key_value_seq_lengths"), lengths, strict=False))
        return sx.dot_product_attention(q, k, v, mask=mask, **given, **options)

    out, transpose = jax.vjp(attend, q, k, v)
    return out, *transpose(d_out)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    actual = assert_as_formulas(case)
    for mine, same in zip(actual, assert_as_formulas(case), strict=True):
        np.testing.assert_array_equal(mine, same)


@pytest.mark.parametrize(
    "case", [case for case in CASES if max(case.sizes[5:]) <= 128], ids=lambda case: case.name
)
def test_all_gradients_of_one_kernel_are_those_of_formulas(case, monkeypatch):
    monkeypatch.setattr("shapeexec.attention.backends.mosaic_gpu._backward._LONG", 0)
    monkeypatch.setattr(PAYS, lambda prepared: False)
    assert_as_formulas(case, at_once=True)


@pytest.mark.parametrize("case", BY_SCORES, ids=lambda case: case.name)
def test_heads_may_be_processed_in_groups(case, monkeypatch):
    monkeypatch.setattr(PAYS, lambda prepared: True)
    at_once = assert_as_formulas(case)
    monkeypatch.setattr("shapeexec.attention.backends.mosaic_gpu._in_groups._BYTES", 4 << 20)
    jax.clear_caches()
    by_groups = assert_as_formulas(case)
    jax.clear_caches()
    for one, other in zip(at_once, by_groups, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [64, 128])
def test_an_expected_density_selects_the_one_kernel_and_changes_last_bits_only(size, monkeypatch):
    monkeypatch.setattr(PAYS, lambda prepared: False)
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, d_out = (jax.random.normal(key, (1, 2048, 4, size), jnp.bfloat16) for key in keys)
    ids = jnp.arange(2048, dtype=jnp.int32)[None] // 700

    def gradients(q, k, v, d_out, ids, expected):
        def attend(q, k, v):
            return sx.dot_product_attention(
                *(q, k, v),
                mask=sx.Documents(ids) & sx.Causal(),
                implementation="mosaic_gpu",
                deterministic=False,
                expected_density=expected,
            )

        return jax.vjp(attend, q, k, v)[1](d_out)

    made = jax.jit(gradients, static_argnums=5)
    args = (q, k, v, d_out, ids)
    programs = [made.lower(*args, expected).as_text() for expected in (None, 0.5)]
    counts = [hopper_kernels(program) for program in programs]
    assert counts == [3, 2], "forward, and two kernels or one for the gradient"
    by_one, by_two = (
        [np.asarray(x, np.float64) for x in made(*args, expected)] for expected in (0.5, None)
    )
    for mine, same in zip(by_one, by_two, strict=True):
        assert np.linalg.norm(mine - same) <= BY_NORM["bfloat16"] * np.linalg.norm(same)


def assert_as_formulas(case, **options):
    """Compute a case, compare it with the formulas, and return what was computed."""
    given = made(case)
    queries, keys = given.sizes
    q, d_out = (poisoned(x, queries, 1) for x in (given.q, given.d_out))
    k, v = (poisoned(x, keys, 1) for x in (given.k, given.v))
    lengths = () if case.lengths is None else given.sizes
    actual = attention((q, k, v, d_out), given.mask, lengths, **options)
    gradients = given.reference.gradients(given.d_out.astype(np.float64))[:3]
    wanted = (given.reference.out, *gradients)
    # Queries without a key, and keys without a query, in any head; padding among them.
    lonely = [~given.reference.allowed.any(axes) for axes in ((1, 3), (1, 2))]
    for i, (name, mine, want) in enumerate(zip(NAMES, actual, wanted, strict=True)):
        error = np.linalg.norm(np.asarray(mine, np.float64) - want)
        assert error <= BY_NORM[case.dtype] * np.linalg.norm(want), name
        assert not np.asarray(mine, np.float32)[lonely[i // 2]].any(), f"{name}: nothing gives 0"
    return actual


def attend_to_itself(passes, implementation, x, sizes):
    """Attention of x to x, with valid lengths or None; and its gradient, if `passes` are both."""

    def attend(x):
        own = {"query_seq_lengths": sizes, "key_value_seq_lengths": sizes}
        return sx.dot_product_attention(x, x, x, implementation=implementation, **own)

    if passes == "forward":
        return attend(x)
    out, pull = jax.vjp(attend, x)
    return out, *pull(out)


def test_programs_that_are_compiled_at_once_are_right_each_time_they_run():
    """Kernels count items in memory that XLA fills, and XLA shares constants among programs."""
    lengths, ragged, passes = (256, 384, 512, 1024), (False, True), ("forward", "both")
    calls = list(itertools.product(lengths, ragged, passes))

    def operands(length, is_ragged):
        x = jax.random.normal(jax.random.key(length), (8, length, 16, 128), jnp.bfloat16)
        sizes = np.random.default_rng(0).integers(1, length + 1, 8).astype(np.int32)
        return x, jnp.asarray(sizes) if is_ragged else None

    def as_f32(results):
        return [np.asarray(x, np.float32) for x in jax.tree.leaves(results)]

    def program(call, implementation="mosaic_gpu"):
        given = jax.eval_shape(lambda: operands(*call[:2]))
        function = functools.partial(attend_to_itself, call[2], implementation)
        return jax.jit(function).lower(*given).compile()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        programs = list(pool.map(program, calls))
    for call, mine in zip(calls, programs, strict=True):
        given = operands(*call[:2])
        wanted = as_f32(program(call, "xla")(*given))
        for _ in range(5):
            for got, want in zip(as_f32(mine(*given)), wanted, strict=True):
                limit = 2 * BY_NORM["bfloat16"] * np.linalg.norm(want)  # both are rounded
                assert np.linalg.norm(got - want) <= limit, call


@pytest.mark.parametrize("pattern", ["causal", "tiles", "documents"])
def test_a_hundred_launches_give_the_same_bits(pattern):
    keys = jax.random.split(jax.random.key(0), 4)
    operands = [jax.random.normal(key, (2, 4096, 8, 128), jnp.bfloat16) for key in keys]
    random = np.random.default_rng(0)
    sizes = (2, 4096, 4096, 8, 8, 128, 128)
    masks = {"causal": causal, "tiles": random_tiles, "documents": documents}
    mask = masks[pattern](random, sizes)
    first = attention(operands, mask, ())
    # Compared on the device: what differs is counted, and read once at the end.
    differs = jax.jit(lambda a, b: sum((x != y).sum() for x, y in zip(a, b, strict=True)))
    counts = [differs(first, attention(operands, mask, ())) for _ in range(100)]
    assert not np.isnan(np.asarray(first[0], np.float32)).any()
    assert sum(map(int, counts)) == 0
