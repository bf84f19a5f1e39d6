"""Digests: the same in two processes, different for two programs; what is not known is refused."""

import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec import _compat
from shapeexec._identity import UnsaveableError
from shapeexec.execution.saving._content import digest
from tests.execution.saving.support import attend, parts

LONG = np.zeros(4000, np.float32)
"""An array whose text leaves out its middle."""
OTHER = LONG.copy()
OTHER[2000] = 1.0


def traced(fn, *args):
    return digest(jax.make_jaxpr(fn)(*(args or (np.ones(3, np.float32),))).jaxpr)


def inside(fn):
    """A function whose constants stand inside of the program, not among its arguments."""
    return lambda x: lax.cond(x[0] > 0, fn, lambda x: x, x)


def jitted(constant):
    return jax.jit(lambda x: x * constant)


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))


@jax.custom_vjp
def wider(x):
    return x


wider.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -2, 2),))


def both(x):
    return jnp.sin(x), jnp.cos(x)


PROGRAMS = {
    "the order of results": (both, lambda x: both(x)[::-1]),
    "a number": (lambda x: x * 2.0, lambda x: x * 3.0),
    "the sign of zero": (lambda x: x * 0.0, lambda x: x * -0.0),
    "nan and infinity": (lambda x: x * np.float32("nan"), lambda x: x * np.float32("inf")),
    "float and int": (lambda x: x + 1.0, lambda x: x.astype(int) + 1),
    "a primitive": (jnp.sin, jnp.cos),
    "operands in another order": (lambda x: x - x.sum(), lambda x: x.sum() - x),
    "an axis": (lambda x: x[None].sum(0), lambda x: x[None].sum(1)),
    "weak types": (
        lambda x: jnp.where(x > 0, 1.0, 2.0),
        lambda x: jnp.where(x > 0, np.float32(1), np.float32(2)),
    ),
    "a result twice": (lambda x: (x, x), lambda x: (x, x + 0.0)),
    "a branch": (
        lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x[0] > 0, jnp.cos, jnp.sin, x),
    ),
    "the body of a loop": (
        lambda x: lax.scan(lambda c, y: (c + y, y), 0.0, x),
        lambda x: lax.scan(lambda c, y: (c - y, y), 0.0, x),
    ),
    "the direction of a loop": (
        lambda x: lax.scan(lambda c, y: (c + y, y), 0.0, x),
        lambda x: lax.scan(lambda c, y: (c + y, y), 0.0, x, reverse=True),
    ),
    "the gradient of a custom_vjp": (
        jax.grad(lambda x: clipped(x).sum()),
        jax.grad(lambda x: wider(x).sum()),
    ),
    "a precision": (lambda x: jnp.dot(x, x), lambda x: jnp.dot(x, x, precision="highest")),
    "the mode of an index": (
        lambda x: x.at[jnp.array([5])].get(mode="clip"),
        lambda x: x.at[jnp.array([5])].get(mode="fill"),
    ),
    "a generator": (
        lambda x: jax.random.normal(jax.random.key(0, impl="threefry2x32"), x.shape),
        lambda x: jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
    ),
    "a seed": (
        lambda x: jax.random.normal(jax.random.key(0), x.shape),
        lambda x: jax.random.normal(jax.random.key(1), x.shape),
    ),
    "a mask of attention": (
        lambda x: sx.dot_product_attention(*[x.reshape(1, 3, 1, 1)] * 3, mask=sx.Causal()),
        lambda x: sx.dot_product_attention(*[x.reshape(1, 3, 1, 1)] * 3, mask=sx.SlidingWindow(2)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_programs_have_two_digests(name):
    one, other = PROGRAMS[name]
    assert traced(one) != traced(other)
    assert traced(one) == traced(functools.partial(one))


def test_constants_inside_of_a_program_count_by_value():
    def closed(array):
        return _compat.closed(jax.make_jaxpr(lambda x: x * array)(LONG))

    assert digest(closed(LONG)) != digest(closed(OTHER))
    assert digest(closed(LONG)) == digest(closed(LONG.copy()))


VALUES = (
    *(None, False, 0, 0.0, -0.0, 0j, "", b"", (), [], {}, frozenset(), ...),
    *(True, 1, 1.0, "1", b"1", (1,), [1], {1: 1}, frozenset((1,)), np.float32(1), np.int32(1)),
    *(
        ((1,), ()),
        ((), (1,)),
        (1, (2,)),
        ((1,), 2),
        ((1, 2),),
        (1, 2),
        "12",
        ("1", "2"),
        ("12",),
        ("1str:2",),
    ),
    *(float("nan"), float("inf"), np.float64(1), np.ones(1), np.ones((1, 1)), np.ones(1, bool)),
    *(np.dtype("f4"), np.dtype("i4"), jnp.bfloat16.dtype, np.float32, "float32", jnp.sum, jnp.max),
    *(
        LONG,
        OTHER,
        lax.Precision.HIGHEST,
        lax.Precision.DEFAULT,
        functools.partial(jnp.sum, axis=0),
    ),
    *(sx.Causal(), sx.SlidingWindow(3), sx.SlidingWindow(4), {"a": 1}, {"a": 2}, {"b": 1}),
    *(jax.random.key(0), jax.random.key(0, impl="rbg"), jax.random.key_data(jax.random.key(0))),
    *(jax.tree.structure((1, [2])), jax.tree.structure(([1], 2)), jax.tree.structure({"a": 1})),
    *(jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec(None, "x")),
)


def test_no_two_values_have_one_digest():
    assert len({digest(value) for value in VALUES}) == len(VALUES)


def test_the_order_of_sets_and_dicts_does_not_count():
    assert digest({"a": 1, "b": {3, 1, 2}}) == digest({"b": {2, 3, 1}, "a": 1})


class Thing:
    def __repr__(self):
        return "a thing"


REFUSED = {
    "an object": (Thing(), "a tests.execution.saving.test_content.Thing"),
    "a function": (test_no_two_values_have_one_digest, "whose code may change"),
    "a function that has the name of another": (
        functools.wraps(jnp.sum)(lambda x: x),
        "the function sum, whose code may change",
    ),
    "a jitted one": (jax.jit(functools.wraps(jnp.sum)(lambda x: x)), "the function sum, whose"),
    "a class": (Thing, "the class tests.execution.saving.test_content.Thing"),
    "an object inside": ((1, [{"a": Thing()}]), "a tests.execution.saving.test_content.Thing"),
    "a function in a closure": (functools.partial(jnp.sum, axis=Thing()), "Thing"),
    "objects in an array": (np.array([Thing()], object), "Thing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name):
    value, why = REFUSED[name]
    with pytest.raises(UnsaveableError, match=why):
        digest(value)


def test_programs_that_call_the_host_are_refused():
    def fn(x):
        return jax.pure_callback(lambda x: x, x, x)

    with pytest.raises(UnsaveableError, match="`pure_callback`, which calls a function of this"):
        traced(fn)


def test_a_primitive_of_somebody_else_is_refused_whatever_its_name():
    mine = _compat.Primitive("sin")
    mine.def_impl(lambda x: x)
    mine.def_abstract_eval(lambda x: x)
    with pytest.raises(UnsaveableError, match="the primitive `sin`, which is neither JAX's nor"):
        traced(mine.bind)


SCRIPT = """
import json, sys
from tests.execution.saving.test_content import shown
json.dump(shown(), sys.stdout)
"""


def shown():
    """Digests and parts that another process has to find as well."""
    x = np.ones((3, 5, 4), np.float32)
    calls = {name: one for name, (one, _) in PROGRAMS.items()}
    found = {name: traced(fn) for name, fn in calls.items()}
    values = [digest(value) for value in VALUES]
    return [
        found,
        values,
        parts(jax.grad(lambda w, x: attend(w, x).sum()), (x[0, 0], x), (None, "b, s, 4")),
    ]


def test_another_process_finds_the_same():
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    there, here = json.loads(run.stdout), json.loads(json.dumps(shown()))
    assert there[:2] == here[:2]
    pairs = [(group, name) for group, named in here[2].items() for name in named]
    assert [pair for pair in pairs if _at(there[2], pair) != _at(here[2], pair)] == []
    assert there == here


def _at(parts, pair):
    group, name = pair
    return parts[group].get(name)
