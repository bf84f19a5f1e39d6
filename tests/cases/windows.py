"""Convolutions and pooling with ragged batches, lengths, features and groups."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.cases._case import Case


def conv(x, kernel, *, stride=1, padding="SAME", groups=1, **dilations):
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride,),
        padding,
        dimension_numbers=("NHC", "HIO", "NHC"),
        feature_group_count=groups,
        **dilations,
    )


def pool(x, *, init, combine, window=3, stride=2, padding="SAME"):
    return lax.reduce_window(x, init, combine, (1, window), (1, stride), padding)


def max_pool(x, **options):
    return pool(x, init=-jnp.inf, combine=lax.max, **options)


def greatest_nearby(x):
    x = x + jnp.where(jnp.abs(x) > 0.4, jnp.nan, 0.0)  # NaN whose gradient is none
    return lax.reduce_window(x, -jnp.inf, lax.max, x.shape, (1,) * x.ndim, "SAME")


def average_pool(x):
    sums, counts = (pool(y, init=0.0, combine=lax.add) for y in (x, jnp.ones_like(x)))
    return sums / counts


def small_network(x, kernel):
    y = jax.nn.relu(conv(x, kernel))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")
    return y.mean(1) - y.mean(0).sum(0)


def two_ragged_axes(x, kernel):
    numbers = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, kernel, (1, 2), "SAME", dimension_numbers=numbers)


CASES = (
    Case("convolve", lambda x, y: jnp.convolve(x + 1, y + 1, "same"), ("s", "t")),
    Case("correlate", lambda x, y: jnp.correlate(x + 1, y + 1, "full"), ("s", "t")),
    Case(
        "running sum in windows of the whole axis",
        lambda x: lax.reduce_window(x + 1, 0.0, lax.add, (1, x.shape[1]), (1, 1), "SAME"),
        ("b, s",),
    ),
    Case("convolutional network, dynamic batch", small_network, ("b, 6, 2", "3, 2, 3")),
    Case("conv SAME", conv, ("b, s, 2", "3, 2, 3"), naive="agrees"),
    Case(
        "conv VALID",
        lambda x, kernel: conv(x, kernel, padding="VALID"),
        ("b, s + 2, 2", "3, 2, 3"),
        naive="agrees",
    ),
    Case(
        "conv SAME with stride 2",
        lambda x, kernel: conv(x, kernel, stride=2),
        ("b, s, 2", "3, 2, 3"),
        sizes={"b": 3, "s": 4},
        naive="differs",
    ),
    Case(
        "dilated conv over a softmax",
        lambda x, kernel: conv(jax.nn.softmax(x, 1), kernel, padding=[(2, 2)], rhs_dilation=(2,)),
        ("b, s, 2", "3, 2, 3"),
    ),
    Case(
        "transposed conv",
        lambda x, kernel: conv(x + 1, kernel, padding=[(2, 2)], lhs_dilation=(2,)),
        ("b, s, 2", "3, 2, 3"),
    ),
    Case(
        "conv with stride over two ragged axes",
        two_ragged_axes,
        ("2, 2, b, s", "3, 2, 2, 3"),
        sizes={"b": 3, "s": 4},
    ),
    Case(
        "depthwise conv over ragged features",
        lambda x, kernel: conv(jnp.cos(x), kernel, groups=x.shape[2]),
        ("2, 4, s", "3, 1, s"),
        least={"s": 2},  # JAX does not trace its gradient at 1
        naive="agrees",
    ),
    Case("conv over ragged features", conv, ("2, 4, b", "3, b, 2"), naive="agrees"),
    Case(
        "groups of ragged features",
        lambda x, kernel: conv(x, kernel, groups=2),
        ("2, 4, 2*b", "3, b, 2*s"),
    ),
    Case(
        "a kernel per row",
        jax.vmap(lambda y, k: conv(y, k, groups=2)),
        ("b, s, 4, 2", "b, 3, 1, 4"),
        naive="agrees",
    ),
    Case("max pool", lambda x: max_pool(-jnp.abs(x) - 1), ("b, s",), sizes={"b": 3, "s": 4}),
    Case("max pool VALID", lambda x: max_pool(x, padding="VALID"), ("b, s + 2",), naive="agrees"),
    Case("average pool that counts", average_pool, ("b, s",)),
    Case(
        "forward mode of a max pool",
        lambda x, t: jax.jvp(max_pool, (x,), (t,))[1],
        ("b, s", "b, s"),
        sizes={"b": 3, "s": 4},
    ),
    Case(
        "forward mode of a max pool over NaN",
        lambda x, t: jax.jvp(max_pool, (jnp.where(x > 0, jnp.nan, x),), (t,))[1],
        ("b, s", "b, s"),
        sizes={"b": 3, "s": 4},
    ),
    Case(
        "greatest of a whole axis",
        lambda x: max_pool(-jnp.abs(x) - 1, window=x.shape[1], padding="VALID"),
        ("b, s",),
    ),
    Case("greatest in windows of a whole axis, over NaN", greatest_nearby, ("s",), naive="agrees"),
    Case(
        "greatest in windows of whole axes, of 4,096 elements at capacity, over NaN",
        greatest_nearby,
        ("b, s",),
        sizes={"b": 4, "s": 9},
        naive="agrees",
    ),
    Case(
        "product over windows",
        lambda x: pool(x, init=1.0, combine=lambda a, b: a * b),
        ("b, s",),
        no_gradient="none of reduce_window_mul",
    ),
    Case(
        "least integer of all but the last",
        lambda x: lax.reduce_window(x, np.int32(99), lax.min, (1, x.shape[1] - 1), (1, 2), "VALID"),
        ("b, s + 1",),
        dtypes=np.int32,
        integers=(1, 5),
    ),
    Case(
        "least in windows",
        lambda x: lax.reduce_window(jnp.abs(x) + 1, jnp.inf, lax.min, (1, 3), (1, 2), "SAME"),
        ("b, s",),
    ),
)
