"""Programs that differ in one thing are told apart; those that do the same are not."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.checking import Difference, difference, instantiate
from shapeexec.checking._normal import Maker
from shapeexec.checking._number import number_program
from shapeexec.checking._params import are_alike
from shapeexec.checking._values import Table
from tests.checking.programs import (
    by,
    convolved,
    correlated,
    counting,
    cube,
    gathered,
    index,
    masked_by_a_function,
    of_groups,
    scaled_by,
    sliced,
)
from tests.checking.support import f32, plain_jaxpr

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def scan_of(body: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: lax.scan(body, jnp.float32(0), x)[0].sum()


def _while_of(test: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: lax.while_loop(test, lambda c: c * 2 + 1, x.sum())


def _sorted_by(order: int) -> Callable[..., Any]:
    return lambda x: lax.sort((x, -x), num_keys=order)


def _in_windows(width: int, stride: int) -> Callable[..., Any]:
    def summed(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x.ravel(), 0.0, lax.add, (width,), (stride,), "VALID")[:2]

    return summed


MUTATIONS: dict[str, Pair] = {
    "the last digit of a constant": (
        lambda x: x * 0.1,
        lambda x: x * np.nextafter(np.float32(0.1), 1),
    ),
    "the last digit of 1": (lambda x: x * 1.0, lambda x: x * np.nextafter(np.float32(1), 2)),
    "the last digit, further up": (
        lambda x: jnp.sin(x * 0.1).sum(),
        lambda x: jnp.sin(x * np.nextafter(np.float32(0.1), 1)).sum(),
    ),
    "the sign of a zero": (lambda x: x / 0.0, lambda x: x / -0.0),
    "an integer constant": (lambda x: jnp.minimum(x, 3), lambda x: jnp.minimum(x, 4)),
    "an element of a constant": (
        lambda x: x * np.float32([1, 2, 3]),
        lambda x: x * np.float32([1, 2, 4]),
    ),
    "an axis": (lambda x: x.sum(0), lambda x: x.T.sum(0)),
    "an axis of a maximum": (lambda x: x.max(0) + 1, lambda x: x.max(1) + 1),
    "operands of a difference": (lambda x: x - x.T, lambda x: x.T - x),
    "a missing equation": (lambda x: jnp.maximum(x, 0), lambda x: x),
    "a missing epsilon": (lambda x: x / (x.std() + 1e-12), lambda x: x / x.std()),
    "a clip that is seldom met": (lambda x: jnp.clip(x, -300, 300), lambda x: x),
    "another function": (jnp.sin, jnp.cos),
    "a permutation": (lambda x: x, lambda x: x.T),
    "a reversed axis": (lambda x: x[::-1], lambda x: x[:, ::-1]),
    "a slice": (lambda x: x[1:, 0], lambda x: x[:-1, 0]),
    "a step": (lambda x: x[::2].sum(), lambda x: x[:2].sum()),
    "where padding goes": (
        lambda x: jnp.pad(x, ((1, 0), (0, 0))),
        lambda x: jnp.pad(x, ((0, 1), (0, 0))),
    ),
    "the body of a scan": (
        scan_of(lambda c, row: (c + row.sum(), None)),
        scan_of(lambda c, row: (c + row.max(), None)),
    ),
    "a constant in the body of a scan": (
        scan_of(lambda c, row: (c + 2 * row.sum(), None)),
        scan_of(lambda c, row: (c + 3 * row.sum(), None)),
    ),
    "the direction of a scan": (
        lambda x: lax.scan(lambda c, row: (c * row, c), x[0], x)[1],
        lambda x: lax.scan(lambda c, row: (c * row, c), x[0], x, reverse=True)[1],
    ),
    "the test of a loop": (_while_of(lambda c: c < 9), _while_of(lambda c: c <= 9)),
    "a branch": (
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.tan, x),
    ),
    "branches changed over": (
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: lax.cond(x.sum() > 0, jnp.cos, jnp.sin, x),
    ),
    "the keys of a sort": (_sorted_by(1), _sorted_by(2)),
    "the contracted axis": (
        lambda x: jnp.einsum("ab,cb->ac", x, jnp.sin(x)),
        lambda x: jnp.einsum("ab,bc->ac", x, jnp.sin(x)),
    ),
    "the precision of a product": (
        lambda x: lax.dot(x, x, precision="highest"),
        lambda x: lax.dot(x, x, precision="default"),
    ),
    "the seed": (
        lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
        lambda x: x * jax.random.normal(jax.random.key(1), x.shape),
    ),
    "what a callback does": (
        lambda x: jax.pure_callback(np.sin, x, x),
        lambda x: jax.pure_callback(np.cos, x, x),
    ),
    "what a callback closes over": (
        lambda x: jax.pure_callback(scaled_by(2), x, x),
        lambda x: jax.pure_callback(scaled_by(3), x, x),
    ),
    "the mask of an attention": (
        masked_by_a_function,
        lambda x: sx.dot_product_attention(*[x[None, :, None, :]] * 3, mask=sx.Causal(align="end")),
    ),
    "how a scatter combines": (
        lambda x: x.at[jnp.argsort(x[0])].add(1.0),
        lambda x: x.at[jnp.argsort(x[0])].multiply(2.0),
    ),
    "the mode of an index": (
        lambda x: x.at[jnp.int32(x[0, 0])].get(mode="clip"),
        lambda x: x.at[jnp.int32(x[0, 0])].get(mode="fill"),
    ),
    "the stride of windows": (_in_windows(3, 2), _in_windows(3, 1)),
    "the width of windows": (_in_windows(3, 2), _in_windows(2, 2)),
    "the part of what is padded": (
        lambda x: jnp.pad(x, ((1, 1), (0, 0)))[:2],
        lambda x: jnp.pad(x, ((1, 1), (0, 0)))[2:4],
    ),
    "what is padded with": (
        lambda x: lax.pad(x, 1.0, ((-1, 1, 0), (0, 0, 0))),
        lambda x: lax.pad(x, 2.0, ((-1, 1, 0), (0, 0, 0))),
    ),
    "the layout of a convolution": (
        lambda x: convolved(x, ("NCH", "OIH", "NCH")),
        lambda x: convolved(x, ("NHC", "OIH", "NCH")),
    ),
    "which group a kernel is for": (
        lambda x: of_groups(x, feature_group_count=2),
        lambda x: of_groups(x, (1, 0), batch_group_count=2),
    ),
    "the stride of a convolution": (by(2, 0, 0), by(1, 0, 0)),
    "the padding of a convolution": (by(2, 1, 0), by(2, 0, 1)),
    "the dilation of a kernel": (by(2, 0, 0, 2), by(2, 0, 0, 1)),
    "the padding of operands changed over": (correlated, lambda x: correlated(x, (5, 7), -1)),
    "the order of what operands changed over give": (correlated, lambda x: correlated(x, (6, 6))),
    "a kernel read backwards": (
        lambda x: lax.conv(x[None], jnp.sin(x)[None, :, ::-1], (1,), "SAME"),
        lambda x: lax.conv(x[None], jnp.sin(x)[None], (1,), "SAME"),
    ),
    "which part of what is turned": (
        lambda x: cube(x).transpose(2, 0, 1)[1:, :, ::-1],
        lambda x: cube(x)[:, ::-1, :2].transpose(2, 0, 1),
    ),
    "how axes are split before they are turned": (
        lambda x: cube(x).reshape(9, 3).T.reshape(3, 3, 3),
        lambda x: cube(x).reshape(3, 9).T.reshape(3, 3, 3),
    ),
    "the order of axes in a reshape": (
        lambda x: lax.reshape(x, (9,), (1, 0)),
        lambda x: lax.reshape(x, (9,)),
    ),
    "the order of axes in a reshape of constants": (
        lambda x: x.ravel() * lax.reshape(jnp.arange(9.0).reshape(3, 3), (9,), (1, 0)),
        lambda x: x.ravel() * lax.reshape(jnp.arange(9.0).reshape(3, 3), (9,)),
    ),
    "the mode of an index in the gradient": (
        jax.grad(lambda x: jnp.sin(sliced(x, index(x))).sum()),
        jax.grad(lambda x: jnp.sin(gathered(x, index(x), "fill")).sum()),
    ),
    "what a loop counts from": (counting(0), counting(1)),
    "a cotangent that is summed": (
        jax.grad(lambda x: (jnp.sin(x) * x + jnp.cos(x) * x).sum()),
        jax.grad(lambda x: (jnp.sin(x) * x + jnp.tanh(x) * x).sum()),
    ),
    "results changed over": (lambda x: (x, x + 1), lambda x: (x + 1, x)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_told(name):
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in MUTATIONS[name])
    assert difference(instantiate(one, {}), instantiate(one, {})) is None
    for first, second in ((one, other), (other, one)):
        found = difference(instantiate(first, {}), second)
        assert isinstance(found, Difference)
        assert re.search(r" (instead of|with another) ", found.text)


def test_the_second_program_looks_up_what_the_first_one_holds(monkeypatch):
    made = []
    make = Maker.make

    def make_it(self, op, *args, **given):
        made.append(op)
        return make(self, op, *args, **given)

    monkeypatch.setattr(Maker, "make", make_it)
    fn = jax.grad(lambda x: (jax.nn.softmax(x @ x, axis=0)[:, None] * x).sum())
    one, other = (plain_jaxpr(functools.partial(fn), f32(3, 3)) for _ in range(2))
    table = Table()
    first = number_program(table, one)
    assert made
    made.clear()
    assert number_program(table, other).results == first.results
    assert not made


LOOKS = {
    "a bool and an int": (True, 1, False),
    "an int and a float": (1, 1.0, False),
    "zeros of both signs": (0.0, -0.0, False),
    "a tuple and a list": ((1,), [1], False),
    "tuples": ((1, ("a", None)), (1, ("a", None)), True),
    "tuples of other lengths": ((1, 2), (1,), False),
    "dtypes": (np.dtype("f4"), np.dtype("f4"), True),
    "other dtypes": (np.dtype("f4"), np.dtype("f8"), False),
    "arrays": (np.zeros(2), np.zeros(2), False),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_at_parameters_takes_none_for_others(name):
    one, other, are_same = LOOKS[name]
    assert are_alike({"a": one, "name": 1}, {"a": other, "name": 2}) is are_same
    assert not are_alike({"a": one}, {"b": one})


def _with_aval(jaxpr: Any, **changes: Any) -> Any:
    """A jaxpr whose last equation claims another type of its result."""
    flat = instantiate(jaxpr, {})
    (out,) = flat.jaxpr.outvars
    out.aval = out.aval.update(**changes)
    return flat


def test_a_weak_type_of_a_result_is_told():
    jaxpr = plain_jaxpr(jnp.sin, f32(3))
    found = difference(_with_aval(jaxpr, weak_type=True), jaxpr)
    assert isinstance(found, Difference)
    assert found.text == "result 0 is f32[3], weakly typed instead of f32[3]"
