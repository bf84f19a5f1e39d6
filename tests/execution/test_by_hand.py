"""Padding and cutting outside of an Exec: the buckets of an Exec, and what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapeexec as sx
from tests.advice.row import quoted
from tests.execution.support import counted, ones, refused
from tests.tolerance import EQUAL, assert_close

SPECS = ["b, s", "b, _", "2*s + 1, b", "?, ?", "..., s", (sx.BATCH, sx.SEQ_LEN), "100 - s, _"]
BUCKETS = [None, "pow2", 3, "exact", sx.Ladder([2, 4], beyond="linear:5")]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.sampled_from(BUCKETS))
def test_what_is_padded_comes_back_and_has_the_capacities_of_an_exec(spec, shape, buckets):
    x = ones(*shape)
    ex = sx.Exec(lambda x: x, (spec,), buckets=buckets)
    try:
        plan = ex.plan(x)
    except sx.SpecError:
        with pytest.raises(sx.SpecError):
            sx.pad_to_bucket(x, spec, buckets=buckets)
        return
    padded, sizes = sx.pad_to_bucket(x, spec, buckets=buckets)
    assert padded.shape == plan.in_capacities[0]
    assert dict(sizes) == plan.sizes
    np.testing.assert_array_equal(padded[: shape[0], : shape[1]], x)
    assert padded.sum() == x.sum()
    back = sx.unpad(padded, sizes)
    assert back.shape == shape
    np.testing.assert_array_equal(back, x)


def test_a_tree_is_padded_by_the_specs_of_its_parts():
    x = {"tokens": ones(3, 5), "lengths": np.arange(3), "name": "train", "w": ones(7)}
    spec = {"tokens": "b, s", "lengths": (sx.BATCH,), "name": None, "w": None}
    padded, sizes = sx.pad_to_bucket(x, spec, buckets={"b": "pow2", sx.SEQ_LEN: 8})
    assert padded["tokens"].shape == (4, 8)
    assert padded["lengths"].shape == (4,)
    assert padded["lengths"].dtype == np.int64
    assert padded["w"] is x["w"]
    assert (sizes, sizes.buckets) == ({"b": 3, "s": 5}, {"b": 4, "s": 8})
    back = sx.unpad(padded, sizes)
    assert jax.tree.structure(back) == jax.tree.structure(x)
    np.testing.assert_array_equal(back["tokens"], x["tokens"])
    np.testing.assert_array_equal(back["lengths"], x["lengths"])


def test_one_spec_holds_for_all_arrays_below_it_whose_unknown_sizes_differ():
    padded, sizes = sx.pad_to_bucket([ones(3), ones(5)], "?", buckets={sx.UNKNOWN: 4})
    assert [p.shape for p in padded] == [(4,), (8,)]
    assert [p.shape for p in sx.unpad(padded, sizes)] == [(3,), (5,)]


@pytest.mark.parametrize(
    "x",
    [
        jnp.arange(5),
        jax.device_put(jnp.arange(5.0), jax.devices()[0]),
        jax.random.split(jax.random.key(0), 5),
        jnp.arange(5).astype(jnp.bfloat16),
    ],
    ids=lambda x: str(x.dtype),
)
def test_an_array_of_jax_stays_one(x):
    padded, sizes = sx.pad_to_bucket(x, "s")
    back = sx.unpad(padded, sizes)
    for y, length in ((padded, 8), (back, 5)):
        assert isinstance(y, jax.Array)
        assert (y.shape, y.dtype, y.committed) == ((length,), x.dtype, x.committed)
        assert getattr(y, "weak_type", None) == getattr(x, "weak_type", None)
    assert (back == x).all()


def test_padding_and_cutting_on_the_host_compile_nothing():
    arrays = [jnp.ones((size, 3)) for size in range(1, 20)]
    with counted() as count:
        for x in arrays:
            sx.unpad(*sx.pad_to_bucket(x, "s, 3"))
    assert count.compilations == 0


def test_what_fills_its_bucket_is_not_copied():
    x = ones(8)
    padded, sizes = sx.pad_to_bucket(x, "s")
    assert padded is x
    assert sx.unpad(padded, sizes) is x


def test_a_result_is_cut_by_a_spec_of_its_own():
    padded, sizes = sx.pad_to_bucket(ones(3, 5, 2), "b, s, 2")
    sums = sx.unpad(padded.sum(axis=1), sizes, spec="b, _")
    np.testing.assert_array_equal(sums, ones(3, 5, 2).sum(axis=1))
    assert sx.unpad(padded.sum(axis=1), {"b": 3}, spec="b, 2").shape == (3, 2)
    assert sx.unpad({"y": padded[0]}, sizes, spec={"y": "s, 2"})["y"].shape == (5, 2)


def test_a_spec_of_unknown_sizes_is_that_of_what_was_padded_or_names_them():
    x = ones(3, 4)
    padded, sizes = sx.pad_to_bucket(x, "?, ?")
    np.testing.assert_array_equal(sx.unpad(padded, sizes, spec=(sx.UNKNOWN,) * 2), x)
    sums = sx.unpad(padded.sum(axis=0), sizes, spec="unknown_0_1")
    np.testing.assert_array_equal(sums, x.sum(axis=0))


def test_an_axis_that_is_longer_than_its_symbol_is_cut_if_it_was_padded_so():
    x = ones(5, 2)
    padded, sizes = sx.pad_to_bucket(x, "2*s + 1, b")
    np.testing.assert_array_equal(
        sx.unpad(padded.sum(axis=1), sizes, spec="2*s + 1"), x.sum(axis=1)
    )
    twice = np.repeat(padded, 2, axis=0)
    back = sx.unpad(twice, {"n": 10, "b": 2}, spec="n, b")
    np.testing.assert_array_equal(back, np.repeat(x, 2, axis=0))
    np.testing.assert_array_equal(
        sx.unpad(padded[::2], {"s": 5, "b": 2}, spec="s - s // 2, b"), x[::2]
    )


def test_the_sizes_are_data_of_a_jitted_function_which_compiles_once_per_bucket():
    @jax.jit
    def mean(x, sizes):
        return jnp.sum(x, axis=0) / sizes["s"]

    for size in (5, 6, 7):
        x = ones(size, 2)
        padded, sizes = sx.pad_to_bucket(x, "s, 2")
        assert_close(mean(padded, sizes), x.mean(axis=0))
    assert mean._cache_size() == 1


def test_both_work_in_a_trace_with_gradients():
    def loss(x):
        padded, sizes = sx.pad_to_bucket(x, "s, 2")
        return (sx.unpad(padded * 2, sizes) ** 2).sum()

    x = jnp.asarray(ones(3, 2))
    assert_close(jax.jit(jax.grad(loss))(x), 8 * x, loose=EQUAL)


def test_a_size_of_0_stays_0():
    padded, sizes = sx.pad_to_bucket(ones(0, 3), "b, s")
    assert padded.shape == (0, 4)
    assert sx.unpad(padded, sizes).shape == (0, 3)


X, SIZES = sx.pad_to_bucket(ones(3, 5), "b, s")
UNNAMED, UNNAMED_SIZES = sx.pad_to_bucket(ones(3, 4), "?, ?")
ERRORS = {
    "no spec": (
        lambda: sx.pad_to_bucket(ones(3), 3.0),
        "spec is 3.0, which is not a spec.",
        'a string such as "b, 512"',
    ),
    "a malformed spec": (
        lambda: sx.pad_to_bucket(ones(3), "b,, s"),
        'axis 1 of the spec "b,, s" is not a dimension: "".',
        "one entry per axis",
    ),
    "another rank": (
        lambda: sx.pad_to_bucket(ones(3), "b, s"),
        'args[0] has rank 1, but its spec "b, s" wants 2.',
        "pass an array of rank 2",
    ),
    "another structure": (
        lambda: sx.pad_to_bucket([ones(3)], {"x": "b"}),
        "spec does not fit the structure of args[0].",
        "containers as in the argument",
    ),
    "two sizes": (
        lambda: sx.pad_to_bucket([ones(3), ones(4)], "b"),
        "`b` is 3 on args[0][0] axis 0, but 4 on args[0][1] axis 0.",
        "give each size",
    ),
    "no array": (
        lambda: sx.pad_to_bucket(3.0, "b"),
        'args[0] has the spec "b" but is not an array.',
        "pass an array",
    ),
    "unpad without a spec": (
        lambda: sx.unpad(X, {"b": 3, "s": 5}),
        "unpad: which axes are padded is not known.",
        'unpad(x, sizes, spec="b, s")',
    ),
    "unpad of a symbol without a size": (
        lambda: sx.unpad(X, SIZES, spec="b, t"),
        "unpad: no size is known for `t`.",
        "name one of b, s, or `_`",
    ),
    "unpad of another rank": (
        lambda: sx.unpad(X[0], SIZES),
        'args[0] has rank 1, but its spec "b, s" wants 2.',
        "pass an array of rank 2",
    ),
    "unpad of what is not at capacity": (
        lambda: sx.unpad(X[:, :5], SIZES),
        "unpad: axis 1 has size 5, but `s` takes 8.",
        "pass an array at capacity, or write `_`",
    ),
    "unpad of too little": (
        lambda: sx.unpad(X[:2], {"b": 3}, spec="b, _"),
        "unpad: axis 0 has size 2, but `b` takes at least 3.",
        "pass an array at capacity",
    ),
    "unpad of another static size": (
        lambda: sx.unpad(X, SIZES, spec="b, 7"),
        "unpad: axis 1 has size 8, but `7` takes 7.",
        "pass an array at capacity",
    ),
    "unpad of a merged axis": (
        lambda: sx.unpad(X.reshape(-1), SIZES, spec="b*s"),
        "unpad cannot cut an axis of `b*s`.",
        "cut the arrays before they are merged",
    ),
    "unpad of a squared axis": (
        lambda: sx.unpad(X.reshape(-1), SIZES, spec="s*s"),
        "unpad cannot cut an axis of `s^2`.",
        "cut the arrays before they are merged",
    ),
    "unpad of joined axes": (
        lambda: sx.unpad(np.concatenate([X, X]), SIZES, spec="2*b, s"),
        "unpad cannot cut an axis of `2*b`.",
        "cut the arrays before they are merged",
    ),
    "unpad of one more": (
        lambda: sx.unpad(np.concatenate([X, X[:1]]), dict(SIZES), spec="b + 1, s"),
        "unpad cannot cut an axis of `b + 1`.",
        "cut the arrays before they are merged",
    ),
    "unpad at a size that is no int": (
        lambda: sx.unpad(X, {"b": 3.5, "s": 5}, spec="b, s"),
        "unpad: the size 3.5 of `b` is not an integer of at least 0.",
        "ints by symbol",
    ),
    "unpad at a truth value": (
        lambda: sx.unpad(X, {"b": True, "s": 5}, spec="b, s"),
        "unpad: the size True of `b` is not an integer of at least 0.",
        "ints by symbol",
    ),
    "unpad at a negative size": (
        lambda: sx.unpad(X, {"b": -1, "s": 5}, spec="b, s"),
        "unpad: the size -1 of `b` is not an integer of at least 0.",
        "ints by symbol",
    ),
    "unpad at sizes that became negative": (
        lambda: sx.unpad(X, jax.tree.map(lambda size: size - 4, SIZES)),
        "unpad: the size -1 of `b` is not an integer of at least 0.",
        "ints by symbol",
    ),
    "unpad of a negative dim": (
        lambda: sx.unpad(X, {"b": 2, "s": 5}, spec="b - 3, s"),
        "unpad: axis 0 is `b - 3`, which is -1.",
        "write `_` for an axis that is not padded",
    ),
    "unpad at sizes without symbols": (
        lambda: sx.unpad(X, (3, 5), spec="b, s"),
        "unpad: sizes=(3, 5) are not sizes by symbol.",
        "a dict of them",
    ),
    "unpad at traced sizes": (
        lambda: jax.jit(sx.unpad)(X, SIZES),
        "unpad: the size of `b` is traced.",
        "unpad outside of jit",
    ),
    "unpad of an unknown size": (
        lambda: sx.unpad(UNNAMED.sum(axis=0), UNNAMED_SIZES, spec="?"),
        "unpad: an unknown size in the spec of a result is not known.",
        "name one of unknown_0_0, unknown_0_1, or `_`",
    ),
    "unpad of an unknown size in a shape": (
        lambda: sx.unpad(UNNAMED.sum(axis=0), UNNAMED_SIZES, spec=[sx.Shape(None, sx.UNKNOWN)]),
        "unpad: an unknown size in the spec of a result is not known.",
        "name one of unknown_0_0, unknown_0_1, or `_`",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_padded_or_cut_says_why(case):
    call, what, fix = ERRORS[case]
    with refused(sx.SpecError, what, fix):
        call()


def test_in_an_exec_sizes_are_symbolic_and_this_is_told_with_the_line():
    ex = sx.Exec(lambda x: sx.pad_to_bucket(x, "s")[0].sum(), ("s",))
    with pytest.raises(sx.InconclusiveShapeError) as caught:
        ex(ones(3))
    assert caught.value.why == "the sizes are symbolic here, in a function that an Exec traces."
    assert "test_by_hand.py" in str(caught.value.where)
    assert caught.value.__cause__.got == "[s]"


def test_what_is_no_strategy_no_symbol_or_too_large_is_told_as_an_exec_tells_it():
    with refused(sx.ConfigError, "buckets='pow3' is not a strategy.", '"pow2"'):
        sx.pad_to_bucket(ones(3), "b", buckets="pow3")
    with refused(
        sx.ConfigError, "no spec has a symbol `s`; the symbols are `b`", "of the spec, or"
    ):
        sx.pad_to_bucket(ones(3), "b", buckets={"s": "pow2"})
    with refused(sx.BucketOverflowError, "size=3 is past the last bucket of Ladder: 2.", "beyond="):
        sx.pad_to_bucket(ones(3), "b", buckets=[2])
    with refused(sx.StrategyError, "returns a bucket below the size", "return a bucket"):
        sx.pad_to_bucket(ones(3), "b", buckets=lambda size: size - 1)


@pytest.mark.parametrize("length", [3, 4])
def test_a_shape_alone_is_refused_with_what_tells_shapes(length):
    x, spec, sizes = jax.ShapeDtypeStruct((length,), np.float32), "b", {"b": 2}
    what = "takes arrays, and was given a jax.ShapeDtypeStruct."
    with refused(sx.ConfigError, f"pad_to_bucket {what}", "pass an array") as caught:
        sx.pad_to_bucket(x, spec)
    names = {"jax": jax, "sx": sx, "x": x, "spec": spec, "sizes": sizes}
    assert eval(quoted(caught.value.fix)[0], names).shape == (4,)
    with refused(sx.ConfigError, f"unpad {what}", "pass an array") as caught:
        sx.unpad(x, sizes, spec=spec)
    assert eval(quoted(caught.value.fix)[0], names).shape == (2,)


def test_a_symbol_called_as_an_unknown_size_is_refused():
    x = {"a": ones(3), "b": ones(4)}
    with pytest.raises(sx.SpecError, match="`unknown_0_a_0` would be the name of two sizes"):
        sx.pad_to_bucket(x, {"a": "?", "b": "unknown_0_a_0"})
