"""Sizes are put in everywhere, and what stands for something becomes it."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import fused, scheduling_groups

from shapeexec import _compat
from shapeexec.checking import EXPANSIONS, Difference, check, instantiate, register_expansion
from shapeexec.shape import _dim
from tests.checking.support import f32, leaf, plain_jaxpr, traced_at
from tests.tolerance import assert_close

SIZES = {"b": 3, "s": 5}


def instance(fn: Any, spec: str = "b, s", sizes: Any = None) -> Any:
    traced = traced_at(fn, spec, SIZES if sizes is None else sizes)
    return instantiate(traced.jaxpr, traced.substitution.sizes(sizes or SIZES))


def all_avals(closed: Any) -> Iterator[Any]:
    for eqn in _compat.equations(closed.jaxpr):
        yield from (var.aval for var in (*eqn.invars, *eqn.outvars))


NESTED = {
    "scan": lambda x: lax.scan(lambda c, r: (c + r.sum() / x.shape[0], r[1:]), 0.0, x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < x.shape[1], lambda c: c + 1, x),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: y[:, 1:], lambda y: y[:, :-1], x),
    "jit": jax.jit(lambda y: y.reshape(-1)),
    "custom derivative": jax.nn.relu,
    "checkpoint": jax.checkpoint(lambda x: x.mean(1)),
    "scatter": lambda x: x.at[:, 1:].add(1.0),
    "sort": lambda x: jnp.sort(x, 1),
}


@pytest.mark.parametrize("name", NESTED)
def test_no_symbol_is_left(name):
    closed = instance(NESTED[name])
    assert closed.in_avals[0].shape == (3, 5)
    assert all(isinstance(dim, int) for aval in all_avals(closed) for dim in aval.shape)
    assert not any(eqn.primitive.name == "dim_as_value" for eqn in _compat.equations(closed.jaxpr))


@pytest.mark.parametrize("name", NESTED)
def test_an_instance_runs_as_the_function_does(name):
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    closed = instance(NESTED[name])
    expected = jax.tree.leaves(jax.jit(NESTED[name])(x))
    assert_close(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x), expected)


@pytest.mark.parametrize(
    "fn",
    [
        NESTED["jit"],
        NESTED["custom derivative"],
        NESTED["checkpoint"],
        fused.fused(out_spaces=(jax.memory.Space.Device,))(lambda x: x.mean(1) / x.shape[0]),
        scheduling_groups.scheduling_group("one")(lambda x: x.mean(1) / x.shape[0]),
    ],
)
def test_a_proof_looks_into_each_call(fn):
    assert not [eqn for eqn in instance(fn).jaxpr.eqns if [*_compat.sub_jaxprs(eqn.params)]]
    traced = traced_at(fn, "b, s", SIZES)
    assert check(traced, fn, leaves=[leaf("b, s")], sizes={"b": 4, "s": 7}) is None


def test_a_substituted_symbol_has_its_size():
    def halves(x: jax.Array) -> jax.Array:
        return x[0::2] + x[1::2]

    traced = traced_at(halves, "s", {"s": 6})
    assert check(traced, halves, leaves=[leaf("s")], sizes={"s": 6}) is None
    assert check(traced, halves, leaves=[leaf("s")], sizes={"s": 10}) is None


def test_a_size_as_a_value_is_a_literal_of_its_dtype():
    (eqn, *_) = instance(lambda x: jnp.int32(1) + jnp.asarray(x.shape[0]), "s", {"s": 5}).jaxpr.eqns
    literals = [atom for atom in eqn.invars if _compat.is_literal(atom)]
    assert (5, np.int32) in [(literal.val, literal.aval.dtype) for literal in literals]


# What stands for something

host_p = _compat.Primitive("host_value_of_a_test")
host_p.def_abstract_eval(lambda *, power, dim: jax.core.ShapedArray((), np.dtype(np.float32)))

flip_p = _compat.Primitive("flip_of_a_test")
flip_p.def_abstract_eval(lambda x, *, keep: jax.core.ShapedArray((keep,), x.dtype))


@pytest.fixture
def _expansions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapeexec.checking._instantiate.EXPANSIONS", dict(EXPANSIONS))
    register_expansion(host_p, lambda sizes, *, power, dim: lambda: dim**power)
    register_expansion(
        "flip_of_a_test", lambda sizes, *, keep: lambda x: lax.rev(x, (0,))[:keep] * sizes["s"]
    )


@pytest.mark.usefixtures("_expansions")
def test_a_number_of_the_host_becomes_a_constant():
    def fn(x: jax.Array) -> jax.Array:
        n = x.shape[0]
        return x * (host_p.bind(power=3, dim=n) if _dim.symbols_of(n) else np.float32(n**3))

    closed = instance(fn, "s", {"s": 1001})
    (eqn,) = closed.jaxpr.eqns
    assert eqn.primitive.name == "mul"
    assert [float(atom.val) for atom in eqn.invars if _compat.is_literal(atom)] == [
        np.float32(1001**3)
    ]
    assert check(traced_at(fn, "s", {"s": 7}), fn, leaves=[leaf("s")], sizes={"s": 1001}) is None


@pytest.mark.usefixtures("_expansions")
def test_an_operation_of_ours_becomes_what_it_stands_for():
    def fn(x: jax.Array) -> jax.Array:
        n = x.shape[0]
        if _dim.symbols_of(n):
            return flip_p.bind(x, keep=n - 1)
        return x[::-1][: n - 1] * jnp.float32(n)

    def in_a_loop(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (c + fn(x).sum(), None), 0.0, length=3)[0]

    for each in (fn, in_a_loop):
        traced = traced_at(each, "s", {"s": 5})
        assert check(traced, each, leaves=[leaf("s")], sizes={"s": 5}) is None
        assert check(traced, each, leaves=[leaf("s")], sizes={"s": 9}) is None


@pytest.mark.usefixtures("_expansions")
def test_an_operation_that_stands_for_something_else_is_told():
    def fn(x: jax.Array) -> jax.Array:
        n = x.shape[0]
        return flip_p.bind(x, keep=n - 1) if _dim.symbols_of(n) else x[: n - 1] * jnp.float32(n)

    found = check(traced_at(fn, "s", {"s": 5}), fn, leaves=[leaf("s")], sizes={"s": 5})
    assert isinstance(found, Difference)
    assert found.text == "a slice or a transpose f32[4] with offset=4 instead of 0"
    assert "x[: n - 1] * jnp.float32(n)" in (found.line or "")


@pytest.mark.usefixtures("_expansions")
def test_an_expansion_is_registered_once():
    with pytest.raises(ValueError, match="`host_value_of_a_test` is registered already"):
        register_expansion(host_p, lambda sizes: lambda: 0)


def test_large_integers_wrap_as_they_would_in_the_graph():
    closed = instance(lambda x: x * (x.shape[0] ** 4), "s", {"s": 256})
    values = [a.val for eqn in closed.jaxpr.eqns for a in eqn.invars if _compat.is_literal(a)]
    assert values[:1] == [0]


def test_an_instance_of_a_plain_jaxpr_is_the_same_program():
    closed = plain_jaxpr(lambda x: jax.nn.softmax(x, 1), f32(3, 5))
    names = [eqn.primitive.name for eqn in instantiate(closed, {}).jaxpr.eqns]
    assert "exp" in names
    assert "jit" not in names
