"""Advice to code that asks of a size what only a number can answer."""

import math
from collections.abc import Callable
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.signal
import numpy as np
from jax import lax

import shapeexec as sx
from tests.advice import row
from tests.advice.row import (
    Advice,
    exact_ways,
    instead,
    quoted,
    runs,
    somewhat,
    strategies,
    value,
)

X, ONE = somewhat(5), somewhat(1)
KEY = jax.random.key(3)


def at_sizes(fn: Callable[..., Any], run: Callable[..., Any] = runs) -> list[Any]:
    return [run(fn, x) for x in (X, ONE)]


def plainly(fn: Callable[..., Any]) -> list[Any]:
    return [fn(x) for x in (X, ONE)]


def in_place(
    name: str,
    plain: Callable[[Any], Any],
    fix: str,
    use: Callable[[Any, Any], Any] = lambda x, made: made,
) -> Advice:
    """A call that wants a number, and what to write in its place; `use` is the code around it."""
    return Advice(
        name,
        "inconclusive",
        sx.InconclusiveShapeError,
        lambda: runs(plain, X),
        fix,
        lambda told: at_sizes(lambda x: use(x, instead(told)(x))),
        lambda: plainly(plain),
    )


def rewritten(
    name: str, plain: Callable[[Any], Any], fix: str, mended: Callable[[Any], Any], x: Any = X
) -> Advice:
    """A program, and what one makes of it who follows advice that is no code."""
    return row.rewritten(
        name,
        "inconclusive",
        sx.InconclusiveShapeError,
        fn=plain,
        fix=fix,
        mended=mended,
        x=x,
        plain=plain,
    )


def exact(name: str, plain: Callable[[Any], Any], fix: str = "make `s` exact") -> Advice:
    """A program with no way out but exact sizes, by each of the two ways that are told."""

    return Advice(
        name,
        "exact symbols",
        sx.InconclusiveShapeError,
        lambda: runs(plain, X),
        fix,
        lambda told: [runs(plain, X, **options) for options in exact_ways(told)],
        lambda: [plain(X)] * 2,
    )


def times(x: Any, made: Any) -> Any:
    return x * made


def looped(x: Any) -> Any:
    total = 0.0
    for i in range(x.shape[0]):
        total = total + x[i]
    return total


def scanned(x: Any) -> Any:
    return lax.scan(lambda total, row: (total + row, None), 0.0, x)[0]


def counted(x: Any) -> Any:
    x = jnp.asarray(x)
    return lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], 0.0)


def two_exact(x: Any) -> Any:
    return x * sum(range(x.shape[0])) + sum(range(x.shape[1]))


def eval_advice(
    name: str, fn: Callable[..., Any], fix: str, follow: Callable[[str], Any]
) -> Advice:
    """Advice where there is no call, and the answer holds of all sizes."""
    return Advice(
        name,
        "constraints",
        sx.InconclusiveShapeError,
        lambda: sx.eval_shape(fn, sx.Shape("float32", "s")),
        fix,
        follow,
        lambda: jax.eval_shape(fn, jax.ShapeDtypeStruct((8,), np.float32)).shape,
    )


def branched(x: Any) -> Any:
    return x[:3] if x.shape[0] > 3 else x


def halved(x: Any) -> Any:
    return x[:3] if 1.5 * x.shape[0] > 3 else x


def by_constraint(fn: Callable[..., Any]) -> Callable[[str], Any]:
    """The shape at 8, by the constraint of the Fix line that is first."""

    def follow(told: str) -> Any:
        constraint = told.split('constraints="', 1)[1].partition('"')[0]
        shape = sx.eval_shape(fn, sx.Shape("float32", "s"), constraints=constraint)
        return shape.evaluate(s=8).dims

    return follow


def not_at_97(x: Any) -> Any:
    return x[:3] * (1.0 / (x.shape[0] - 97))


ROWS = [
    in_place("len", lambda x: x * len(x), "write `x.shape[0]`", times),
    in_place(
        "len of an expression", lambda x: len(x + x) / x, "`(x + x).shape[0]`", lambda x, n: n / x
    ),
    in_place("int", lambda x: x * int(x.shape[0]), "write `x.shape[0]` without int()", times),
    in_place("float", lambda x: x * float(x.shape[0]), "write `1.0 * x.shape[0]`", times),
    in_place(
        "float of a quotient",
        lambda x: x * float(x.shape[0] / 2),
        "`1.0 * (x.shape[0] / 2)`",
        times,
    ),
    in_place("pow", lambda x: x * pow(x.shape[0], 2, 5), "write `x.shape[0] ** 2 % 5`", times),
    in_place(
        "sqrt", lambda x: x * sqrt(x.shape[0]), "write `math.sqrt(x.shape[0])`: by that", times
    ),
    in_place(
        "math.modf",
        lambda x: x * math.modf(x.shape[0] / 2)[0] + math.modf(x.shape[0] / 2)[1],
        "write `(math.fmod((x.shape[0] / 2), 1), ",
        lambda x, parts: x * parts[0] + parts[1],
    ),
    in_place(
        "math.modf of a size below 0",
        lambda x: x * sum(math.modf((x.shape[0] - 9) / 2)),
        "write `(math.fmod(",
        lambda x, parts: x * sum(parts),
    ),
    in_place(
        "jnp.hanning", lambda x: jnp.hanning(x.shape[0]), "write `0.5 + 0.5 * jnp.cos(jnp.pi * u)`"
    ),
    in_place("np.hanning", lambda x: np.hanning(x.shape[0]), "write `0.5 + 0.5 * jnp.cos"),
    in_place("by name", lambda x: jnp.hanning(M=x.shape[0]), "arange(x.shape[0])"),
    in_place("jnp.hamming", lambda x: jnp.hamming(x.shape[0]), "write `0.54 + 0.46 *"),
    in_place("jnp.blackman", lambda x: jnp.blackman(x.shape[0]), "write `0.42 + 0.5 *"),
    in_place("jnp.bartlett", lambda x: jnp.bartlett(x.shape[0]), "write `1 - abs(u)`"),
    in_place("jnp.kaiser", lambda x: jnp.kaiser(x.shape[0], 2.5), "write `jnp.i0(2.5 *"),
    in_place(
        "jnp.logspace", lambda x: jnp.logspace(0, 2, num=x.shape[0]), "10.0 ** jnp.linspace(0, 2"
    ),
    in_place(
        "jnp.geomspace", lambda x: jnp.geomspace(2.0, 3.0, x.shape[0]), "2.0 * (3.0 / 2.0) **"
    ),
    in_place(
        "jnp.diag_indices",
        lambda x: jnp.diag_indices(x.shape[0]),
        "write `(jnp.arange(x.shape[0]),",
    ),
    in_place("jnp.vander", lambda x: jnp.vander(x, x.shape[0]), "write `x[:, None] ** jnp.arange"),
    in_place(
        "jax.random.orthogonal",
        lambda x: jax.random.orthogonal(jax.random.key(3), x.shape[0]),
        "write `q * jnp.sign(jnp.diagonal(r))` with `q, r = ",
    ),
    Advice(
        "np.ones",
        "inconclusive",
        sx.InconclusiveShapeError,
        lambda: runs(lambda x: x * np.ones(x.shape[0]), X),
        "write `jnp.ones`: NumPy wants a number",
        lambda told: runs(lambda x: x * value(quoted(told)[0])(x.shape[0]), X),
        lambda: X,
    ),
    Advice(
        "numpy.random",
        "inconclusive",
        sx.InconclusiveShapeError,
        lambda: runs(lambda x: x + np.random.default_rng(0).normal(size=x.shape), X),
        "write `jax.random.normal` with a key",
        lambda told: runs(lambda x: x + value(quoted(told)[0])(KEY, x.shape), X),
        lambda: X + jax.random.normal(KEY, X.shape),
    ),
    rewritten("a loop over a range", looped, "loop with `jax.lax.scan`", scanned),
    rewritten("a loop by number", looped, "or `jax.lax.fori_loop`", counted),
    rewritten(
        "a loop over rows", lambda x: sum(row for row in jnp.asarray(x)), "`jax.lax.scan`", scanned
    ),
    rewritten(
        "a list times a size",
        lambda x: jnp.stack([x] * x.shape[0]),
        "write `jnp.broadcast_to(x, (n, *x.shape))` for `jnp.stack([x] * n)`",
        lambda x: jnp.broadcast_to(x, (x.shape[0], *x.shape)),
    ),
    rewritten(
        "int of a quotient",
        lambda x: x[: int(x.shape[0] / 2)],
        "`n // 2` for `int(n / 2)`",
        lambda x: x[: x.shape[0] // 2],
    ),
    rewritten(
        "int of a share",
        lambda x: x[: int(0.9 * x.shape[0])],
        "`n * 9 // 10` for `int(0.9 * n)`",
        lambda x: x[: x.shape[0] * 9 // 10],
    ),
    rewritten(
        "approx_max_k",
        lambda x: lax.approx_max_k(x, 2, aggregate_to_topk=False)[0][:2],
        "leave aggregate_to_topk= out, for the 2 greatest themselves",
        lambda x: lax.approx_max_k(x, 2)[0],
        np.array([3.0, 2.0, 1.0], np.float32),
    ),
    rewritten(
        "detrend",
        lambda x: jax.scipy.signal.detrend(x, bp=[2]),
        "`jnp.concatenate([detrend(x[:k]), detrend(x[k:])])` for bp=[k]",
        lambda x: jnp.concatenate(
            [jax.scipy.signal.detrend(x[:2]), jax.scipy.signal.detrend(x[2:])]
        ),
    ),
    rewritten(
        "an error of ours while tracing",
        lambda x: sx.dot_product_attention(
            x,
            x,
            x,
            mask=sx.BlockMask.from_mask(sx.Causal(), query_size=x.shape[0], key_size=x.shape[0]),
        ),
        "mask=mask in place of mask=BlockMask.from_mask(mask, ...)",
        lambda x: sx.dot_product_attention(x, x, x, mask=sx.Causal()),
        somewhat(5, 2, 4),
    ),
    exact("jnp.partition", lambda x: jnp.partition(x, x.shape[0] // 2)),
    exact("jnp.pad", lambda x: jnp.pad(x, 2, mode="wrap")),
    exact("jnp.histogram", lambda x: jnp.histogram(x, bins=x.shape[0])[0]),
    exact("jnp.array_split", lambda x: jnp.array_split(x, x.shape[0])[-1]),
    exact("jnp.vander with more", lambda x: jnp.vander(x, x.shape[0], increasing=True)),
    exact("math.frexp", lambda x: x * math.frexp(x.shape[0])[0]),
    exact("a loop", looped, "loop with"),
    Advice(
        "of two symbols",
        "exact symbols",
        sx.InconclusiveShapeError,
        lambda: runs(two_exact, somewhat(2, 3), in_shapes=("b, s",)),
        'make `b` and `s` exact: on_unsupported="exact", or "b": sx.Exact(), "s": sx.Exact() in',
        lambda told: runs(two_exact, somewhat(2, 3), in_shapes=("b, s",), buckets=strategies(told)),
        lambda: two_exact(somewhat(2, 3)),
    ),
    eval_advice(
        "a branch", branched, 'constraints="s > 3" or constraints="s <= 3"', by_constraint(branched)
    ),
    eval_advice(
        "a division",
        lambda x: x.reshape(-1, 4),
        'write "4*s" in the place of "s", if that holds for all sizes',
        lambda told: (
            sx.eval_shape(lambda x: x.reshape(-1, 4), sx.Shape("float32", quoted(told, '"')[0]))
            .evaluate(s=2)
            .dims
        ),
    ),
    eval_advice(
        "a number of the host",
        halved,
        "give the size of `s` as an int in the place of the symbol",
        lambda told: sx.eval_shape(halved, sx.Shape("float32", 8)).dims,
    ),
    eval_advice(
        "an error at some sizes",
        not_at_97,
        "give the size of `s` as an int",
        lambda told: sx.eval_shape(not_at_97, sx.Shape("float32", 8)).dims,
    ),
    eval_advice(
        "a loop without a call",
        lambda x: x * sum(range(x.shape[0])),
        "; or give the size of `s` as an int in the place of the symbol",
        lambda told: (
            sx.eval_shape(lambda x: x * sum(range(x.shape[0])), sx.Shape("float32", 8)).dims
        ),
    ),
]
