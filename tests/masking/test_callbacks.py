"""Callbacks are given arrays of the true shapes, as often and in the order of the plain call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones
from tests.tolerance import FEW, assert_close

BUCKETS = sx.Linear(8)


class Seen:
    """A callback that keeps what it is given, and returns twice the first of it."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def __call__(self, *arrays: Any) -> Any:
        self.calls.append([np.asarray(x).tolist() for x in arrays])
        assert all(isinstance(x, jax.Array) for x in arrays)
        return 2 * np.asarray(arrays[0])


def calls_of(make: Any, *args: Any, poison: str | None = "garbage") -> list[list[Any]]:
    """What the callback saw through an Exec, where the plain function shows it the same."""
    seen, plain = Seen(), Seen()
    assert_runs_as(
        make(plain), sx.Exec(make(seen), ("b, s",), buckets=BUCKETS, poison=poison), *args
    )
    jax.effects_barrier()
    assert seen.calls == plain.calls
    return seen.calls


def test_a_debug_callback_sees_true_shapes() -> None:
    def make(seen: Seen) -> Any:
        def fn(x: jax.Array) -> jax.Array:
            jax.debug.callback(seen, x, x.sum(1), 7, ordered=True)
            return x * 2

        return fn

    ((rows, sums, seven),) = calls_of(make, ones(2, 3))
    assert rows == [[1, 2, 3], [4, 5, 6]]
    assert (sums, seven) == ([6, 15], 7)


def test_a_debug_print_prints_true_shapes(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        jax.debug.print("{} has {n}", x[0], n=x.shape[1])
        return x

    sx.Exec(fn, ("b, s",), buckets=BUCKETS, poison="nan")(ones(2, 3))
    jax.effects_barrier()
    assert capfd.readouterr().out == "[1. 2. 3.] has 3\n"


def test_keys_reach_a_callback() -> None:
    shapes = []

    def fn(keys: jax.Array) -> jax.Array:
        jax.debug.callback(lambda k: shapes.append(k.shape), keys)
        return jax.random.key_data(keys)

    assert_runs_as(fn, sx.Exec(fn, ("s",), buckets=BUCKETS), jax.random.split(jax.random.key(0), 3))
    jax.effects_barrier()
    assert shapes == [(3, 2), (3, 2)]  # JAX gives a callback their data


def test_a_pure_callback_returns_results_of_true_shapes() -> None:
    def make(seen: Seen) -> Any:
        def fn(x: jax.Array) -> Any:
            every_other = jax.ShapeDtypeStruct(((x.shape[1] + 1) // 2,), x.dtype)
            half = jax.pure_callback(lambda a: seen(a)[0, ::2], every_other, x)
            return half, half.sum()

        return fn

    assert calls_of(make, ones(2, 5)) == [[ones(2, 5).tolist()]]


def test_a_callback_with_effects_runs_in_order() -> None:
    def make(seen: Seen) -> Any:
        def fn(x: jax.Array) -> jax.Array:
            struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
            once = io_callback(seen, struct, x, ordered=True)
            return io_callback(seen, struct, once, ordered=True)

        return fn

    assert len(calls_of(make, ones(2, 3))) == 2


def test_a_result_of_another_shape_than_promised_is_an_error() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.pure_callback(
            lambda a: np.zeros(7, a.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )

    with pytest.raises(Exception, match=r"a callback returned shape \(7,\), not \(3,\)"):
        jax.block_until_ready(sx.Exec(fn, ("s",), buckets=BUCKETS)(ones(3)))


def test_a_callback_in_a_loop_is_not_called_for_padding() -> None:
    def make(seen: Seen) -> Any:
        def step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            jax.debug.callback(seen, row, ordered=True)
            return total + row.sum(), row * 2

        return lambda x: jax.lax.scan(step, jnp.float32(0), x)

    assert len(calls_of(make, ones(2, 3))) == 2


def test_a_batch_of_examples_has_a_callback_for_each() -> None:
    def twice(x: np.ndarray) -> np.ndarray:
        assert x.shape == (3,)
        return 2 * x

    def fn(x: jax.Array) -> jax.Array:
        struct = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        one = lambda row: jax.pure_callback(twice, struct, row, vmap_method="sequential")
        return jax.vmap(one)(x)

    assert_runs_as(fn, sx.Exec(fn, ("b, s",), buckets=BUCKETS, poison="nan"), ones(2, 3))


# JAX wraps the callback anew in each trace.
@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes:RuntimeWarning")
def test_examples_of_different_lengths_are_called_back_one_by_one() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    examples = [ones(3), ones(5), ones(1)]
    for got, x in zip(sx.Exec(fn, ("s",), buckets=BUCKETS).map(examples), examples, strict=True):
        np.testing.assert_array_equal(got, np.cumsum(x))


@pytest.mark.parametrize("reduce", [None, "sum"])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_examples_are_called_back_once_each_and_in_the_order_of_a_loop(count: int, reduce: Any):
    def make(seen: Seen) -> Any:
        def fn(w: jax.Array, x: jax.Array) -> Any:
            struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
            jax.debug.callback(seen, x, ordered=True)
            y = io_callback(seen, struct, w * x, ordered=True)
            z = jax.pure_callback(seen, struct, y, vmap_method="sequential")
            jax.debug.callback(seen, z.sum(), ordered=True)
            return y.sum() + z.sum(), {"n": x.shape[0], "half": jnp.float16(1e4) * w.sum()}

        return fn

    examples = [ones(n) for n in (3, 5, 1, 2)[:count]]
    seen, plain = Seen(), Seen()
    ex = sx.Exec(make(seen), (None, "s"), buckets=BUCKETS, examples=sx.Linear(4), poison="nan")
    w = np.float32([2])
    for _ in range(2):
        got = ex.map(w, examples, reduce=reduce)
        want = [jax.jit(make(plain))(w, x) for x in examples]
        jax.effects_barrier()
        assert [call[0] for call in seen.calls] == [call[0] for call in plain.calls]
        if reduce == "sum":
            got, want = [got], [jax.tree.map(lambda *xs: sum(xs), *want)]
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_close(a, b, loose=FEW)
    assert (ex.cache_size, ex.stats.hits) == (1, 1)


def test_callbacks_without_an_order_are_called_once_for_each_example() -> None:
    seen = Seen()

    def fn(x: jax.Array) -> jax.Array:
        jax.lax.cond(x.sum() > 0, lambda: jax.debug.callback(seen, x), lambda: None)
        io_callback(seen, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return jax.random.split(jax.random.key(x.sum().astype(int)), 2)

    examples = [ones(n) for n in (3, 5, 1)]
    got = sx.Exec(fn, ("s",), buckets=BUCKETS).map(examples)
    jax.effects_barrier()
    assert sorted(len(call[0]) for call in seen.calls) == [1, 1, 3, 3, 5, 5]
    for keys, x in zip(got, examples, strict=True):
        wanted = jax.random.split(jax.random.key(int(x.sum())), 2)
        np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(wanted))
