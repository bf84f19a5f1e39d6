"""Paged caches: what pages and their numbers give is what the same keys in one array give."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention._paging import by_page
from shapeexec.attention.backends import _device
from shapeexec.attention.backends._base import PagedBackend
from shapeexec.attention.backends._registry import IMPLEMENTATIONS, load
from tests.attention.lowering import hopper_kernels, lowered
from tests.attention.test_choose import CALL
from tests.marks import by_name, marked_slow
from tests.tolerance import SUMS, assert_close

_QUICK = {"xla_llvm_disable_expensive_passes": True}  # each program runs once
_GARBAGE = (-1, 2**31 - 1, -(2**31), 10**6)  # where no page is asked for


@dataclasses.dataclass(frozen=True)
class Cache:
    """Keys and values of some examples, in pages and as one array.

    Attributes:
        key, value: [P, rows, K, size]; NaN in all that no example has.
        pages: i32[B, n], garbage where an example has no page.
        lengths: i32[B].
        numbers: `pages`, with 0 for garbage.
    """

    key: np.ndarray
    value: np.ndarray
    pages: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray

    def dense(self, pages: Any) -> Any:
        """[B, S, K, size]."""
        return jnp.asarray(pages)[self.numbers].reshape(len(self.pages), -1, *pages.shape[2:])


def cache(
    lengths: list[int], page: int, *, pages: int, dtype: str = "float32", shared: int = 0
) -> Cache:
    """A cache of 2 key heads of 8; the first `shared` pages are those of the first example."""
    random = np.random.default_rng(page)
    owned = [-(-length // page) for length in lengths]
    places = iter(random.permutation(sum(owned) + 3))
    numbers = np.zeros((len(lengths), pages), np.int32)
    key, value = (np.full((sum(owned) + 3, page, 2, 8), np.nan) for _ in range(2))
    for i, (length, count) in enumerate(zip(lengths, owned, strict=True)):
        common = shared if i else 0
        numbers[i, :common] = numbers[0, :common]
        numbers[i, common:count] = [next(places) for _ in range(common, count)]
        for place in range(common, count):
            rows = min(page, length - place * page)
            for x in (key, value):
                x[numbers[i, place], :rows] = random.normal(size=(rows, 2, 8))
    is_owned = np.arange(pages) < np.array(owned)[:, None]
    table = np.where(is_owned, numbers, random.choice(_GARBAGE, numbers.shape)).astype(np.int32)
    key, value = (np.asarray(jnp.asarray(x, dtype)) for x in (key, value))
    return Cache(key, value, table, np.array(lengths, np.int32), numbers)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call, of three examples and 4 query heads.

    Attributes:
        page, pages: Rows of a page, and pages of an example.
        lengths: Valid lengths of the keys.
        options: Makes keyword arguments; an array under `bias` is differentiated.
        queries: T.
        dtype: Of query, key and value.
        shared: How many of their first pages all examples share.
    """

    page: int
    pages: int
    lengths: list[int]
    options: Callable[..., dict[str, Any]] = lambda random, t, s: {}
    queries: int = 3
    dtype: str = "float32"
    shared: int = 0

    def cache(self) -> Cache:
        return cache(
            self.lengths, self.page, pages=self.pages, dtype=self.dtype, shared=self.shared
        )


def masked(mask: Any) -> Callable[..., dict[str, Any]]:
    return lambda random, t, s: {"mask": mask}


def documents(random, t, s):
    ids = np.arange(s) * 3 // s + np.arange(3)[:, None] % 2
    return {"mask": sx.Documents(ids[:, :: s // t][:, :t].copy(), ids)}


def of_pairs(random, t, s):
    return {"mask": random.random((3, 1, t, s)) < 0.5}


def biased(random, t, s):
    return {"bias": random.normal(size=(1, 4, t, s)).astype(np.float32)}


def dropped(random, t, s):
    return {"dropout_rate": 0.3, "dropout_key": jax.random.key(0)}


END = sx.Causal(align="end")
CASES = {
    "pages of 16, some shared": Case(16, 17, [272, 50, 65], masked(END), shared=2),
    "pages of 64, which tiles end within": Case(64, 5, [320, 1, 258], masked(END)),
    "pages of 128": Case(128, 3, [384, 129, 128], masked(sx.SlidingWindow(100, 9) | sx.Global(3))),
    "a page of more than a tile": Case(300, 2, [600, 3, 301], masked(END)),
    "a page of two tiles": Case(512, 1, [512, 3, 301], masked(END)),
    "pages of 24, and no lengths": Case(24, 13, [312] * 3, masked(END)),
    "a prefix that all share": Case(16, 6, [90, 70, 50], shared=3),
    "documents": Case(64, 5, [300, 64, 0], documents),
    "an array of pairs": Case(16, 4, [64, 33, 1], of_pairs),
    "ALiBi": Case(16, 4, [64, 33, 1], lambda *_: {"bias": sx.ALiBi.for_heads(4), "mask": END}),
    "a bias": Case(16, 4, [60, 33, 1], biased),
    "bf16, many queries": Case(64, 3, [192, 130, 5], masked(END), queries=140, dtype="bfloat16"),
    "dropout": Case(16, 4, [64, 33, 1], dropped),
}
QUICK = {"pages of 16, some shared", "pages of 24, and no lengths"}


def attend(query, key, value, bias, options):
    return sx.dot_product_attention(query, key, value, bias, return_residual=True, **options)


@pytest.mark.parametrize("case", by_name(CASES, CASES.keys() - QUICK))
def test_pages_give_what_one_array_gives_and_so_do_their_gradients(case):
    random, kept = np.random.default_rng(0), case.cache()
    options = case.options(random, case.queries, case.page * case.pages)
    bias = options.pop("bias", None)
    if min(case.lengths) < case.page * case.pages:
        options["key_value_seq_lengths"] = kept.lengths
    query, d_out = (random.normal(size=(3, case.queries, 4, 8)).astype(case.dtype) for _ in "qd")

    @functools.partial(jax.jit, compiler_options=_QUICK)
    def run(query, key, value, bias, pages):
        given = options if pages is None else {**options, "pages": pages}
        both = functools.partial(attend, options=given)
        out, transpose, residual = jax.vjp(both, query, key, value, bias, has_aux=True)
        return out, residual, *jax.tree.leaves(transpose(d_out))

    dense = (kept.dense(kept.key), kept.dense(kept.value))
    got = run(query, kept.key, kept.value, bias, kept.pages)
    want = list(run(query, *dense, bias, None))
    for i in (3, 4):  # what all owners of a page have of it, added up
        sums = np.zeros(kept.key.shape)
        np.add.at(sums, kept.numbers, np.float64(want[i]).reshape(*kept.numbers.shape, -1, 2, 8))
        want[i] = sums.astype(case.dtype)
    assert_close(list(got), want, loose=SUMS)


def test_gradients_of_a_page_are_added_without_a_scatter_whose_order_a_gpu_leaves_open():
    numbers, parts = np.array([[2, 0, 2], [2, 2, 0]]), np.array([1, 2, 4, 8, 16, 32], np.float32)
    x = np.broadcast_to(parts[:, None, None, None], (6, 4, 1, 2)).reshape(2, 12, 1, 2)
    run = functools.partial(by_page, numbers=jnp.asarray(numbers), pages=4)
    np.testing.assert_array_equal(run(jnp.asarray(x))[:, 0, 0, 0], [34, 0, 29, 0])
    assert "scatter-add" not in str(jax.make_jaxpr(run)(x))


def test_a_derivative_along_a_direction_is_that_of_one_array():
    kept, random = cache([40, 17], 16, pages=3), np.random.default_rng(0)
    query, d_query = (random.normal(size=(2, 3, 4, 8)).astype(np.float32) for _ in "qd")
    lengths = {"key_value_seq_lengths": kept.lengths}

    def paged(query, key, value):
        return sx.dot_product_attention(query, key, value, pages=kept.pages, **lengths)

    def plain(query, key, value):
        dense = (kept.dense(key), kept.dense(value))
        return sx.dot_product_attention(query, *dense, **lengths)

    given, along = (query, kept.key, kept.value), (d_query, kept.value, kept.key)
    assert_close(*(jax.jit(functools.partial(jax.jvp, f))(given, along) for f in (paged, plain)))


# Query, key, value, pages and lengths, each mapped or shared by all calls.
MAPPED = {
    "calls that share pages": (0, None, None, 0, 0),
    "calls with pages of their own": (0, 0, 1, 0, 0),
    "values of their own alone": (None, None, 0, None, None),
    "queries alone": (2, None, None, None, None),
}


@pytest.mark.parametrize(
    "name", marked_slow(MAPPED, {"queries alone", "values of their own alone"})
)
def test_mapped_calls_give_what_they_give_one_by_one(name):
    caches = [cache([40, 17], 16, pages=3), cache([23, 33], 16, pages=3)]
    caches[0] = dataclasses.replace(caches[0], key=caches[0].key[:8], value=caches[0].value[:8])
    pages = min(len(one.key) for one in caches)
    random = np.random.default_rng(0)
    queries = random.normal(size=(2, 2, 3, 4, 8)).astype(np.float32)
    fields = ("key", "value", "pages", "lengths")
    given = [queries, *(np.stack([getattr(one, f)[:pages] for one in caches]) for f in fields)]
    in_axes = MAPPED[name]
    if in_axes[1] is None:  # one pool for both calls
        given[3][1], given[4][1] = given[3][0], given[4][0][::-1]
    args = [
        x[0] if axis is None else np.moveaxis(x, 0, axis)
        for x, axis in zip(given, in_axes, strict=True)
    ]

    def run(query, key, value, pages, lengths):
        def total(query, key, value):
            out = sx.dot_product_attention(
                query, key, value, mask=END, pages=pages, key_value_seq_lengths=lengths
            )
            return (out**2).sum()

        return jax.value_and_grad(total, argnums=(0, 1, 2))(query, key, value)

    def one_by_one(*args):
        calls = [
            [
                x if axis is None else jnp.take(x, i, axis)
                for x, axis in zip(args, in_axes, strict=True)
            ]
            for i in range(2)
        ]
        return jax.tree.map(lambda *x: jnp.stack(x), *(run(*call) for call in calls))

    mapped = jax.vmap(run, in_axes)
    assert_close(*(jax.jit(f, compiler_options=_QUICK)(*args) for f in (mapped, one_by_one)))


SIZES = ((3, 5, 20), (1, 1, 4), (4, 9, 32))  # examples, pages of one, pages; all in one bucket


@pytest.mark.parametrize("has_lengths", marked_slow([True, False], [False]))
def test_in_an_exec_padding_changes_nothing(has_lengths):
    def run(query, key, value, bias, pages, lengths):
        given = {"pages": pages, "key_value_seq_lengths": lengths if has_lengths else None}

        def one(query, key, value, bias):
            return sx.dot_product_attention(query, key, value, bias, END, **given)

        out, transpose = jax.vjp(one, query, key, value, bias)
        return out, transpose(out)

    specs = ("b, _, _, _", *["p, _, _, _"] * 2, "_, _, _, 16*n", "b, n", "b")
    buckets = {"b": sx.Linear(4), "n": sx.Linear(12), "p": sx.Linear(32)}
    padded = sx.Exec(run, specs, buckets=buckets, poison="nan")
    for b, n, count in SIZES:
        random = np.random.default_rng(b)
        key, value = (random.normal(size=(count, 16, 2, 8)).astype(np.float32) for _ in "kv")
        query = random.normal(size=(b, 3, 4, 8)).astype(np.float32)
        bias = random.normal(size=(1, 1, 1, 16 * n)).astype(np.float32)
        lengths = random.integers(1, 16 * n + 1, b).astype(np.int32)
        pages = random.integers(0, count, (b, n)).astype(np.int32)
        if has_lengths:
            is_behind = np.arange(n) * 16 >= lengths[:, None]
            pages = np.where(is_behind, random.choice(_GARBAGE, pages.shape), pages)
        args = (query, key, value, bias, pages.astype(np.int32), lengths)
        assert_close(padded(*args), jax.jit(run)(*args), loose=SUMS)
    assert padded.stats.compiles == 1


def test_in_an_exec_a_wrong_number_reads_a_page_that_was_passed():
    def run(query, keys, pages):
        def total(keys):
            return sx.dot_product_attention(query, keys, keys, pages=pages).sum()

        value, gradient = jax.value_and_grad(total)(keys)
        return value, gradient, gradient.sum()

    query, keys = (np.random.default_rng(n).normal(size=(n, 2, 1, 8)) for n in (1, 3))
    args = (query.astype(np.float32), keys.astype(np.float32), np.array([[0, 3, -1]], np.int32))
    padded = sx.Exec(run, (None, "p, _, _, _", None), buckets={"p": sx.Linear(8)}, poison="nan")
    assert_close(padded(*args), jax.jit(run)(*args), loose=SUMS)


def test_the_rows_of_a_page_are_static():
    x, table = np.ones((4, 16, 2, 8), np.float32), np.zeros((1, 2), np.int32)
    run = sx.Exec(lambda x, t: sx.dot_product_attention(x[:1], x, x, pages=t), ("_, r, _, _", None))
    with pytest.raises(sx.UnsupportedPrimitiveError, match="size of a page") as caught:
        run(x, table)
    assert caught.value.symbols == {"r"}


def test_a_call_without_pages_or_without_keys_gives_0():
    query, keys = jnp.ones((2, 3, 4, 8)), jnp.ones((5, 16, 2, 8))
    for key, count in ((keys, 0), (keys[:0], 2)):
        pages = jnp.zeros((2, count), np.int32)
        out = sx.dot_product_attention(query, key, key, pages=pages)
        assert out.shape == query.shape
        assert not out.any()
        mapped = jax.vmap(lambda x, t=pages: sx.dot_product_attention(query, x, x, pages=t))
        assert not mapped(key[None]).any()


def test_a_query_without_a_batch_axis_has_pages_of_one_example():
    kept = cache([40], 16, pages=3)
    query = np.random.default_rng(0).normal(size=(1, 3, 4, 8)).astype(np.float32)
    options = {"pages": kept.pages, "key_value_seq_lengths": kept.lengths}
    alone = sx.dot_product_attention(query[0], kept.key, kept.value, **options)
    whole = sx.dot_product_attention(query, kept.key, kept.value, **options)
    np.testing.assert_array_equal(alone, whole[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_cache_in_pages_is_not_copied(dtype):
    kept = jax.ShapeDtypeStruct((256, 64, 2, 64), dtype)
    query, pages = jax.ShapeDtypeStruct((4, 1, 2, 64), dtype), jnp.zeros((4, 64), np.int32)

    def step(query, keys):
        return sx.dot_product_attention(query, keys, keys, pages=pages)

    compiled = jax.jit(step).lower(query, kept).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < kept.size  # bytes; a copy would take two or four times as many


READS = {
    "pages of 64": ({}, True),
    "pages of 128": ({"page_size": 128}, True),
    "pages of 192": ({"page_size": 192}, True),
    "pages of 32": ({"page_size": 32}, False),
    "no pages": ({"page_size": None}, False),
    "many queries": ({"query_size": 17}, False),
    "wide heads": ({"head_size": 256}, False),
    "heads that are copied": ({"value_size": 72}, False),
    "gradients": ({"is_backward": True}, False),
}


@pytest.mark.parametrize("name", READS)
def test_the_hopper_kernel_reads_pages_of_whole_64s_for_few_queries(name):
    change, expected = READS[name]
    call = dataclasses.replace(CALL, query_size=4, page_size=64)
    backend = load("mosaic_gpu")
    assert isinstance(backend, PagedBackend)
    assert backend.reads_pages(dataclasses.replace(call, **change)) == expected


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="has no such kernels")
@pytest.mark.parametrize(("rows", "copies"), [(64, 0), (128, 0), (32, 2)])
def test_on_a_hopper_a_step_copies_no_cache_in_pages_of_whole_64s(monkeypatch, rows, copies):
    monkeypatch.setattr(_device, "compute_capability", lambda: (9, 0))
    query, keys = jnp.zeros((2, 1, 4, 64), jnp.bfloat16), jnp.zeros((9, rows, 2, 64), jnp.bfloat16)

    def step(query, keys, pages, lengths):
        return sx.dot_product_attention(
            query, keys, keys, pages=pages, key_value_seq_lengths=lengths
        )

    pages, lengths = jnp.zeros((2, 3), np.int32), jnp.ones(2, np.int32)
    program = lowered(step, query, keys, pages, lengths, platform="cuda")
    assert hopper_kernels(program) == 2  # of the parts, and to join them
    assert program.count(f"-> tensor<2x3x{rows}x2x64xbf16>") == copies


def test_other_back_ends_are_given_one_array():
    paged = {name for name in IMPLEMENTATIONS if isinstance(load(name), PagedBackend)}
    assert paged == {"xla", "mosaic_gpu"}


Q, K, TABLE = jnp.ones((2, 5, 4, 8)), jnp.ones((7, 16, 2, 8)), jnp.zeros((2, 3), np.int32)
BAD = {
    "keys without pages": ({"key": K[0]}, r"key is f32\[16,2,8\], with 3 axes", "pages= out"),
    "values without pages": ({"value": K[0]}, "value is .* with 3 axes", r"\[pages, page size"),
    "page sizes": ({"value": K[:, :8]}, "differ in their pages", r"value as \[pages, page size"),
    "pages": ({"value": K[:5]}, "differ in their pages", r"key as \[pages, page size"),
    "heads": ({"value": K[:, :, :1]}, "differ in their pages or heads", "K, V"),
    "axes": ({"pages": TABLE[0]}, r"pages is i32\[3\], not i32\[2, pages", "row .* each example"),
    "examples": ({"pages": TABLE[:1]}, r"pages is i32\[1,3\], not i32\[2, pages", "each example"),
    "dtype": ({"pages": TABLE.astype(float)}, r"pages is f32\[2,3\], not i32", "jnp.int32"),
    "no table": ({"pages": "x"}, "pages is of type str, not an array", "jnp.int32"),
    "a mask's length": ({"mask": jnp.ones((1, 1, 5, 47), bool)}, "does not broadcast", "4 axes"),
    "lengths": ({"key_value_seq_lengths": jnp.ones(7, np.int32)}, r"not i32\[2\]", "each example"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named(name):
    bad, what, fix = BAD[name]
    good = {"query": Q, "key": K, "value": K, "pages": TABLE}
    with pytest.raises(sx.ConfigError, match=what) as caught:
        sx.dot_product_attention(**(good | bad))
    assert re.search(fix, caught.value.fix)
    assert caught.value.option in ("pages", *bad)
