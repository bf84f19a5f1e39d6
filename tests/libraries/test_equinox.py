"""Equinox: state, statistics of batches, static fields and runtime errors."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, batch, ones, refused
from tests.libraries.support import BUCKETS, KEY, SIZES
from tests.tolerance import assert_close


class Net(eqx.Module):
    """A layer, statistics of the batch, and a counter."""

    layer: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    calls: eqx.nn.StateIndex

    def __init__(self, mode: Any) -> None:
        self.layer = eqx.nn.Linear(3, 4, key=KEY)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode=mode)
        self.calls = eqx.nn.StateIndex(jnp.array(0))

    def __call__(self, x: jax.Array, state: Any) -> Any:
        out, state = self.norm(self.layer(x), state)
        return out, state.set(self.calls, state.get(self.calls) + 1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("mode", ["ema", "batch"])
def test_statistics_and_state_are_those_of_the_valid_rows(mode):
    def loss(net: Net, state: Any, x: jax.Array) -> Any:
        run = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        out, state = run(x, state)
        return (out**2).mean() + out[0].sum(), (out, state)

    step = eqx.filter_value_and_grad(loss, has_aux=True)
    ex, plain_step = sx.Exec(step, (None, None, "b, 3"), buckets=BUCKETS), eqx.filter_jit(step)
    net, state = eqx.nn.make_with_state(Net)(mode)
    plain = state
    for n in SIZES:
        (value, (out, state)), gradient = ex(net, state, batch(n))
        (wanted, (plain_out, plain)), expected = plain_step(net, plain, batch(n))
        assert_close((value, out, gradient), (wanted, plain_out, expected))
        assert_close(jax.tree.leaves(state), jax.tree.leaves(plain))
    assert state.get(net.calls) == len(SIZES)
    assert ex.cache_size == 2


class Scaled(eqx.Module):
    weight: jax.Array
    times: int = eqx.field(static=True)
    act: Any = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.act(x * self.weight).sum() * self.times


def test_each_value_of_a_static_field_has_its_own_graph():
    ex = sx.Exec(lambda m, x: m(x), (None, "s"), buckets=BUCKETS)
    modules = [Scaled(jnp.ones(()), k, act) for k in (1, 2) for act in (jnp.tanh, jnp.sin)]
    for module in modules * 2:
        assert_close(ex(module, ones(3)), eqx.filter_jit(module)(ones(3)))
    assert (ex.cache_size, ex.stats.hits) == (4, 4)


def checked(x: jax.Array) -> jax.Array:
    return eqx.error_if(x, (x <= 0).any(), "not positive").sum()


def test_a_runtime_error_is_of_the_valid_part_and_costs_no_graph():
    """Padding is zeros, which are not positive; the callback knows the stack that it came from."""
    ex = sx.Exec(checked, ("s",), buckets=BUCKETS)
    for n in (3, 4, 2):
        assert_runs_as(checked, ex, ones(n))
    assert (ex.cache_size, ex.stats.differences) == (1, 0)
    with pytest.raises((RuntimeError, ValueError), match="not positive"):
        ex(-ones(3)).block_until_ready()


def test_what_equinox_keeps_between_calls_cannot_have_a_size_that_changes():
    rope = eqx.nn.RotaryPositionalEmbedding(4)
    rope(ones(8, 4))  # its table is longer now than the sizes below
    ex = sx.Exec(rope, ("s, 4",), buckets=BUCKETS)
    what = "makes an array of this size outside of the trace, as `jax.ensure_compile_time_eval`"
    with refused(sx.InconclusiveShapeError, what, "cannot be kept between calls"):
        ex(ones(3, 4))
    exact = sx.Exec(rope, ("s, 4",), buckets=BUCKETS, on_unsupported="exact")
    for n in (3, 5):
        assert_runs_as(rope, exact, ones(n, 4))


def test_a_donated_module_and_its_optimizer_go_on_as_in_filter_jit():
    optimizer = optax.adam(1e-2)

    def step(both: Any, x: jax.Array) -> Any:
        model, state = both
        value, gradient = eqx.filter_value_and_grad(lambda m: (jax.vmap(m)(x) ** 2).mean())(model)
        updates, state = optimizer.update(gradient, state, model)
        return (eqx.apply_updates(model, updates), state), value

    model = eqx.nn.MLP(3, 2, 4, 1, key=KEY)
    mine = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    plain = jax.tree.map(lambda x: x.copy() if eqx.is_array(x) else x, mine)
    ex = sx.Exec(step, (None, "b, 3"), buckets=BUCKETS, donate_argnums=0)
    for n in SIZES:
        weight = mine[0].layers[0].weight
        (mine, value), (plain, wanted) = ex(mine, batch(n)), eqx.filter_jit(step)(plain, batch(n))
        assert_close(value, wanted)
        assert weight.is_deleted()
    assert_close(eqx.filter(mine, eqx.is_array), eqx.filter(plain, eqx.is_array))
