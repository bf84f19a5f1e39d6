"""Gradients of maxima: of each row's, of equal ones, and where XLA computes a row twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking._context import RuleContext
from shapeexec.tools._validate import gradient_of
from tests.execution.support import assert_same
from tests.tolerance import assert_close

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [
        [1, 3, 3, 2, -1],
        [-INF, -INF, -INF, -INF, -INF],
        [INF, 2, INF, -INF, 0],
        [0, NAN, 7, NAN, 1],
        [-5, -5, -5, -5, -5],
    ],
    np.float32,
)
EXTREMA = {
    "of rows": lambda x: x.max(-1),
    "of columns": lambda x: x.min(0),
    "kept": lambda x: x.max(1, keepdims=True),
    "of all": lambda x: x[:2].max() + x[2:].min(),
    "of an inner axis": lambda x: jnp.stack([x, 2 * x]).max((0, 2)),
    "mapped": jax.vmap(jnp.max),
    "of half a precision": lambda x: x.astype(jnp.bfloat16).max(-1),
}


def value_and_gradient(fn):
    return jax.value_and_grad(lambda x: fn(x).astype(np.float32).sum())


@pytest.mark.parametrize("poison", ["nan", "max", "garbage"])
@pytest.mark.parametrize("fn", EXTREMA.values(), ids=EXTREMA)
def test_equal_ones_share_and_what_is_not_finite_stays_so(fn, poison):
    ex = sx.Exec(value_and_gradient(fn), ("b, s",), buckets=sx.Pow2(), poison=poison)
    for rows in (ROWS, ROWS[:3], ROWS[:, :3], ROWS[::-1, 1:4]):
        with jax.disable_jit():  # of a NaN row XLA makes 0
            want = value_and_gradient(fn)(rows)
        assert_same(ex(rows), want)


def centred(x):
    """What XLA computes in several fusions, which round differently."""
    scaled = jax.lax.cond(x.sum() > 0.37, lambda v: v.cumsum(0), lambda v: v * 2, x)
    y = jnp.tanh(scaled) * 3
    z = y - y.mean(1, keepdims=True)
    return (
        x,
        jnp.outer(y.mean(-1), x.max(-1)),
        jnp.einsum("bs,bs->b", jnp.tanh(scaled) * 2, y.at[..., -1].add(3)),
        z > y,
        jnp.einsum("bs,bs->b", z, x),
        x @ x.T,
        jnp.outer(y.mean(-1), z.max(-1)),
    )


def test_no_gradient_is_lost_where_a_row_is_computed_twice():
    ex = sx.Exec(centred, ("b, s",), buckets=sx.Pow2())
    gradients = gradient_of(ex.settings)
    both = ex.variant(fn=lambda x: (centred(x), gradients(x)))
    random = np.random.default_rng(0)
    for shape in ((3, 6), (3, 5), (4, 7), (4, 6)):
        x = random.normal(size=shape).astype(np.float32)
        with jax.disable_jit():  # each equation by itself
            want = gradients(x)
        assert_close(both(x)[1], want)


@pytest.mark.parametrize("spec", ["s, 4", "s, t"])
def test_an_extremum_is_found_without_one_equal_element_in_a_static_row_too(spec, monkeypatch):
    def gradient(x):
        return jax.grad(lambda x: jnp.tanh(x).sum(0).min(keepdims=True).sum())(x)

    as_it_is = RuleContext.bind

    def nowhere_equal(ctx, *args, **named):  # what two fusions that round differently make of `eq`
        result = as_it_is(ctx, *args, **named)
        return jnp.zeros_like(result) if ctx.primitive == "eq" else result

    monkeypatch.setattr(RuleContext, "bind", nowhere_equal)
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    assert_close(sx.Exec(gradient, (spec,), buckets=sx.Pow2())(x), gradient(x), scale=0)
