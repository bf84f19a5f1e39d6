"""Exec.map against a Python loop over the plain function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from tests.execution.ragged import attention, normal, tokens
from tests.execution.support import assert_same, counted, ones, refused
from tests.tolerance import assert_close

SIZES = (3, 8, 1, 5)
BUCKET = sx.Linear(4)
P = sx.Pow2()


def rnn(w, x):
    def step(h, row):
        h = jnp.tanh(row @ w + h)
        return h, h[0]

    return lax.scan(step, jnp.zeros(6), x), lax.scan(step, jnp.zeros(6), x, reverse=True)


def convolved(w, x):
    kernel = w.reshape(3, 2, 4)  # width, input, output
    numbers = ("NWC", "WIO", "NWC")
    y = lax.conv_general_dilated(x[None, :, :2], kernel, (1,), "SAME", dimension_numbers=numbers)
    return y[0].max(axis=0)


def dropout(w, x):
    keep = jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)
    return jnp.where(keep, x, 0), w


def by_parity(w, x):
    return x.sum() if x.shape[0] % 2 else w


def halves(w, x):
    front, back = x[: x.shape[0] // 2], x[x.shape[0] // 2 :]
    return {"front": front.sum(0), "back": jnp.concatenate([back, x])}


W = normal(4, 6)
PROGRAMS = {
    "softmax": lambda w, x: jax.nn.softmax(x, axis=0),
    "attention": attention,
    "scans": rnn,
    "convolution": convolved,
    "sort": lambda w, x: jnp.sort(x, axis=0),
    "top": lambda w, x: jnp.argmax(x, axis=0),
    "flat": lambda w, x: x.reshape(-1),
    "dict of concatenations": halves,
    "reversed": lambda w, x: x[::-1] @ w,
    "last": lambda w, x: (x[-1], x.std(axis=0)),
    "cumulative": lambda w, x: jnp.cumsum(x, axis=0),
    "gather and scatter": lambda w, x: w[jnp.argsort(x[:, 0]) % 4],
    "random": dropout,
    "integers": lambda w, x: (x > 0).sum(axis=0),
    "nothing ragged": lambda w, x: (2 * w, x.shape[0] * 1.0),
    "a branch per parity": by_parity,
}


def assert_maps(fn, ex, shared, examples):
    actual = ex.map(shared, examples)
    assert len(actual) == len(examples)
    for result, example in zip(actual, examples, strict=True):
        assert_same(result, jax.jit(fn)(shared, example))


@pytest.mark.parametrize("name", PROGRAMS)
def test_map_gives_what_a_loop_gives(name):
    ex = sx.Exec(PROGRAMS[name], (None, "s, 4"), buckets=BUCKET)
    assert_maps(PROGRAMS[name], ex, W, [normal(n, 4) for n in SIZES])


@pytest.mark.parametrize("poison", ["nan", "max", "garbage"])
def test_map_takes_no_padding_for_data(poison):
    ex = sx.Exec(attention, (None, "s, 4"), buckets=BUCKET, poison=poison)
    assert_maps(attention, ex, W, [normal(n, 4) for n in SIZES])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_fillers_up_to_the_bucket_of_examples_are_dropped(count):
    ex = sx.Exec(lambda w, x: w * x.mean(), (None, "s"), buckets=P)
    assert_maps(lambda w, x: w * x.mean(), ex, W, [ones(n) for n in range(1, count + 1)])
    total = ex.map(W, [ones(n) for n in range(1, count + 1)], reduce="sum")
    assert_same(total, W * sum(jnp.mean(ones(n)) for n in range(1, count + 1)))


def test_an_example_of_size_zero_and_other_structures_get_graphs_of_their_own():
    def fn(w, x):
        return w * x["data"].sum(), len(x)

    ex = sx.Exec(fn, (None, {"data": "s"}), buckets=P)
    sizes = (3, 0, 2, 0)
    assert_maps(fn, ex, 2.0, [{"data": ones(n)} for n in sizes])
    assert ex.cache_size == 2
    ex = sx.Exec(lambda x: x * 2, ("s",), buckets=P)
    mixed = [ones(3), ones(3).astype(np.int32), jnp.ones(2), np.float64([1, 2])]
    for result, example in zip(ex.map(mixed), mixed, strict=True):
        assert_same(result, jnp.asarray(example) * 2)
    assert ex.cache_size == 2


def test_guards_split_examples_and_results_keep_their_order():
    ex = sx.Exec(by_parity, (None, "s"), buckets=sx.Linear(16))
    examples = [ones(n) for n in (2, 3, 4, 5, 7)]
    assert_maps(by_parity, ex, np.float32(-1), examples)
    assert ex.cache_size == 2
    total = ex.map(np.float32(-1), examples, reduce="sum")
    assert_same(total, jnp.float32(-2 + 6 + 15 + 28))


def test_several_lists_keywords_trees_scalars_and_static_arguments():
    def fn(kind, w, x, y, *, scale, shift):
        return getattr(x["a"] * scale + w, kind)() + y.sum() + shift

    ex = sx.Exec(
        fn,
        (None, None, {"a": "s", "b": None}, "t, 2"),
        buckets=P,
        kwarg_shapes={"scale": ""},
        static_argnums=0,
    )
    xs = [{"a": ones(n), "b": None} for n in SIZES]
    ys = [ones(n, 2) for n in reversed(SIZES)]
    scales = [np.float32(n) for n in SIZES]
    actual = ex.map("mean", W[0, 0], xs, ys, scale=tuple(scales), shift=1)
    for i, result in enumerate(actual):
        assert_same(result, fn("mean", W[0, 0], xs[i], ys[i], scale=scales[i], shift=1))


def test_by_default_lists_hold_the_examples_and_the_rest_is_shared():
    def fn(w, x, factor, *, shift):
        return (x @ w).sum() * factor + shift

    ex = sx.Exec(fn)
    xs, factors = [ones(n, 4) for n in SIZES], [1, 2.5, 3, True]
    for _ in range(2):
        for i, result in enumerate(ex.map(W, xs, factors, shift=[0.0] * 4)):
            assert_same(result, jax.jit(fn)(W, xs[i], factors[i], shift=0.0))
    assert_same(ex.map(W, xs, 2.0, shift=1.0)[1], jax.jit(fn)(W, xs[1], 2.0, shift=1.0))
    assert ex.map(W, [], 2.0, shift=1.0) == []


@pytest.mark.parametrize("make", [ones, lambda *s: jnp.asarray(ones(*s))], ids=["numpy", "jax"])
def test_twenty_ragged_batches_need_few_graphs(make):
    rng = np.random.default_rng(0)
    ex = sx.Exec(lambda w, x: w * x.mean(), (None, "s"), buckets=sx.Linear(32))
    batches = [[make(n) for n in rng.integers(1, 65, rng.integers(5, 9))] for _ in range(20)]
    with counted() as count:
        results = [ex.map(2.0, batch) for batch in batches]
    assert count.compilations == ex.stats.compiles == ex.cache_size <= 2
    assert ex.stats.hits == 20 - ex.stats.misses
    assert ex.stats.traces == 1
    for batch, result in zip(batches, results, strict=True):
        assert_close([*result], [2 * np.asarray(x).mean() for x in batch])


def test_the_bucket_of_examples_is_an_option():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P, examples=sx.Linear(6))
    for count in range(1, 13):
        ex.map([ones(4)] * count)
    assert ex.cache_size == 2
    with refused(sx.ConfigError, "examples='six' is not a strategy", "Pow2"):
        sx.Exec(jnp.sum, examples="six")
    with pytest.raises(sx.BucketOverflowError):
        sx.Exec(jnp.sum, ("s",), buckets=P, examples=sx.Ladder([2])).map([ones(4)] * 3)


def test_padding_of_examples_and_fillers_is_counted():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    ex.map([ones(4), ones(2), ones(3)])
    assert ex.stats.waste == {"s": 1 - 9 / 16}


def test_what_cannot_be_padded_is_refused_or_runs_exactly():
    def noisy(x):
        return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape[-1:])

    examples = [ones(n) for n in (3, 5, 3)]
    with pytest.raises(sx.UnsupportedPrimitiveError):
        sx.Exec(noisy, ("s",), buckets=P).map(examples)
    ex = sx.Exec(noisy, ("s",), buckets=P, on_unsupported="exact")
    for _ in range(2):
        for result, example in zip(ex.map(examples), examples, strict=True):
            assert_same(result, noisy(example))
    assert ex.cache_size == 2
    assert ex.stats.exact == {"s": 4}


def test_no_more_symbols_are_exact_than_must_be():
    def noisy(x):
        return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape[-1:])

    examples = [ones(2, 3), ones(3, 3), ones(4, 3)]
    ex = sx.Exec(noisy, ("s, t",), buckets=P, on_unsupported="exact")
    for result, example in zip(ex.map(examples), examples, strict=True):
        assert_same(result, noisy(example))
    assert ex.cache_size == 1
    assert ex.stats.exact == {"t": 1}


def test_other_shared_arguments_are_noticed():
    ex = sx.Exec(lambda w, x: x.sum() * w["w"], (None, "s"), buckets=P)
    for w in (np.float32(2), np.int32(2), np.ones(3, np.float32), jnp.bfloat16(2)):
        for result, example in zip(ex.map({"w": w}, [ones(2), ones(3)]), (2, 3), strict=True):
            assert_same(result, jnp.sum(ones(example)) * w)
    assert ex.cache_size == 4
    ex.clear()
    assert ex.cache_size == 0
    assert_same(ex.map({"w": 2.0}, [ones(2)])[0], jnp.float32(6))


def test_a_frozen_exec_maps_what_it_has_compiled():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P)
    ex.map([ones(3), ones(4)])
    ex.freeze()
    ex.map([ones(2), ones(4)])
    with refused(sx.FrozenError, "map over 2 examples in bucket 2, s up to 5", "warm up"):
        ex.map([ones(3), ones(5)])


@pytest.mark.filterwarnings("ignore:shapeexec:RuntimeWarning")
def test_inside_a_trace_the_plain_function_runs_in_a_loop():
    ex = sx.Exec(lambda w, x: (w * x).sum(), (None, "s"), buckets=P)
    examples = [ones(2), ones(3)]

    @jax.jit
    def both(w, xs):
        return ex.map(w, xs), ex.map(w, xs, reduce="sum")

    assert_same(both(2.0, examples), ([6.0 + jnp.zeros(()), jnp.float32(12)], jnp.float32(18)))
    gradient = jax.grad(lambda w: ex.map(w, examples, reduce="sum"))(2.0)
    assert gradient == 9
    assert ex.cache_size == 0
    assert ex.stats.plain_calls == 6


def test_keys_bits_and_gradients_of_integers_come_back():
    keys = [jax.random.key(n) for n in range(3)]
    ex = sx.Exec(lambda key, x: (key, jax.random.normal(key, x.shape)), ("", "s"), buckets=P)
    for i, result in enumerate(ex.map(keys, [ones(n) for n in (3, 1, 2)])):
        wanted = (keys[i], jax.random.normal(keys[i], ((3, 1, 2)[i],)))
        assert_same(result, wanted)
    fn = jax.grad(lambda x, n: (x * n.sum()).sum(), argnums=(0, 1), allow_int=True)
    ex = sx.Exec(fn, (None, "s"), buckets=P)
    examples = [tokens(n) for n in (3, 4)]
    assert_maps(fn, ex, W, examples)


# Errors


def test_what_is_no_ragged_batch_is_told():
    ex = sx.Exec(lambda w, x, y: x.sum() + y.sum(), (None, "s", "t"))
    with refused(sx.SpecError, "args[1] has a spec but is a ndarray, not a list", "pass a list"):
        ex.map(W, ones(3), [ones(3)])
    with refused(sx.SpecError, "args[1] has 2 examples, but args[2] has 1", "of one length"):
        ex.map(W, [ones(3), ones(2)], [ones(3)])
    with refused(sx.SpecError, "no argument is a list of examples", "pass a list") as told:
        sx.Exec(lambda w, x: x).map(W, ones(3))
    assert told.value.got == "ndarray, ndarray"
    with refused(sx.SpecError, "in_shapes has 3 specs for 2 arguments", "one spec"):
        ex.map(W, [ones(3)])
    with refused(sx.ConfigError, "reduce='mean' is not known", '"sum"'):
        ex.map(W, [ones(3)], [ones(3)], reduce="mean")


def test_what_cannot_be_added_is_told():
    def total(fn, *examples):
        return sx.Exec(fn, ("s",)).map(list(examples), reduce="sum")

    with refused(sx.SpecError, 'reduce="sum" of no examples', "at least one") as told:
        total(jnp.sum)
    assert told.value.got == "no entries in args[0]"
    with refused(sx.SpecError, "a result is f32[s], as large as its example", "leave reduce= out"):
        total(lambda x: 2 * x, ones(3), ones(2))
    with refused(sx.SpecError, "a result is bool[], which is not a number", "convert it"):
        total(lambda x: x.any(), ones(3))
    with refused(sx.SpecError, "results of examples differ", "one tree"):
        total(lambda x: x.sum() if x.shape[0] > 2 else x[:1], ones(3), ones(2))
