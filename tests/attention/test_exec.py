"""Attention inside `Exec`: padding changes nothing, forward and backward, and needs no mask."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking import POISONS
from tests.attention.reference import Reference, summed_to
from tests.tolerance import assert_close

BUCKETS = {"b": sx.Linear(4), "t": sx.Linear(140), "s": sx.Linear(150)}
SIZES = ((3, 70, 132), (1, 1, 1), (4, 140, 20))  # all in one bucket, of two tiles each way


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of query, key, value, of a number more (None: none), and of what is no number.

    Attributes:
        name: What it shows.
        fn: The function.
        allowed: bool, broadcastable to [b, n, t, s], of positions of queries [t, 1] and keys [s],
            and of the further arguments.
        specs: Those of its further arguments, the number first.
        make: Makes them, of b, t and s.
        bias: What the number means, [n, t, s].
        gradient: The gradient of the number, of that of the bias and of the distances.
    """

    name: str
    fn: Callable[..., Any]
    allowed: Callable[..., Any]
    specs: tuple[str | None, ...] = (None,)
    make: Callable[..., tuple[Any, ...]] = lambda random, b, t, s: (None,)
    bias: Callable[..., Any] = lambda number, distance: 0
    gradient: Callable[..., Any] = lambda number, d_bias, distance: None


def attend(**options: Any) -> Callable[..., Any]:
    return lambda q, k, v, _: sx.dot_product_attention(q, k, v, **options)


def with_ids(q, k, v, _, ids, others):
    return sx.dot_product_attention(q, k, v, mask=sx.Documents(ids, others))


def make_ids(random, b, t, s):
    return None, *(random.integers(0, 3, (b, n)).astype(np.int32) for n in (t, s))


def with_arrays(q, k, v, bias, mask):
    return sx.dot_product_attention(q, k, v, bias, mask)


def make_arrays(random, b, t, s):
    bias = random.normal(size=(1, 4, t, s)).astype(np.float32)
    return bias, random.random((b, 1, t, s)) < 0.7


def with_lengths(q, k, v, _, queries, keys):
    return sx.dot_product_attention(
        q, k, v, query_seq_lengths=queries, key_value_seq_lengths=keys, mask=sx.Causal(align="end")
    )


def make_lengths(random, b, t, s):
    return None, *(random.integers(1, n + 1, b).astype(np.int32) for n in (t, s))


def within_lengths(query, key, _t, _s, *lengths):
    queries, keys = (x[:, None, None, None] for x in lengths)
    return (query < queries) & (key < keys) & (key - keys <= query - queries)


def with_modifier(q, k, v, table, n):
    return sx.dot_product_attention(q, k, v, sx.RelativeBias(table), sx.PrefixLM(n))


def make_modifier(random, b, t, s):
    table = random.normal(size=(4, 5)).astype(np.float32)
    return table, random.integers(0, 9, b).astype(np.int32)


def sum_by_distance(table, d_bias, distance):
    index = np.clip(distance, -2, 2) + 2
    return np.stack([np.where(index == i, d_bias, 0).sum((0, 2, 3)) for i in range(5)], -1)


PROGRAMS = (
    Program("full", attend(), lambda *_: np.True_),
    Program(
        "the last query at the last key",
        attend(mask=sx.Causal(align="end")),
        lambda query, key, t, s: key - s <= query - t,
    ),
    Program(
        "window",
        attend(is_causal=True, local_window_size=(40, 0)),
        lambda query, key, t, s: (key <= query) & (key >= query - 40),
    ),
    Program(
        "documents",
        with_ids,
        lambda query, key, t, s, ids, others: ids[:, None, :, None] == others[:, None, None],
        (None, "b, t", "b, s"),
        make_ids,
    ),
    Program(
        "arrays",
        with_arrays,
        lambda query, key, t, s, mask: mask,
        ("_, _, t, s", "b, _, t, s"),
        make_arrays,
        lambda bias, distance: bias,
        lambda bias, d_bias, distance: summed_to(d_bias, bias.shape),
    ),
    Program("lengths", with_lengths, within_lengths, (None, "b", "b"), make_lengths),
    Program(
        "modifier",
        with_modifier,
        lambda query, key, t, s, n: (key <= query) | (key < n[:, None, None, None]),
        ("_, _", "b"),
        make_modifier,
        lambda table, distance: table[:, np.clip(distance, -2, 2) + 2],
        sum_by_distance,
    ),
)


def with_gradients(program: Program) -> Callable[..., Any]:
    """The output, and the gradients of query, key, value and the number."""

    def run(q, k, v, d_out, number, *more):
        out, transpose = jax.vjp(lambda *x: program.fn(*x, *more), q, k, v, number)
        return out, transpose(d_out)

    return run


def arguments(program: Program, b: int, t: int, s: int) -> list[Any]:
    random = np.random.default_rng(b + t)
    shapes = (b, t, 4, 8), (b, s, 2, 8), (b, s, 2, 8), (b, t, 4, 8)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    return [*arrays, *program.make(random, b, t, s)]


def specs(program: Program) -> tuple[str | None, ...]:
    q, k = "b, t, _, _", "b, s, _, _"
    return (q, k, k, q, *program.specs)


def expected_of(program: Program, args: list[Any]) -> tuple[Any, Any]:
    q, k, v, d_out, number, *more = args
    (b, t, n, h), s = q.shape, k.shape[1]
    query, key = np.arange(t)[:, None], np.arange(s)
    allowed = np.broadcast_to(program.allowed(query, key, t, s, *more), (b, n, t, s))
    bias = program.bias(number, key - query)
    wide = (x.astype(np.float64) for x in (q, k, v))
    truth = Reference(*wide, np.asarray(bias), allowed, h**-0.5)
    *gradients, d_bias = truth.gradients(d_out.astype(np.float64))
    results = truth.out, (*gradients, program.gradient(number, d_bias, key - query))
    return jax.tree.map(np.float32, results)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_padding_changes_nothing(program):
    calls = [arguments(program, *sizes) for sizes in SIZES]
    expected = [expected_of(program, args) for args in calls]
    for poison in POISONS if program.name == "arrays" else ("nan",):
        run = sx.Exec(with_gradients(program), specs(program), buckets=BUCKETS, poison=poison)
        for args, want in zip(calls, expected, strict=True):
            assert_close(run(*args), want)
        assert run.stats.compiles == 1


def test_nothing_is_filled():
    program = PROGRAMS[2]
    run = sx.Exec(with_gradients(program), specs(program), buckets=BUCKETS)
    args = arguments(program, 3, 70, 132)
    run(*args)
    assert "0 masks" in str(run.explain(*args))


def test_a_derivative_along_a_direction_is_exact_too():
    def along(q, k, v, d):
        return jax.jvp(lambda q: sx.dot_product_attention(q, k, v, is_causal=True), (q,), (d,))

    args = arguments(PROGRAMS[0], 3, 20, 50)[:4]
    run = sx.Exec(along, specs(PROGRAMS[0])[:4], buckets=BUCKETS, poison="nan")
    assert_close(run(*args), jax.jit(along)(*args))


def test_examples_of_different_sizes_are_mapped_together():
    def one(x, ids):
        return sx.dot_product_attention(x, x, x, mask=sx.Documents(ids), is_causal=True)

    random = np.random.default_rng(0)
    sizes = (3, 130, 1)
    examples = [random.normal(size=(n, 2, 8)).astype(np.float32) for n in sizes]
    ids = [random.integers(0, 2, n).astype(np.int32) for n in sizes]
    results = sx.Exec(one, ("s, _, _", "s"), buckets={"s": sx.Linear(140)}).map(examples, ids)
    for x, i, out in zip(examples, ids, results, strict=True):
        allowed = (i[:, None] == i) & np.tri(len(i), dtype=bool)
        wide = x[None].astype(np.float64)
        shape = (1, 2, len(i), len(i))
        truth = Reference(wide, wide, wide, np.zeros(()), np.broadcast_to(allowed, shape), 8**-0.5)
        assert_close(out, truth.out[0].astype(np.float32))


def test_tiles_made_before_fit_their_own_size_alone():
    random = np.random.default_rng(0)
    x = random.normal(size=(1, 40, 2, 8)).astype(np.float32)
    for tile in ((16, 16), (64, 64)):
        blocks = sx.BlockMask.from_mask(
            sx.Causal() & sx.SlidingWindow(9), query_size=40, key_size=40, tile=tile
        )

        def run(x, mask=blocks):
            return sx.dot_product_attention(x, x, x, mask=mask)

        padded = sx.Exec(run, ("b, s, _, _",), buckets=sx.Linear(160), poison="nan")
        assert_close(padded(x), run(x))
        for call in (run, padded):
            with pytest.raises(
                sx.ConfigError, match="a BlockMask for T=40 in a call with T=33"
            ) as told:
                call(x[:, :33])
            assert "(test_exec.py:" in told.value.where


def test_tiles_made_of_a_size_that_is_symbolic_are_refused_with_the_line():
    def run(x):
        size = x.shape[1]
        blocks = sx.BlockMask.from_mask(sx.Causal(), query_size=size, key_size=size)
        return sx.dot_product_attention(x, x, x, mask=blocks)

    x = np.ones((1, 5, 2, 8), np.float32)
    with pytest.raises(sx.InconclusiveShapeError, match="from_mask got s positions") as told:
        sx.Exec(run, ("b, s, _, _",), buckets=sx.Linear(16))(x)
    for error in (told.value, told.value.__cause__):
        assert error.where.startswith("blocks = sx.BlockMask.from_mask(")


def test_ids_of_one_size_are_refused_at_another():
    ids = sx.Documents(np.arange(40) // 7)
    x = np.random.default_rng(0).normal(size=(1, 40, 2, 8)).astype(np.float32)

    def run(x):
        return sx.dot_product_attention(x, x, x, mask=ids)

    padded = sx.Exec(run, ("b, s, _, _",), buckets=sx.Linear(64), poison="nan")
    assert_close(padded(x), run(x))
    for call in (run, padded):
        with pytest.raises(sx.ConfigError, match="axis T is 40, not 33"):
            call(x[:, :33])


def test_tiles_of_a_size_that_is_not_known_yet_are_refused_or_exact():
    def run(x):
        n = x.shape[1]
        blocks = sx.BlockMask.from_mask(sx.Causal(), query_size=n, key_size=n, tile=(16, 16))
        return sx.dot_product_attention(x, x, x, mask=blocks)

    x = np.random.default_rng(0).normal(size=(2, 40, 2, 8)).astype(np.float32)
    with pytest.raises(sx.InconclusiveShapeError, match=r"(?s)BlockMask.*mask=mask in place of"):
        sx.Exec(run, ("b, s, _, _",))(x)
    exact = sx.Exec(run, ("b, s, _, _",), on_unsupported="exact")
    assert_close(exact(x), run(x))


X = np.ones((1, 5, 4, 8), np.float32)
REFUSED = {
    "heads": (lambda q: sx.dot_product_attention(q, q, q), (X,), ("_, _, n, _",), "heads"),
    "a table": (
        lambda t: sx.dot_product_attention(X, X, X, sx.RelativeBias(t, left=3)),
        (np.ones((4, 7), np.float32),),
        ("_, n",),
        "none of the call's",
    ),
    "documents of other queries": (
        lambda q, ids: sx.dot_product_attention(q, q, q, mask=sx.Documents(ids)),
        (X, np.ones((1, 5), np.int32)),
        ("_, s, _, _", "_, n"),
        "none of the call's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_padded_is_refused(name):
    fn, args, given, why = REFUSED[name]
    with pytest.raises(sx.UnsupportedPrimitiveError, match=why) as caught:
        sx.Exec(fn, given)(*args)
    assert caught.value.symbols == {"n"}
    assert "test_exec.py" in caught.value.where
