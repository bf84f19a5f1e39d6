"""Loops over ragged axes, branches, calls and what wraps them."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.cases._case import Case


def _cell(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    new = jnp.tanh(carry * 0.7 + x + 0.1)
    return new, new * 2


@jax.custom_vjp
def _clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -0.5, 0.5).sum()


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (g * jnp.sign(x),))


@jax.custom_jvp
def _softplus(x: jax.Array) -> jax.Array:
    return jnp.log1p(jnp.exp(x)).mean()


_softplus.defjvp(lambda p, t: (_softplus(p[0]), (jax.nn.sigmoid(p[0]) * t[0]).mean()))


@jax.custom_batching.custom_vmap
def _mean(x: jax.Array) -> jax.Array:
    return x.mean()


_mean.def_vmap(lambda size, is_batched, x: (x.mean(1), True))


@functools.partial(lax.composite, name="shapeexec.normalized")
def _normalized(x: jax.Array) -> jax.Array:
    return x - x.max(0)


def _halved(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda c: c > 1, lambda c: c / 2, x)


CASES = (
    Case(
        "recurrence over s",
        lambda x: lax.scan(_cell, jnp.zeros(x.shape[0]), x.T),
        ("b, s",),
    ),
    Case(
        "recurrence from the end",
        lambda x: lax.scan(_cell, jnp.zeros(x.shape[0]), x.T, reverse=True),
        ("b, s",),
    ),
    Case(
        "static loop over ragged state",
        lambda x: lax.scan(lambda c, _: (_cell(c, c)[0], None), x, None, length=2)[0].sum(0),
        ("b, s",),
    ),
    Case(
        "as many steps as s",
        lambda x: lax.fori_loop(0, x.shape[1], lambda i, c: c * 0.5 + i, x.sum(1)),
        ("b, s",),
        no_gradient="while",
    ),
    Case(
        "while on a ragged state",
        lambda x: lax.while_loop(lambda c: (c < 9).any(), lambda c: c + 1.5, jnp.abs(x)),
        ("b, s",),
        naive="agrees",
        no_gradient="while",
    ),
    Case(
        "loops that never end on padding",
        lambda x: lax.scan(lambda c, y: (c + _halved(y), None), 0.0, jnp.exp(x) / x**2)[0],
        ("s",),
        naive="never ends",
        no_gradient="while",
    ),
    Case("a rule for vmap", _mean, ("s",), no_gradient="custom_vmap"),
    Case(
        "a composite",
        lambda x: _normalized(-jnp.abs(x) - 1),
        ("b, s",),
        no_gradient="none of composite",
    ),
    Case(
        "a linear call",
        lambda x: jax.custom_derivatives.linear_call(
            lambda r, y: (y * r).mean(0),
            lambda r, g: jnp.broadcast_to(g, r.shape) * r,
            lax.stop_gradient(x),
            x,
        ),
        ("b, s",),
    ),
    Case(
        "a branch for the platform",
        lambda x: lax.platform_dependent(x, cpu=lambda x: x.mean(), default=lambda x: x.max()),
        ("s",),
    ),
    Case(
        "branch on data",
        lambda x: lax.cond(x[0, 0] > 0, lambda y: y.mean(1), lambda y: y.max(1), x),
        ("b, s",),
    ),
    Case("nested jit", jax.jit(lambda x: jax.jit(jnp.mean)(x) + x), ("b, s",)),
    Case("remat", jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).mean(1)), ("b, s",)),
    Case("custom_vjp", lambda x: _clipped(x) + x.mean(), ("b, s",)),
    Case("custom_jvp", lambda x: _softplus(x) * x, ("b, s",)),
    Case(
        "vmap over the ragged batch",
        jax.vmap(lambda row: row / row.std()),
        ("b, s",),
        least={"s": 2},
    ),
    Case("a branch on a size", lambda x: x.mean() if x.shape[1] > 4 else x.max(), ("b, s",)),
    Case(
        "a branch on parity",
        lambda x: x.min(1) if x.shape[1] % 2 else x.prod(1),
        ("b, s",),
    ),
)
