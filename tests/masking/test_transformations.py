"""JAX's transformations of ragged functions: each exact, with poisoned padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.cases import Case
from tests.checks import assert_pad_safe
from tests.tolerance import ITERATED, assert_close

TRANSFORMATIONS: list[Case] = []


def transformed(name, *in_shapes, **options):
    """Add the decorated function to the table."""

    def add(fn):
        TRANSFORMATIONS.append(Case(name, fn, in_shapes, **options))
        return fn

    return add


def loss(x):
    return (jax.nn.softmax(x, -1) * jnp.cos(x)).mean()


def rowwise(row):
    return (jnp.cumsum(row) - row.mean()) * jax.nn.softmax(row)


transformed("grad", "b, s")(jax.grad(loss))
transformed("value_and_grad", "b, s")(jax.value_and_grad(loss))
transformed("hessian", "s")(jax.hessian(loss))
transformed("jacfwd", "s")(jax.jacfwd(lambda x: jnp.cumsum(x) / x.shape[0]))
transformed("jacrev of a ragged result", "s")(jax.jacrev(lambda x: jnp.sort(x) * x.mean()))
transformed("vmap over a ragged axis", "b, s")(jax.vmap(rowwise))
transformed("vmap over the last axis", "s, b")(jax.vmap(rowwise, in_axes=-1, out_axes=-1))
transformed("vmap over a static axis", "4, s")(jax.vmap(rowwise))
transformed("vmap of two", "b, s", "b, s")(jax.vmap(lambda x, y: x.max() * jnp.flip(y)))
transformed("vmap in vmap", "b, s, 3")(jax.vmap(jax.vmap(jax.nn.log_softmax), in_axes=1))
transformed("vmap of grad", "b, s")(jax.vmap(jax.grad(lambda r: rowwise(r).sum())))
transformed("grad of vmap", "b, s")(jax.grad(lambda x: (jax.vmap(rowwise)(x) ** 2).sum()))
transformed("vmap with a name", "b, s")(
    jax.vmap(lambda r: r / jax.lax.psum(r.max(), "rows"), axis_name="rows")
)


@transformed("jvp", "b, s", "b, s")
def tangent(x, t):
    return jax.jvp(lambda v: jax.nn.logsumexp(v, 0), (x,), (t,))


@transformed("vjp", "b, s", "b")
def cotangent(x, g):
    return jax.vjp(lambda v: v.max(1) + v.mean(1), x)[1](g)


@transformed("linearize", "b, s", "b, s")
def linear(x, t):
    return jax.linearize(lambda v: jnp.tanh(v).sum(0) * v.std(), x)[1](t)


@transformed("hessian-vector product", "s", "s")
def curvature(x, t):
    return jax.jvp(jax.grad(lambda v: (v.mean() * jax.nn.softmax(v)).sum()), (x,), (t,))[1]


for _policy in ("everything_saveable", "nothing_saveable", "dots_saveable"):
    _keep = getattr(jax.checkpoint_policies, _policy)
    _block = jax.checkpoint(lambda x: jnp.tanh(x @ x.T / 4) @ x / 4 - x.mean(0), policy=_keep)
    transformed(f"checkpoint, {_policy}", "s, 3")(
        jax.grad(functools.partial(lambda f, x: f(f(x)).sum(), _block))
    )


@jax.custom_jvp
def _clipped(x):
    return jnp.clip(x, -1, 1) - x.mean()


@_clipped.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _clipped(x), t * (x.max() - x)


@jax.custom_vjp
def _scaled(x):
    return x / x.shape[0]


_scaled.defvjp(lambda x: (_scaled(x), x.sum(0)), lambda total, g: (g * total + g.mean(0),))

transformed("custom_jvp", "b, s")(lambda x: (_clipped(x), jax.grad(lambda v: _clipped(v).sum())(x)))
transformed("custom_vjp", "b, s")(jax.grad(lambda x: (_scaled(x) ** 2).sum()))


@transformed("custom_root", "s")
def root(x):
    def newton(f, y):
        return jax.lax.fori_loop(0, 8, lambda _, y: y - f(y) / (3 * y**2 + 1), y)

    def solve(g, y):
        return y / g(1.0)

    def cubic_root(total):
        return jax.lax.custom_root(lambda y: y**3 + y - total, 1.0, newton, solve)

    return jax.value_and_grad(lambda v: cubic_root(v.mean() + 2))(x)


@transformed("custom_linear_solve", "s", loose=ITERATED)
def solved(x):
    def product(v):
        return v * (2 + x**2) + 0.1 * v.mean()

    def conjugate_gradient(matvec, b):
        return jax.scipy.sparse.linalg.cg(matvec, b, maxiter=20)[0]

    return jax.lax.custom_linear_solve(product, x, conjugate_gradient, symmetric=True)


@transformed("scan over the batch of its gradient", "b, s")
def accumulated(x):
    def total(v):
        return jax.lax.scan(lambda c, r: (jnp.tanh(c + r.mean()), c * r), 0.5, v)[1].sum()

    return jax.value_and_grad(total)(x)


@transformed("scan, reversed, of a ragged carry", "b, s")
def backward_in_time(x):
    return jax.lax.scan(lambda c, r: (c * 0.5 + jnp.sort(r), c.max()), x[0], x, reverse=True)


@transformed("while with a ragged state", "b, s")
def halved(x):
    def body(state):
        y, n = state
        return y / 2, n + jnp.arange(y.shape[1])

    start = (jnp.abs(x), jnp.zeros(x.shape[1], int))
    return jax.lax.while_loop(lambda state: state[0].sum() > 0.1, body, start)


@transformed("cond and switch on sizes", "b, s")
def branched(x):
    y = jax.lax.cond(x.shape[0] > 2, lambda v: v.mean(0), lambda v: v.max(0), x)
    return jax.lax.switch(x.shape[1] % 3, [jnp.cumsum, jnp.sort, jnp.negative], y)


@transformed("fori_loop over a size", "b, s")
def looped(x):
    return jax.lax.fori_loop(0, x.shape[1], lambda i, c: c * 0.5 + x[:, i], jnp.zeros(x.shape[0]))


@transformed("map over a ragged axis", "b, s")
def mapped(x):
    return jax.lax.map(rowwise, x)


@transformed("jit in jit", "b, s")
def nested(x):
    return jax.jit(lambda v: jax.jit(jax.grad(loss))(v) + v.mean(1, keepdims=True))(x)


@pytest.mark.parametrize("case", TRANSFORMATIONS, ids=lambda case: case.name)
def test_a_transformed_function_is_exact(case):
    assert_pad_safe(case, case.sizes, 3, "nan")
    assert_pad_safe(case, case.sizes, 1, None)


def test_an_exec_inside_of_another_is_traced_with_it():
    inner = sx.Exec(jax.vmap(rowwise), ("b, s",), buckets=sx.Pow2())
    outer = sx.Exec(lambda x: inner(x).sum(0) + inner(x.T).sum(1), ("b, s",), buckets=sx.Pow2())
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    plain = jax.vmap(rowwise)(x).sum(0) + jax.vmap(rowwise)(x.T).sum(1)
    assert_close(outer(x), plain)
    assert (inner.cache_size, inner.stats.plain_calls) == (0, 4)  # in the trace, and in its proof


@pytest.mark.filterwarnings("ignore:shapeexec:RuntimeWarning")
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap], ids=["jit", "vmap"])
def test_an_exec_inside_of_somebodys_trace_runs_the_plain_function(transform):
    ex = sx.Exec(rowwise, ("s",), buckets=sx.Pow2())
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    x = x if transform is jax.vmap else x[0]
    assert_close(transform(ex)(x), transform(rowwise)(x))
    assert ex.cache_size == 0
