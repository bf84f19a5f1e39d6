"""What else a Hopper GPU runs, lists of tiles too: `JAX_PLATFORMS= pytest -m gpu` on this file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention._lists import _by_operations
from tests.attention import lists
from tests.attention.kernels import (
    Case,
    alibi,
    assert_right,
    causal,
    expected,
    extreme_bias,
    made,
    random_bias,
    relative,
    run,
    work_of,
)

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 does not run these kernels", allow_module_level=True)

from shapeexec.attention import _lists_hopper
from shapeexec.attention.backends import mosaic_gpu
from shapeexec.attention.backends.mosaic_gpu import _support
from tests.tolerance import BY_NORM, epsilon

WHY_NOT = _support.of_device("cuda" if jax.default_backend() == "gpu" else "cpu")
on_hopper = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def case(name, length, size, dtype, bias, *, mask=None, lengths=None, heads=(4, 2), keys=None):
    # The formulas in f64 take the time.
    sizes = (2 if length < 1000 else 1, length, keys or length, *heads, size, size)
    more = {} if mask is None else {"mask": mask}
    return Case(name, sizes, dtype, lengths=lengths, bias=bias, tile=(128, 128), **more)


def rounded(bias, dtype):
    return lambda random, sizes: np.asarray(jnp.asarray(bias(random, sizes), dtype))


PAIRS = random_bias(0, 0, 0, 0)
RAGGED = ([333, 20], [130, 333])
CASES = (
    case("ALiBi", 1024, 128, "bfloat16", alibi, mask=causal),
    case("ALiBi, NaN behind", 333, 64, "float16", alibi, lengths=RAGGED),
    case("by distance", 333, 64, "bfloat16", relative, mask=causal),
    case("by distance, fp16", 1024, 128, "float16", relative),
    case("pairs", 1024, 64, "float16", random_bias(1, 0, 0, 0), mask=causal),
    case("pairs, NaN behind", 333, 128, "bfloat16", PAIRS, lengths=RAGGED),
    case("pairs in bf16", 333, 64, "bfloat16", rounded(PAIRS, jnp.bfloat16), lengths=RAGGED),
    case("pairs in fp16", 333, 128, "float16", rounded(PAIRS, jnp.float16), keys=205),
    case("of keys, NaN behind", 333, 128, "bfloat16", random_bias(0, 1, 1, 0), lengths=RAGGED),
    case("of queries", 333, 64, "float16", random_bias(1, 0, 0, 1), mask=causal),
    case("of heads", 1024, 64, "bfloat16", random_bias(0, 0, 1, 1)),
    case("extreme", 1024, 128, "float16", extreme_bias, mask=causal, heads=(2, 2)),
    case("extreme, fewer keys", 333, 64, "bfloat16", extreme_bias, heads=(2, 1), keys=205),
    case("wide heads", 264, 256, "bfloat16", alibi, mask=causal, heads=(2, 1)),
)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    given = made(case)
    work = work_of(case, given.mask, given.sizes)
    results = run(mosaic_gpu.backend, case, given, work, bias_gradient=False)
    want = expected(case, given, bias_gradient=False)
    assert_right(case, results, want)
    limit = BY_NORM[case.dtype]
    for one, right in zip(results, want, strict=True):
        finite = np.isfinite(right)
        error = np.linalg.norm(one.astype(np.float64)[finite] - right[finite])
        assert error <= limit * np.linalg.norm(right[finite])


@pytest.mark.gpu
@on_hopper
def test_the_function_chooses_these_kernels_and_another_one_for_the_gradient_of_the_bias():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(2, 200, 2, 64)), jnp.bfloat16)
    bias = jnp.asarray(random.normal(size=(1, 2, 200, 200)), np.float32)

    def gradients(implementation):
        def loss(x, bias):
            out = sx.dot_product_attention(x, x, x, bias, implementation=implementation)
            return (out.astype(np.float32) ** 2).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x, bias)

    for one, other in zip(gradients(None), gradients("xla"), strict=True):
        error = np.linalg.norm(np.asarray(one - other, np.float32))
        assert error <= 2 * BY_NORM["bfloat16"] * np.linalg.norm(np.asarray(other, np.float32))
    lowered = jax.jit(
        lambda x, bias: sx.dot_product_attention(x, x, x, bias, implementation=None)
    ).lower(x, bias)
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.gpu
@on_hopper
def test_what_pads_a_bias_does_not_matter_and_equal_calls_give_equal_bits(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(1, 200, 2, 64)), jnp.bfloat16)
    bias = jnp.asarray(random.normal(size=(1, 2, 200, 200)), np.float32)
    padded = sx.Exec(squares_and_gradient, ("1, s, 2, 64", "1, 2, s, s"), buckets=sx.Linear(128))
    plain = jax.jit(squares_and_gradient)
    for calls in zip(padded(x, bias), plain(x, bias), plain(x, bias), strict=True):
        one, two, three = (np.asarray(x, np.float32) for x in calls)
        np.testing.assert_array_equal(two, three)
        limit = epsilon(jnp.bfloat16)
        np.testing.assert_allclose(one, two, rtol=limit, atol=limit)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("length", "heads", "size"), [(4096, 16, 128), (16384, 16, 64), (65536, 4, 128)]
)
def test_long_sequences_of_many_heads(length, heads, size, deterministic):
    # A kernel for 65,536 examples of these would have arrays too large for the copy engine.
    x, d_out = jax.random.normal(jax.random.key(0), (2, 1, length, heads, size), jnp.bfloat16)

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def both(x, d_out, implementation, heads):
        x, d_out = x[:, :, :heads], d_out[:, :, :heads]
        options = {"mask": sx.SlidingWindow(2000, 0), "deterministic": deterministic}

        def attend(x):
            return sx.dot_product_attention(x, x, x, implementation=implementation, **options)

        out, pull = jax.vjp(attend, x)
        return out, *pull(d_out)

    results = both(x, d_out, "mosaic_gpu", heads)
    for one, other in zip(results, both(x, d_out, "xla", 1), strict=True):
        error = np.linalg.norm(np.asarray(one[:, :, :1] - other, np.float32))
        assert error <= 2 * BY_NORM["bfloat16"] * np.linalg.norm(np.asarray(other, np.float32))


def decode(q, k, v, lengths, mask, implementation=None):
    return sx.dot_product_attention(
        q, k, v, mask=mask, key_value_seq_lengths=lengths, implementation=implementation
    )


TREE = np.tril(np.random.default_rng(0).random((1, 1, 4, 4)) < 0.7) | np.eye(4, dtype=bool)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    ("queries", "heads", "size", "mask"),
    [
        (1, (32, 8), 128, sx.Full()),
        (1, (4, 4), 64, sx.SlidingWindow(0, 300)),
        (4, (8, 2), 128, sx.Causal(align="end")),
        (4, (8, 2), 128, np.concatenate([np.ones((1, 1, 4, 2044), bool), TREE], 3)),
        (16, (16, 2), 128, sx.Causal(align="end")),
        (2, (4, 1), 256, sx.Full()),
        (1, (24, 2), 64, sx.Full()),  # 12 rows
        (9, (8, 2), 128, sx.Causal(align="end")),
        (8, (12, 2), 64, sx.Causal(align="end")),
    ],
)
def test_few_queries_are_right_with_nan_behind_the_valid_lengths(queries, heads, size, mask):
    random, lengths = np.random.default_rng(0), np.array([2048, 1, 1000, 0, 129], np.int32)
    lengths = np.maximum(lengths, 0 if queries == 1 else queries)
    q, k, v = (
        random.normal(size=(5, length, count, size))
        for length, count in ((queries, heads[0]), (2048, heads[1]), (2048, heads[1]))
    )
    behind = (np.arange(2048) >= lengths[:, None])[:, :, None, None]
    bf16 = functools.partial(jnp.asarray, dtype=jnp.bfloat16)
    run = jax.jit(decode, static_argnames="implementation")
    given = bf16(q), *(bf16(np.where(behind, np.nan, x)) for x in (k, v))
    mine = [run(*given, lengths, mask) for _ in range(2)]
    wide = [np.asarray(bf16(x), np.float32) for x in (q, k, v)]
    right = run(*wide, lengths, mask, implementation="xla")
    one, other = (np.asarray(x, np.float32) for x in mine)
    np.testing.assert_array_equal(one, other)
    error = np.linalg.norm(one - right)
    assert error <= BY_NORM["bfloat16"] * np.linalg.norm(right)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("rows", [32, 64, 128, 192])
@pytest.mark.parametrize(("queries", "heads", "size"), [(1, (8, 2), 128), (16, (16, 2), 64)])
def test_few_queries_are_right_with_nan_in_unused_pages(rows, queries, heads, size):
    random, lengths = np.random.default_rng(0), np.array([1900, 17, 0, 129], np.int32)
    count, owned = 11 * 192 // rows, -(-lengths // rows)
    pages = np.full((4, count), -1, np.int32)
    places = random.permutation(owned.sum() + 3)[: owned.sum()]
    pages[np.arange(count) < owned[:, None]] = places
    shape = (owned.sum() + 3, rows, heads[1], size)
    keys, values = (np.full(shape, np.nan, np.float32) for _ in "kv")
    for x in (keys, values):
        x[places] = random.normal(size=(len(places), *shape[1:]))
    query = random.normal(size=(4, queries, heads[0], size)).astype(np.float32)
    given = [jnp.asarray(x, jnp.bfloat16) for x in (query, keys, values)]

    @functools.partial(jax.jit, static_argnames="implementation")
    def step(query, keys, values, implementation=None):
        return sx.dot_product_attention(
            query,
            keys,
            values,
            mask=sx.Causal(align="end"),
            pages=pages,
            key_value_seq_lengths=np.where(lengths == 0, 0, np.maximum(lengths, queries)),
            implementation=implementation,
        )

    mine, again = (np.asarray(step(*given), np.float32) for _ in range(2))
    np.testing.assert_array_equal(mine, again)
    right = step(*(x.astype(np.float32) for x in given), implementation="xla")
    assert np.linalg.norm(mine - right) <= BY_NORM["bfloat16"] * np.linalg.norm(right)


@pytest.mark.gpu
@on_hopper
def test_a_cache_in_a_bucket_is_read_up_to_its_length(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    random = np.random.default_rng(0)
    step = sx.Exec(
        lambda q, k, v: sx.dot_product_attention(q, k, v, mask=sx.Causal(align="end")),
        ("2, 4, 8, 128", "2, s, 2, 128", "2, s, 2, 128"),
        buckets=sx.Linear(1024),
    )
    for length in (1000, 1500):
        q, k, v = (
            jnp.asarray(random.normal(size=(2, n, heads, 128)), jnp.bfloat16)
            for n, heads in ((4, 8), (length, 2), (length, 2))
        )
        wide = [x.astype(np.float32) for x in (q, k, v)]
        right = sx.dot_product_attention(*wide, mask=sx.Causal(align="end"), implementation="xla")
        error = np.linalg.norm(np.asarray(step(q, k, v), np.float32) - right)
        assert error <= BY_NORM["bfloat16"] * np.linalg.norm(right)


@pytest.mark.gpu
@on_hopper
def test_a_kernel_alone_is_compiled_without_an_error():
    x = jnp.zeros((1, 448, 2, 64), jnp.bfloat16)
    jax.jit(lambda x: sx.dot_product_attention(x, x, x, implementation="mosaic_gpu")).lower(x)
    digest, code = next(reversed(_compat.lowered_mosaic_kernels().items()))
    assert _compat.compile_mosaic_kernel(digest, code) is None
    with pytest.raises(Exception, match=r"(?i)hash|mosaic"):
        _compat.compile_mosaic_kernel(b"short", code)


ALL_KINDS = {**lists.CASES, **lists.LARGE}


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("kinds", ALL_KINDS.values(), ids=ALL_KINDS)
def test_lists_of_tiles_are_those_of_operations(kinds, side, cut):
    room = -(-lists.columns_of(kinds, side) // cut)
    make = jax.jit(functools.partial(_lists_hopper.lists, room=room, side=side))
    made, right = make(kinds), _by_operations(kinds, room=room, side=side)
    for name in lists.FIELDS:
        np.testing.assert_array_equal(getattr(made, name), getattr(right, name))


def squares_and_gradient(x, bias):
    def squares(x):
        out = sx.dot_product_attention(x, x, x, bias, is_causal=True)
        return out.astype(np.float32)

    out, pull = jax.vjp(squares, x)
    return out, *pull(2 * out)
