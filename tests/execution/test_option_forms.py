"""Options in their short forms, and arguments that are left out."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _spellings
from tests.execution.python_module import mean
from tests.execution.support import ones, refused

P = sx.Pow2()


# Options


@pytest.mark.parametrize(
    ("buckets", "strategy"),
    [
        (32, sx.Linear(32)),
        (np.int64(32), sx.Linear(32)),
        ([8, 16], sx.Ladder([8, 16])),
        ((8, 16), sx.Ladder([8, 16])),
        (range(8, 32, 8), sx.Ladder([8, 16, 24])),
    ],
)
def test_numbers_and_lists_are_strategies(buckets, strategy):
    assert sx.Exec(mean, ("s",), buckets=buckets).settings.strategies == strategy
    assert sx.Exec(mean, ("s",), buckets={"s": buckets}).settings.strategies == {"s": strategy}
    assert sx.Exec(mean, ("s",), examples=buckets).settings.examples == strategy


@pytest.mark.parametrize(
    ("buckets", "what"),
    [
        (0, "buckets=0 is not an integer"),
        (-8, "buckets=-8 is not an integer"),
        ([], "buckets is empty"),
        ([8, 0], "buckets[1]=0 is not an integer"),
        (["8"], "buckets[0]='8' is not an integer"),
        (True, "buckets=True is not a strategy."),
        (8.0, "buckets=8.0 is not a strategy."),
        ("pow3", "buckets='pow3' is not a strategy."),
    ],
)
def test_other_numbers_and_lists_are_none(buckets, what):
    with refused(sx.ConfigError, what, ""):
        sx.Exec(mean, ("s",), buckets=buckets)


@pytest.mark.parametrize(
    ("specs", "what", "fix"),
    [
        (("b,,(",), "axis 1 of the spec", "one entry per axis"),
        (("b s",), 'axis 0 of the spec "b s" is not a dimension', 'commas: "b, s"'),
        (("b s 512, t",), "is not a dimension", 'commas: "b, s, 512, t"'),
        ((None, {"x": "b, b("}), "is not a dimension", "one entry per axis"),
        ((3,), "is 3, which is not a spec.", "(3,)"),
    ],
)
def test_a_spec_is_read_where_the_exec_is_made(specs, what, fix):
    with refused(sx.SpecError, what, fix):
        sx.Exec(mean, specs)
    with refused(sx.SpecError, what, fix):
        sx.Exec(lambda x, **_: x, kwarg_shapes={"mask": specs[-1]})


def test_a_strategy_for_a_keyword_that_is_left_out_is_no_error():
    ex = sx.Exec(
        lambda x, mask=1.0: x.sum(), ("s",), buckets={"s": P, "t": P}, kwarg_shapes={"mask": "t"}
    )
    assert ex(ones(3)) == 6


def test_sizes_that_are_left_out_are_those_of_a_finite_ladder():
    x = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    ex = sx.Exec(lambda x: x.sum(), ("b, s",), buckets={"b": [2, 4], "s": sx.Pow2(maximum=8)})
    assert ex.warmup(x) == 2 * 4
    ex.freeze()
    for shape in ((1, 8), (4, 3), (2, 1)):
        assert ex(ones(*shape)) == ones(*shape).sum()
    assert sx.Exec(lambda x: x.sum(), ("b, s",), buckets={"b": [2, 4], "s": P}).warmup(x, s=3) == 2
    with refused(sx.ConfigError, "warmup: sizes for b, but the symbols are b, s.", "maximum="):
        sx.Exec(lambda x: x.sum(), ("b, s",), buckets={"b": [2, 4], "s": P}).warmup(x)


def masked(x, mask=None, scale=1.0):
    scaled = x * scale if isinstance(scale, float) and scale == 1.0 else x * 3
    return scaled.sum() if mask is None else (scaled * mask).sum()


@pytest.mark.parametrize(
    ("specs", "named"),
    [(("s", "s", None), {}), (("s", "s"), {}), (("s",), {"mask": "s"})],
    ids=["all", "two", "by name"],
)
def test_an_argument_with_a_default_may_be_left_out(specs, named):
    ex = sx.Exec(masked, specs, buckets=P, kwarg_shapes=named)
    for n in (3, 4):
        x = ones(n)
        for args, options in (
            ((x,), {}),
            ((x, None), {}),
            ((x,), {"mask": None}),
            ((x, x), {}),
            ((x,), {"mask": x}),
        ):
            assert ex(*args, **options) == masked(*args, **options)
    assert ex.cache_size == 2 + bool(named)  # a keyword is left out, or None
    assert [*ex.map([ones(2), ones(3)])] == [3, 6]
    assert [*ex.map([ones(2), ones(3)], mask=[ones(2), ones(3)])] == [5, 14]
    assert ex.plan(ones(3)).buckets == {"s": 4}


def test_an_argument_without_a_default_is_missed():
    for fn in (lambda x, y: x, lambda x, *ys: x):
        with refused(sx.SpecError, "in_shapes has 2 specs for 1 argument.", "None for a static"):
            sx.Exec(fn, ("s", None), buckets=P)(ones(3))
    ex = sx.Exec(masked, ("s", "s"), buckets=P)
    with refused(sx.SpecError, "in_shapes has 2 specs for 4 arguments.", ""):
        ex(ones(3), None, 1.0, 2.0)


def test_an_argument_left_out_before_others_is_none():
    def fn(x, mask=None, bias=None):
        return x + bias if mask is None else x * mask

    ex = sx.Exec(fn, ("s", "s", "s"), buckets=P)
    for n in (3, 4):
        np.testing.assert_array_equal(ex(ones(n), bias=ones(n)), 2 * ones(n))
    assert ex.cache_size == 1


def test_the_options_that_are_told_are_all_that_there_are():
    (_, fn, *options) = inspect.signature(sx.Exec.__init__).parameters
    assert (fn, options.pop()) == ("fn", "misspelled")
    assert [*_spellings._OPTIONS] == options
