"""Sums over examples: equal to the sum of what each example gives, and no larger than that."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shapeexec import _compat
from shapeexec.masking.folding import sum_over_examples
from tests.masking.folds import (
    FOLDED,
    HIDDEN,
    IS_EXAMPLE,
    NUMBER,
    SUMMED,
    WIDTH,
    X,
    Y,
    by_rows,
    normal,
    outer,
    product,
    read_in_the_loop,
)
from tests.tolerance import assert_close


def flat(fn):
    return lambda *operands: jax.tree.leaves(jax.vmap(fn)(*operands))


def summed(fn):
    return lambda mask, *operands: sum_over_examples(flat(fn), mask, *operands)


def wide(array):
    return np.asarray(array).astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def assert_sums(fn):
    """The sums are those of the true examples, whatever the others hold."""
    true = IS_EXAMPLE[:, None, None]
    with_nan = (np.where(true, X, np.nan), np.where(true, Y, np.nan), NUMBER)
    actual = jax.jit(summed(fn))(IS_EXAMPLE, *with_nan)
    for got, each in zip(actual, jax.jit(flat(fn))(X, Y, NUMBER), strict=True):
        want = sum(np.asarray(each)[IS_EXAMPLE])
        assert_close(got, want, scale=np.abs(wide(want)).max(initial=1))


def arrays(jaxpr: Any) -> Iterator[Any]:
    """The avals of all that a jaxpr makes, inside loops too."""
    for eqn in jaxpr.eqns:
        yield from (var.aval for var in eqn.outvars)
        for inner in _compat.sub_jaxprs(eqn.params):
            yield from arrays(getattr(inner, "jaxpr", inner))


def largest(fn, *operands):
    return max(aval.size for aval in arrays(jax.make_jaxpr(fn)(*operands).jaxpr))


@pytest.mark.parametrize("name", FOLDED)
def test_a_sum_is_made_without_an_array_per_example(name):
    fn = FOLDED[name]
    assert_sums(fn)
    one = jax.eval_shape(fn, X[0], Y[0], NUMBER[0])
    limit = len(IS_EXAMPLE) * one.size
    assert largest(flat(fn), X, Y, NUMBER) >= limit
    assert largest(summed(fn), IS_EXAMPLE, X, Y, NUMBER) < limit


@pytest.mark.parametrize("name", SUMMED)
def test_what_cannot_be_folded_is_summed_as_it_is(name):
    assert_sums(SUMMED[name])


@pytest.mark.parametrize("count", [1, 4])
def test_all_may_be_examples(count):
    mask = np.ones(count, bool)
    for name in ("a product", "rows of a table", "a scan to the example's end", "a convolution"):
        fn, operands = FOLDED[name], (X[:count], Y[:count], NUMBER[:count])
        (got,) = jax.jit(summed(fn))(mask, *operands)
        want = sum(fn(*one) for one in zip(*operands, strict=True))
        assert_close(got, want)


def count(fn: Any, primitive: str, *operands: Any) -> int:
    """How often a primitive occurs, inside loops too."""

    def within(jaxpr: Any) -> int:
        return sum(
            (eqn.primitive.name == primitive)
            + sum(within(getattr(j, "jaxpr", j)) for j in _compat.sub_jaxprs(eqn.params))
            for eqn in jaxpr.eqns
        )

    return within(jax.make_jaxpr(fn)(*operands).jaxpr)


def test_a_chain_of_terms_may_be_deeper_than_python_recurses():
    def chain(x, y, n):
        total = outer(x[0], y[0])
        for _ in range(1000):
            total = total + 1
        return total

    assert largest(summed(chain), IS_EXAMPLE, X, Y, NUMBER) < len(IS_EXAMPLE) * WIDTH * HIDDEN


def test_sums_are_not_taken_apart_for_nothing():
    def near(x, y, n):
        return jnp.tanh(x) + 1e8 - 1e8, jnp.where(n > 1, x, x[0])

    near_by_example = jax.jit(flat(near))(X, Y, NUMBER)
    for got, each in zip(
        jax.jit(summed(near))(IS_EXAMPLE, X, Y, NUMBER), near_by_example, strict=True
    ):
        assert_close(got, np.asarray(each)[IS_EXAMPLE].sum(axis=0))
    assert count(summed(near), "reduce_sum", IS_EXAMPLE, X, Y, NUMBER) == 2


def norm_too(x, y, n):
    total = product(x, y)
    return total, jnp.linalg.norm(total)


def loop_read_too(x, y, n):
    total = by_rows(0)(x, y, n)
    return total, jnp.tanh(total)


def read_in_a_loop_too(x, y, n):
    def step(carry, rows):
        return carry + 1, (total := outer(*rows), jnp.tanh(total))

    return lax.scan(step, 0, (x, y))[1]


@pytest.mark.parametrize(
    "fn",
    [norm_too, loop_read_too, read_in_a_loop_too, read_in_the_loop],
    ids=lambda fn: fn.__name__,
)
def test_what_is_made_for_others_anyway_is_not_made_again(fn):
    assert_sums(fn)
    for primitive in ("dot_general", "scan"):
        once = count(flat(fn), primitive, X, Y, NUMBER)
        assert count(summed(fn), primitive, IS_EXAMPLE, X, Y, NUMBER) == once


def test_all_sums_of_a_loop_are_made_in_one():
    def both(x, y, n):
        def step(totals, rows):
            a, b = rows
            left, right, state = totals
            new = (left + outer(a, b), right + outer(b, a), jnp.tanh(state + a))
            return new, outer(a, state)

        zeros = jnp.zeros((WIDTH, HIDDEN))
        return lax.scan(step, (zeros, zeros.T, x[0]), (x, y))

    assert_sums(both)
    assert count(summed(both), "scan", IS_EXAMPLE, X, Y, NUMBER) == 1
    limit = len(IS_EXAMPLE) * WIDTH * HIDDEN
    assert largest(summed(both), IS_EXAMPLE, X, Y, NUMBER) < limit


def test_sums_of_16_bit_floats_are_no_coarser_than_the_numbers():
    ones = jnp.ones((2048, 3), jnp.bfloat16)  # in 16 bits 256 + 1 is 256

    def rows(x):
        return jnp.zeros((2, 3), jnp.bfloat16).at[0].add(x), x, x[:, None] * x

    def sums(x):
        return sum_over_examples(flat(rows), jnp.ones(len(x), bool), x)

    for total in jax.jit(sums)(ones):
        assert total.ravel()[0] == len(ones)


def test_a_ragged_batch_takes_the_memory_of_one_that_is_batched_by_hand():
    keys = ("table", "in", "out")
    shapes = dict(zip(keys, ((99, 64), (64, 96), (96, 64)), strict=True))
    weights = {name: normal(*shape) / 9 for name, shape in shapes.items()}
    tokens = jnp.arange(16 * 8).reshape(16, 8) % 99

    def loss(w, row):
        return ((jnp.tanh(w["table"][row] @ w["in"]) @ w["out"]) ** 2).mean()

    def folded(w, tokens):
        tree = jax.tree.structure(w)
        grads = jax.vmap(jax.grad(loss), in_axes=(None, 0))
        fn = lambda rows: jax.tree.leaves(grads(w, rows))
        sums = sum_over_examples(fn, jnp.arange(16) < 13, tokens)
        return jax.tree.unflatten(tree, sums)

    def by_hand(w, tokens):
        return jax.grad(lambda w: jnp.sum(loss(w, tokens[:13])) * 13)(w)

    def bytes_of(fn):
        return jax.jit(fn).lower(weights, tokens).compile().memory_analysis().temp_size_in_bytes

    assert_close(jax.jit(folded)(weights, tokens), jax.jit(by_hand)(weights, tokens))
    assert bytes_of(folded) < 2 * bytes_of(by_hand)
