"""Advice on primitives without a pad-safe rule, and on those whose rule has conditions.

What arises on a TPU only is met under that name: the plain function runs on the CPU that there is.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shapeexec as sx
from shapeexec import masking
from shapeexec.masking._registry import RULES
from shapeexec.masking.rules import random
from tests.advice.row import Advice, exact_ways, option, runs, somewhat, value

X, PLANE, SQUARE = somewhat(5), somewhat(5, 3), somewhat(3, 3)
HEADS = somewhat(1, 5, 4, 8)
HALVES = np.arange(6, dtype=np.uint16).reshape(3, 2)
KERNEL = np.ones((1, 1, 2), np.float32)


def refused(
    name: str,
    fn: Callable[[Any], Any],
    fix: str,
    mended: Callable[[Any], Any],
    x: Any = X,
    spec: str = "s, ...",
) -> Advice:
    """A function without a pad-safe rule, what the Fix line tells, and its symbols made exact."""
    return Advice(
        name,
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: runs(fn, x, in_shapes=(spec,)),
        fix,
        lambda told: [
            runs(mended, x, in_shapes=(spec,)),
            *(runs(fn, x, in_shapes=(spec,), **ways) for ways in exact_ways(told)),
        ],
        lambda: [jax.jit(mended)(x), *[jax.jit(fn)(x)] * 2],
    )


def exact(
    name: str,
    fn: Callable[[Any], Any],
    x: Any = X,
    *,
    spec: str = "s, ...",
    fix: str = "make `s` exact",
    under: Callable[[], Any] = contextlib.nullcontext,
) -> Advice:
    """A function with no way out but exact symbols, by each of the two ways that are told."""

    def ran(**options: Any) -> Any:
        with under():
            return runs(fn, x, in_shapes=(spec,), **options)

    return Advice(
        name,
        "exact symbols",
        sx.UnsupportedPrimitiveError,
        ran,
        fix,
        lambda told: [ran(**ways) for ways in exact_ways(told)],
        lambda: [fn(x)] * 2,
    )


def by_reference(x: Any) -> Any:
    return jax.new_ref(x)[...] * 2


def sharded(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.PartitionSpec("d")
    each = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=over, out_specs=over)
    return jax.jit(each)(x) + 1


def summed_over_devices(x: Any) -> Any:
    return lax.psum(x, "d")


def on_devices(run: Callable[[Any], Any], x: Any) -> Any:
    """On each device's part, where `pad_safe` masks, and an Exec calls the plain function."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    each = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the Exec says that it pads nothing here
        return jax.jit(each)(x)


def convolved(x: Any, strides: Any, dilations: Any) -> Any:
    return lax.conv_general_dilated(
        jnp.concatenate([x, x])[None, None], KERNEL, strides, "VALID", rhs_dilation=dilations
    )


def with_table(table: Any) -> Any:
    return sx.dot_product_attention(HEADS, HEADS, HEADS, sx.RelativeBias(table, left=3))


def drawn(x: Any) -> Any:
    return x + jax.random.uniform(jax.random.key(3), x.shape)


def few_counters() -> Any:
    """As if there were 16 counters, and not 2^32: nobody draws 2^31 numbers for a test."""
    return mock.patch.object(random, "_COUNTERS", 16)


def drawn_by(key: Any) -> Callable[[Any], Any]:
    return lambda x: x + jax.random.normal(key, x.shape)


def key_of(told: str) -> Any:
    """The key that a Fix line tells to make."""
    return value(told[told.index("jax.random.key") :].split(")", maxsplit=1)[0] + ")", seed=3)


def ranked(x: Any) -> Any:
    return lax.linalg.eigh(x @ x.T, sort_eigenvalues=False)[1]


def gathered(x: Any, mode: str) -> Any:
    """Two rows; JAX has no such equation of mode "one_hot" at any size."""
    return jnp.asarray(x).at[jnp.array([1, 2])].get(mode=mode)


def largest(x: Any) -> Any:
    """The largest singular value alone, which JAX finds on a TPU only."""
    return lax.linalg.svd(x, full_matrices=False, compute_uv=False, subset_by_index=(0, 1))


def on_tpu() -> Any:
    """What asks for the name of the platform hears of a TPU."""
    return mock.patch.object(jax, "default_backend", return_value="tpu")


def by_own_rule(x: Any, axes: Any, *named: Any) -> Any:
    """A sum of rows by a rule that fills these axes, which is registered as a user does it."""

    def rule(ctx: Any, operand: Any, **params: Any) -> Any:
        """Fill: 0 behind the axes."""
        return ctx.bind(ctx.fill(0, masking.zero(operand.dtype), axes=axes), **params)

    with mock.patch.dict(RULES):
        RULES.pop("reduce_sum")
        for register in named or (masking.register("reduce_sum"),):
            register(rule)
        return runs(lambda x: x.sum(1), x, in_shapes=("b, s",))


def approximate(name: str, fn: Callable[[Any], Any], sign: int, fix: str) -> Advice:
    """The first elements by value, of which a TPU misses some, and by what the Fix line tells."""

    def ran(fn: Callable[[Any], Any], **options: Any) -> Any:
        with on_tpu():
            return runs(fn, X, **options)

    return Advice(
        name,
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: ran(fn),
        fix,
        lambda told: [
            ran(lambda x: sign * value(told.split()[0].rstrip(";"))(sign * x, 2)[0]),
            *(ran(fn, **ways) for ways in exact_ways(told)),
        ],
        lambda: [fn(X)] * 3,
    )


ROWS = [
    Advice(
        "a rule of no primitive",
        "rules",
        sx.ConfigError,
        lambda: by_own_rule(PLANE, (1,), masking.register(jnp.sum)),
        'register("reduce_sum", ...) or register(jax.lax.reduce_sum_p, ...)',
        lambda told: [
            by_own_rule(PLANE, (1,), value(each.replace(", ...", ""), register=masking.register))
            for each in told.split(" or ")
        ],
        lambda: [PLANE.sum(1)] * 2,
    ),
    Advice(
        "axes from the end",
        "rules",
        sx.ConfigError,
        lambda: by_own_rule(PLANE, (-1,)),
        "axes=(1,): axes count from 0",
        lambda told: by_own_rule(PLANE, option(told.split(": ")[0], "axes")),
        lambda: PLANE.sum(1),
    ),
    exact("a reference", by_reference),
    exact("sharding", sharded),
    Advice(
        "a sum over devices",
        "exact symbols",
        sx.UnsupportedPrimitiveError,
        lambda: on_devices(
            lambda x: sx.masking.pad_safe(summed_over_devices, ("s",))({"s": 3}, x), X
        ),
        "run the function by sx.Exec, and make `s` exact",
        lambda told: [
            on_devices(sx.Exec(summed_over_devices, ("s",), **ways), X) for ways in exact_ways(told)
        ],
        lambda: [X] * 2,
    ),
    exact(
        "a ragged base dilation",
        lambda x: lax.reduce_window(
            x, 0.0, lax.add, (2,), (1,), "VALID", base_dilation=(x.shape[0],)
        ),
    ),
    exact("a ragged stride", lambda x: convolved(x, (x.shape[0],), (1,))),
    exact("a ragged dilation", lambda x: convolved(x, (1,), (x.shape[0],))),
    exact(
        "a regrouped axis",
        lambda x: lax.bitcast_convert_type(x, jnp.uint32),
        HALVES,
        spec="b, s",
    ),
    exact(
        "ragged heads",
        lambda x: sx.dot_product_attention(x, x, x),
        HEADS,
        spec="_, _, n, _",
        fix="make `n` exact",
    ),
    exact("a ragged table", with_table, somewhat(4, 7), spec="_, n", fix="make `n` exact"),
    exact("too many random numbers", drawn, under=few_counters),
    approximate(
        "the greatest on a TPU",
        lambda x: lax.approx_max_k(x, 2)[0],
        1,
        "jax.lax.top_k; or make `s`",
    ),
    approximate(
        "the least on a TPU",
        lambda x: lax.approx_min_k(x, 2)[0],
        -1,
        "jax.lax.top_k of -x; or make `s`",
    ),
    Advice(
        "a generator by its key",
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: runs(drawn_by(jax.random.key(3, impl="rbg")), X),
        'jax.random.key(seed, impl="threefry2x32")',
        lambda told: [
            runs(drawn_by(key_of(told)), X),
            *(
                runs(drawn_by(jax.random.key(3, impl="rbg")), X, **ways)
                for ways in exact_ways(told)
            ),
        ],
        lambda: [
            drawn_by(jax.random.key(3))(X),
            *[drawn_by(jax.random.key(3, impl="rbg"))(X)] * 2,
        ],
    ),
    Advice(
        "the device's generator",
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: runs(lambda x: x + lax.rng_uniform(0.0, 1.0, x.shape), X),
        'jax.random.bits(jax.random.key(seed, impl="threefry2x32"), shape)',
        lambda told: runs(lambda x: value(told.split("; ")[0], seed=3, shape=x.shape), X),
        lambda: jax.random.bits(jax.random.key(3), X.shape),
    ),
    refused(
        "null vectors",
        lambda x: abs(jnp.linalg.svd(x, full_matrices=True)[0]),
        "full_matrices=False, which leaves them out; or make `s` exact",
        lambda x: abs(jnp.linalg.svd(x, full_matrices=False)[0]),
        PLANE,
    ),
    Advice(
        "a subset of singular values",
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: runs(largest, SQUARE, in_shapes=("s, s",)),
        "subset_by_index=None, then a slice; or make `s` exact",
        lambda told: runs(
            lambda x: lax.linalg.svd(
                x, compute_uv=False, subset_by_index=option(told, "subset_by_index")
            )[:1],
            SQUARE,
            in_shapes=("s, s",),
        ),
        lambda: np.linalg.svd(SQUARE)[1][:1],
    ),
    Advice(
        "one-hot gathers",
        "unsupported primitives",
        sx.UnsupportedPrimitiveError,
        lambda: runs(lambda x: gathered(x, "one_hot"), X),
        'mode="clip" or mode="fill"',
        lambda told: [
            runs(functools.partial(gathered, mode=value(each.partition("=")[2])), X)
            for each in told.split(" or ")
        ],
        lambda: [X[1:3]] * 2,
    ),
    refused(
        "eigenvalues in no order",
        ranked,
        "sort_eigenvalues=True and subset_by_index=None, then jnp.flip or a slice; or make `s`",
        lambda x: jnp.flip(
            lax.linalg.eigh(x @ x.T, sort_eigenvalues=True, subset_by_index=None)[1]
        ),
        PLANE,
    ),
]
