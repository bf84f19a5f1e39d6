"""Indices out of bounds: what is read and written there is what the unpadded program does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, assert_same

PROGRAMS = {
    "one index": lambda i, x: x[i],
    "one index of the last axis": lambda i, x: x[..., i],
    "an index of each row": lambda i, x: jax.vmap(lambda row: row[i])(x),
    "an array of indices": lambda i, x: x[jnp.stack([i, i])],
    "one index of a half": lambda i, x: x[: x.shape[0] // 2 + 1][i],
}


@pytest.mark.parametrize("index", [-7, -4, -1, 0, 3, 4, 6, 7, 100])
@pytest.mark.parametrize("read", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_read_out_of_bounds_gets_the_gradient_that_it_gets_unpadded(read, index):
    def value_and_gradient(i, x):
        return jax.value_and_grad(lambda x: jnp.sin(read(i, x)).sum())(x)

    ex = sx.Exec(value_and_gradient, (None, "b, s"), buckets=sx.Pow2(), poison="garbage")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    for shape in ((4, 6), (3, 5)):
        # What is out of bounds raises outside of jit.
        assert_runs_as(jax.jit(value_and_gradient), ex, np.int32(index), x[: shape[0], : shape[1]])


@pytest.mark.parametrize("index", [-9, -1, 3, 8, 2**31 - 1])
def test_one_write_out_of_bounds_changes_nothing_behind_a_slice_that_moves(index):
    def program(x, i):
        moved = x.reshape(-1)[::-1]  # a roll by the size of the padding: a dynamic slice
        rows = jnp.stack([moved, -moved], axis=1)
        writes = ("set", "add", "subtract", "multiply", "min", "max")
        return [getattr(a.at[i], write)(0.25) for write in writes for a in (moved, rows)]

    ex = sx.Exec(program, ("2*s, 2", None), buckets=sx.Pow2())
    # A write that is dropped is made in front, where -0.0 shows whether it changes anything.
    x = np.array([[1, -0.0], [np.nan, -0.0], [0.1, np.inf], [3, -0.0]], np.float32)
    for rows in (4, 2):
        args = x[:rows], np.array([index], np.int32)
        results = assert_runs_as(jax.jit(program), ex, *args)
        for got, want in zip(results, jax.jit(program)(*args), strict=True):
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))  # -0.0 stays -0.0


@pytest.mark.parametrize("index", [-5, -2, 0, 1, 2, 7, 2**31 - 1])
def test_a_position_out_of_bounds_of_a_slice_is_not_looked_for_behind_the_slice(index):
    def program(x, i):
        part = jax.lax.dynamic_slice_in_dim(x, 3, 2, 0)
        one = jnp.stack([i])
        return (
            jax.lax.dynamic_slice_in_dim(part, i, 1, 0),
            *(part.at[one].get(mode="clip"), part.at[one].get(mode="fill", fill_value=7)),
            *(part.at[one].set(0.25), part.at[i].add(0.25, mode="clip")),
            jax.lax.dynamic_update_slice_in_dim(part, part[:1] * 2, i, 0),
        )

    def values_and_gradients(x, i):
        results, pull = jax.vjp(lambda x: program(x, i), x)
        return results, [
            pull(tuple(jnp.cos(r) if n == number else 0 * r for n, r in enumerate(results)))
            for number in range(len(results))
        ]

    ex = sx.Exec(values_and_gradients, ("s", None), buckets=sx.Pow2())
    x = np.arange(9, dtype=np.float32)
    for size in (9, 5):
        with jax.disable_jit():
            want = values_and_gradients(jnp.asarray(x[:size]), jnp.int32(index))
        assert_same(ex(x[:size], np.int32(index)), want)
