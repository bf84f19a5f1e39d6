"""Collectives over the named axis of a `vmap` whose size is symbolic."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from tests.execution.support import assert_same
from tests.tolerance import assert_close

P = sx.Linear(8)


def batch(size: int, width: int = 3) -> np.ndarray[Any, Any]:
    return np.random.default_rng(size).normal(size=(size, width)).astype(np.float32)


def over_rows(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.vmap(fn, axis_name="b")


def with_the_sum(fn: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.vmap(fn, (0, None), axis_name="b")(x, x.sum(0))


def extent(x: Any) -> Any:
    return lax.pmax(x, "b") - lax.pmin(x, "b")


CASES: dict[str, Callable[[Any], Any]] = {
    "mean": over_rows(lambda x: x - lax.pmean(x, "b")),
    "number of rows": over_rows(lambda x: x / lax.psum(1, "b")),
    "sum of a float": over_rows(lambda x: x / lax.psum(1.5, "b")),
    "sum of a bool": over_rows(lambda x: x * lax.psum(True, "b")),
    "sum of a constant": over_rows(lambda x: x * lax.psum(np.arange(3, dtype=np.float32), "b")),
    "sum of a small integer": over_rows(lambda x: (x, lax.psum(np.int8(3), "b"))),
    "sum of a half": over_rows(lambda x: (x, lax.psum(np.float16(3), "b"))),
    "axis size": over_rows(lambda x: x / lax.axis_size("b")),
    "axis index": over_rows(lambda x: x * lax.axis_index("b")),
    "extremes": over_rows(lambda x: x - extent(lax.stop_gradient(x))),
    "gather": over_rows(lambda x: lax.all_gather(x, "b").mean() + x),
    "sum of what all share": with_the_sum(lambda x, w: x * lax.psum(w, "b")),
    "mean of what all share": with_the_sum(lambda x, w: x * lax.pmean(w, "b")),
    "sum of a weak number": over_rows(
        lambda x: x.astype(jnp.float16) * 0 + lax.psum(jnp.asarray(2.0), "b")
    ),
    "two axes": jax.vmap(
        over_rows(lambda x: x / lax.psum(1, ("a", "b")) + lax.axis_index(("a", "b"))),
        axis_name="a",
    ),
}


@pytest.mark.parametrize("poison", ["nan", "max"])
@pytest.mark.parametrize("name", CASES)
def test_a_collective_over_a_ragged_named_axis_reads_no_padding(name, poison, monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", poison)
    fn = CASES[name]

    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: sum((y**2).sum() for y in floats(fn(x))))(x)

    ex, grad = sx.Exec(fn, ("b, 3",), buckets=P), sx.Exec(gradient, ("b, 3",), buckets=P)
    for size in (1, 5, 8):
        assert_same(ex(batch(size)), jax.jit(fn)(batch(size)))
        assert_same(grad(batch(size)), jax.jit(gradient)(batch(size)))
    assert (ex.stats.differences, grad.stats.differences) == (0, 0)


def floats(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def test_batch_norm_of_equinox_trains_on_ragged_batches(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "b", mode="batch")

    @eqx.filter_value_and_grad(has_aux=True)
    def loss(norm: Any, state: Any, x: Any) -> Any:
        y, state = jax.vmap(norm, (0, None), (0, None), axis_name="b")(x, state)
        return (y**3).sum(), (y, state)

    ex, plain_state = sx.Exec(loss, (None, None, "b, 3"), buckets=P), state
    for size in (5, 3, 8):
        ((value, (y, state)), gradient) = ex(norm, state, batch(size))
        wanted = eqx.filter_jit(loss)(norm, plain_state, batch(size))
        (_, (_, plain_state)), _ = wanted
        for got, want in zip(*map(arrays, (((value, (y, state)), gradient), wanted)), strict=True):
            assert_close(got, want)
    assert (ex.cache_size, ex.stats.differences) == (1, 0)


def arrays(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if eqx.is_array(x)]


def test_batch_norm_of_flax_over_a_named_axis_trains_on_ragged_batches(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    norm = flax.linen.BatchNorm(use_running_average=False, axis_name="b", axis=-1)
    variables = norm.init(jax.random.key(0), batch(4))

    def loss(params: Any, statistics: Any, x: Any) -> Any:
        def one(x: Any) -> Any:
            held = {"params": params, "batch_stats": statistics}
            return norm.apply(held, x[None], mutable=["batch_stats"])

        y, changed = jax.vmap(one, out_axes=(0, None), axis_name="b")(x)
        return (y**3).sum(), changed

    step = jax.value_and_grad(loss, has_aux=True)
    ex = sx.Exec(step, (None, None, "b, 3"), buckets=P)
    for size in (5, 3, 8):
        args = (variables["params"], variables["batch_stats"], batch(size))
        for got, want in zip(*map(jax.tree.leaves, (ex(*args), jax.jit(step)(*args))), strict=True):
            assert_close(got, want)
    assert (ex.cache_size, ex.stats.differences) == (1, 0)
