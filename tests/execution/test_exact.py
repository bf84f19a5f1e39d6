"""on_unsupported="exact": right answers, and only the symbols that are the matter become exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

import shapeexec as sx
from shapeexec.masking._registry import RULES
from tests.execution.support import assert_runs_as, ones

P = sx.Pow2()


def with_noise(x, axis):
    """The rbg generator draws for a shape as a whole."""
    noise = jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape[axis : axis + 1])
    return x.swapaxes(axis, -1) + noise


def dilated_by_half(x):
    """Of both symbols, which the rule's error names, only one has to be exact."""
    dilation, kernel = (1, x.shape[1] // 2), jnp.ones((1, 1, 1, 2))
    return jax.lax.conv_general_dilated(
        x[None, None], kernel, (1, 1), "VALID", rhs_dilation=dilation
    )


PROGRAMS = {
    "rbg": (lambda x: with_noise(x, 1), "s"),
    "rbg of columns": (lambda x: with_noise(x, 0), "b"),
    "range": (lambda x: sum(x[:, i] for i in range(x.shape[1])), "s"),
    "rows": (lambda x: sum(row.sum() for row in x), "b"),
    "columns": (lambda x: jnp.stack([column * 2 for column in x.T]), "s"),
    "len": (lambda x: x * list(range(9))[len(x)], "b"),
    "float": (lambda x: x * float(x.shape[1]), "s"),
    "sqrt": (lambda x: x[:, : int(x.shape[1] ** 0.5)], "s"),
    "np.zeros": (lambda x: x + np.zeros(x.shape[0])[:, None], "b"),
    "a ragged dilation": (dilated_by_half, "s"),
    "both": (lambda x: with_noise(x, 0).T + with_noise(x, 1), "bs"),
    "one after the other": (lambda x: with_noise(x, 1) * float(len(x)), "bs"),
}


@pytest.mark.parametrize(("fn", "symbols"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_cannot_be_padded_runs_at_its_exact_size_and_the_rest_padded(fn, symbols):
    ex = sx.Exec(fn, ("b, s",), buckets=P, on_unsupported="exact", poison="nan")
    for shape in ((3, 5), (3, 6), (2, 5)):
        assert_runs_as(fn, ex, ones(*shape))
    assert ex.stats.exact == dict.fromkeys(symbols, 3)
    assert ex.plan(ones(3, 5)).exact == tuple(symbols)


def test_a_symbol_with_a_remainder_is_told_by_its_own_name():
    def fn(x):
        halves = x[..., 0::2] + x[..., 1::2]  # fits if `s` is even
        return with_noise(halves, 2)

    with pytest.raises(sx.UnsupportedPrimitiveError, match="over padded `s`") as caught:
        sx.Exec(fn, ("1, 1, s",), buckets=P)(ones(1, 1, 6))
    assert caught.value.symbols == {"s"}
    ex = sx.Exec(fn, ("1, 1, s",), buckets=P, on_unsupported="exact")
    assert_runs_as(fn, ex, ones(1, 1, 6))
    assert ex.stats.exact == {"s": 1}


def test_an_exact_symbol_has_a_reason():
    ex = sx.Exec(
        lambda x: with_noise(x, 1) * float(len(x)), ("b, s",), buckets=P, on_unsupported="exact"
    )
    told = str(ex.explain(ones(3, 5)))
    assert "b is exact: the function needs the size as a Python int" in told
    assert "s is exact: no pad-safe rule for `random_bits` over padded `s`.   <- " in told
    assert ex.plan(ones(3, 5)).reasons.keys() == {"b", "s"}


def test_what_no_symbol_helps_is_an_error():
    def fn(x):
        return with_noise(x, 0)

    ex = sx.Exec(fn, ("s",), buckets=P)
    with pytest.raises(sx.UnsupportedPrimitiveError):
        ex(ones(3))
    assert ex.stats.exact == {}


def test_a_symbol_that_is_told_leaves_the_others_ragged():
    def fn(x):
        return int(x.shape[0]) * x.sum()

    ex = sx.Exec(fn, ("b, s",), buckets=P, on_unsupported="exact")
    for shape in ((3, 5), (3, 6), (4, 7)):
        assert_runs_as(fn, ex, ones(*shape))
    assert ex.stats.exact == {"b": 3}
    assert ex.plan(ones(3, 5)).buckets == {"b": 3, "s": 8}


def test_other_structures_stay_ragged():
    def fn(x):
        return jax.new_ref(x)[...] if x.ndim > 1 else x * 2

    ex = sx.Exec(fn, ("b, ...",), buckets=P, on_unsupported="exact")
    ex(ones(3))
    ex(ones(3, 4))
    assert ex.plan(ones(3)).exact == ()


def twice_of_nobody():
    """A primitive that doubles its operand and has no rule."""
    primitive = Primitive("twice_of_nobody")
    primitive.def_impl(lambda x: 2 * x)
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))
    batching.defvectorized(primitive)
    return primitive


def test_what_was_exact_for_want_of_a_rule_is_padded_once_there_is_one():
    primitive = twice_of_nobody()
    ex = sx.Exec(primitive.bind, ("s",), buckets=P, on_unsupported="exact")
    np.testing.assert_array_equal(ex(ones(3)), 2 * ones(3))
    np.testing.assert_array_equal(ex.map([ones(3)])[0], 2 * ones(3))
    assert ex.plan(ones(3)).exact == ("s",)
    before = ex.stats.exact

    @sx.masking.register(primitive)
    def double(ctx, x):
        """Keep: each element is its own."""
        return ctx.bind(x)

    try:
        for size in (3, 4):
            np.testing.assert_array_equal(ex(ones(size)), 2 * ones(size))
        np.testing.assert_array_equal(ex.map([ones(3)])[0], 2 * ones(3))
        assert ex.plan(ones(3)).exact == ()
        assert [row.sizes for row in ex.graphs][2:] == ["s=4", "map of 1: s=4"]
        assert ex.stats.exact == before
    finally:
        del RULES[primitive.name]
