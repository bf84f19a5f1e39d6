"""Functions of one example, whose sums over examples are folded, or cannot be."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

IS_EXAMPLE = np.array([True, True, False, True, False])
ROWS, WIDTH, HIDDEN = 3, 7, 11  # an outer product is larger than all the rows of the examples


def normal(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), np.float32)


X = normal(len(IS_EXAMPLE), ROWS, WIDTH)
Y = normal(len(IS_EXAMPLE), ROWS, HIDDEN)
NUMBER = jnp.asarray([4, 0, 2, 1, 3], np.int32)
SHARED, TABLE = normal(HIDDEN), normal(WIDTH, HIDDEN)


def product(x: Any, y: Any) -> Any:
    """What a dense layer's gradient is: the sum over rows of outer products."""
    return x.T @ y


def outer(a: Any, b: Any) -> Any:
    return a[:, None] @ b[None, :]  # jnp.outer multiplies, which XLA fuses into a sum by itself


def by_layers(x, y, n):
    def step(state, row):
        return state + x[0, 0], outer(row[:WIDTH], row[WIDTH:])

    return lax.scan(step, x[0], jnp.concatenate([x, y], axis=1))[1]


def by_rows(start, **how):
    def fn(x, y, n):
        def step(total, row):
            position, a, b = row
            new = total + outer(a, b)
            new = new - 0.5 * outer(a, SHARED)
            return jnp.where(position < n, new, total), None

        rows = (jnp.arange(ROWS), x, y)
        return lax.scan(step, start + jnp.zeros((WIDTH, HIDDEN)), rows, **how)[0]

    return fn


def nested(x, y, n):
    def step(total, rows):
        a, b = rows

        def inner(total, scale):
            return total + outer(scale * a, b), None

        added, _ = lax.scan(inner, jnp.zeros((WIDTH, HIDDEN)), jnp.arange(2.0))
        return total + added, None

    return lax.scan(step, jnp.zeros((WIDTH, HIDDEN)), (x, y))[0]


def added_in_16_bits(x, y, n):
    def step(total, rows):
        return total + outer(*rows).astype(jnp.bfloat16), None

    return lax.scan(step, jnp.zeros((WIDTH, HIDDEN), jnp.bfloat16), (x, y))[0]


def many_terms(x, y, n):
    total = jnp.zeros((WIDTH, HIDDEN))
    for i in range(30):
        total = total + i * (x[:1].T @ y[:1])
    return total


def kernel_gradient(numbers, shape, groups=1, strides=(1, 1), features=6):
    kernel_shape = [0, 0, 0, 0]
    lhs, rhs, _ = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, numbers)
    sizes = (features, shape[lhs[1]] // groups, 3, 3)
    for axis, size in zip(rhs, sizes, strict=True):
        kernel_shape[axis] = size

    def fn(x, y, n):
        image = jnp.sin(jnp.arange(np.prod(shape)).reshape(shape) * x[0, 0])

        def loss(kernel):
            out = lax.conv_general_dilated(
                image,
                kernel,
                strides,
                "SAME",
                dimension_numbers=numbers,
                feature_group_count=groups,
            )
            return jnp.sin(out).sum()

        return jax.grad(loss)(0.1 * jnp.ones(kernel_shape))

    return fn


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")

FOLDED: dict[str, Callable[..., Any]] = {
    "a product": lambda x, y, n: product(x, y),
    "a product of vectors": lambda x, y, n: outer(x[0], y[0]),
    "batches of products": lambda x, y, n: jnp.einsum("ai,aj->aij", x, y),
    "contracted axes out of order": lambda x, y, n: jnp.einsum(
        "abi,baj->ij", jnp.stack([x, 2 * x]), jnp.stack([y, y], axis=1)
    ),
    "terms, factors and divisors": lambda x, y, n: (
        3 * product(x, y) * SHARED / 2 - product(2 * x, y) / SHARED + TABLE + 1
    ),
    "minus": lambda x, y, n: -product(x, y),
    "many terms": many_terms,
    "a product of products": lambda x, y, n: product(x, y) @ jnp.ones((HIDDEN, HIDDEN)),
    "a product from the right": lambda x, y, n: jnp.ones((9, WIDTH)) @ product(x, y),
    "transposed and reshaped": lambda x, y, n: product(x, y).T.reshape(1, -1)[0],
    "sliced and joined": lambda x, y, n: jnp.concatenate(
        [product(x, y)[1:5:2, ::-1], jnp.pad(product(x, y), ((0, 1), (2, 0)))[:, 2:]]
    ),
    "split": lambda x, y, n: jnp.split(product(x, y), [3], axis=1)[1],
    "one of a stack": lambda x, y, n: jnp.pad(product(x, y)[None], ((1, 0), (0, 0), (0, 0))),
    "a choice by example": lambda x, y, n: jnp.where(
        n > 1, product(x, y), lax.select(n > 0, 2 * product(x, y), TABLE)
    ),
    "a choice that no example makes": lambda x, y, n: jnp.where(n > 9, jnp.inf, product(x, y)),
    "16 bits": lambda x, y, n: product(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)),
    "16 bits, then 32": lambda x, y, n: product(
        x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    ).astype(np.float32),
    "32 bits, then 16": lambda x, y, n: product(x, y).astype(jnp.bfloat16),
    "integers": lambda x, y, n: 3 * product((9 * x).astype(int), (9 * y).astype(int)) + 7,
    "complex": lambda x, y, n: product(x + 1j * x, y - 2j * y) * 1j,
    "rows of a table": lambda x, y, n: jnp.zeros((99, HIDDEN)).at[n + jnp.arange(ROWS)].add(y),
    "a row of a table": lambda x, y, n: jnp.ones((99, HIDDEN)).at[n].add(y[0]),
    "rows in 16 bits": lambda x, y, n: (
        jnp.zeros((99, HIDDEN), jnp.bfloat16).at[n % jnp.arange(1, 4)].add(y.astype(jnp.bfloat16))
    ),
    "rows that are clipped": lambda x, y, n: (
        jnp.zeros((99, HIDDEN)).at[n * 50].add(y[0], mode="clip").at[n * 30].add(y[1])
    ),
    "columns of a table": lambda x, y, n: jnp.zeros((WIDTH, 99)).at[:, n].add(x[0]),
    "a scan to the example's end": by_rows(0),
    "a scan backward": by_rows(1, reverse=True),
    "a loop in a loop": nested,
    "a total in 16 bits": added_in_16_bits,
    "what each step gives": by_layers,
    "a choice of what a loop gives": lambda x, y, n: jnp.where(n > 1, by_rows(0)(x, y, n), TABLE),
    "a checkpointed layer": lambda x, y, n: jax.grad(
        jax.checkpoint(lambda w: (jnp.tanh(x @ w) * y).sum())
    )(TABLE),
    "layers with gradients of their own": lambda x, y, n: jax.grad(
        lambda w: (jax.nn.relu(x @ w) * jax.nn.silu(x @ w)).sum()
    )(TABLE),
    "an inner vmap": lambda x, y, n: jax.grad(
        lambda w: jax.vmap(lambda a, b: jnp.tanh(a @ w) @ b)(x, y).sum()
    )(TABLE),
    "a branch that all take": lambda x, y, n: lax.cond(
        SHARED[0] > 0, lambda: product(x, y), lambda: jnp.zeros((WIDTH, HIDDEN))
    ),
    "the other branch": lambda x, y, n: lax.cond(
        SHARED[0] > 9, lambda x, y: product(x, 2 * y), product, x, y
    ),
    "what a branch passes on": lambda x, y, n: lax.cond(
        SHARED[0] > 9,
        lambda _, x: product(x, x[:, :1] + TABLE[0]),
        lambda one, _: one,
        product(x, y),
        x,
    ),
    "a convolution": kernel_gradient(NHWC, (1, 4, 4, 2)),
    "a convolution, features first": kernel_gradient(NCHW, (1, 2, 4, 3), strides=(2, 1)),
    "a convolution in groups": kernel_gradient(NHWC, (1, 3, 3, 4), groups=2),
    "a depthwise convolution": kernel_gradient(NCHW, (2, 3, 2, 2), groups=3),
}


def read_in_the_loop(x, y, n):
    def step(total, rows):
        return total + outer(*rows), total @ rows[1]

    return lax.scan(step, jnp.zeros((WIDTH, HIDDEN)), (x, y))


def swapped_and_scaled(x, y, n):
    def step(totals, rows):
        one, other, decaying = totals
        added = outer(*rows)
        return (other, one + added, 0.5 * decaying + added), (rows[0], 2.0)

    return lax.scan(step, (jnp.zeros((WIDTH, HIDDEN)),) * 3, (x, y))


def kept_by_the_loop(x, y, n):
    def step(total, _):
        return total, total

    return lax.scan(step, outer(x[0], y[0]), x)


def by_key(x, y, n):
    keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), n), 0.5, x.shape)
    return (x * keep).T @ y


SUMMED: dict[str, Callable[..., Any]] = {
    "nothing of an example": lambda x, y, n: (TABLE, jnp.zeros(3), 2.0, TABLE + x[0, 0]),
    "numbers": lambda x, y, n: (n, n * 2.0, n.astype(np.int8) * 50),
    "nothing at all": lambda x, y, n: (x[:0].T @ y[:0], x[:0]),
    "rounded quotients": lambda x, y, n: lax.div(
        product((9 * x).astype(int), (9 * y).astype(int)), jnp.full((WIDTH, HIDDEN), 7)
    ),
    "rounded numbers": lambda x, y, n: product(x, y).astype(int),
    "other padding than zero": lambda x, y, n: jnp.pad(product(x, y), 1, constant_values=3.0),
    "joined with ragged rows": lambda x, y, n: jnp.concatenate([product(x, y), y]),
    "a choice by element": lambda x, y, n: jnp.where(jnp.arange(HIDDEN) < n, product(x, y), 0),
    "a factor of each example": lambda x, y, n: product(x, y) * n,
    "a norm of its own": lambda x, y, n: (
        product(x, y),
        jnp.linalg.norm(product(x, y)),
        jnp.tanh(product(x, y)),
    ),
    "rows that are set": lambda x, y, n: jnp.zeros((99, HIDDEN)).at[n].set(y[0]),
    "the same rows of each example": lambda x, y, n: jnp.zeros((9, HIDDEN)).at[2].add(y[0]),
    "a carry that steps read": read_in_the_loop,
    "carries that change places": swapped_and_scaled,
    "a carry that nothing is added to": kept_by_the_loop,
    "a loop as long as the example": lambda x, y, n: lax.fori_loop(
        0, n, lambda _, total: total + product(x, y), jnp.zeros((WIDTH, HIDDEN))
    ),
    "branches of each example": lambda x, y, n: lax.cond(
        n > 1, lambda: product(x, y), lambda: jnp.zeros((WIDTH, HIDDEN))
    ),
    "random bits": by_key,
    "a convolution with a kernel of each example": lambda x, y, n: (
        lax.conv_general_dilated(x[None], y[:, :3, None], (1,), "SAME"),
        lax.conv_general_dilated(x[None], y[:, None, :4], (1,), "SAME", feature_group_count=3),
    ),
}
