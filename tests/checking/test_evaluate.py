"""Normal forms and evaluation: what they settle, and what stays a difference."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shapeexec.checking import Difference, compare, difference, instantiate
from shapeexec.checking._number import number_program
from shapeexec.checking._values import Table
from tests.checking.support import f32, plain_jaxpr
from tests.checking.test_compare import scan_of
from tests.checking.test_same_programs import EQUALS, Pair
from tests.tolerance import assert_close


def _evaluated(table: Table, value: int, given: Sequence[Any], made: dict[int, Any]) -> Any:
    """A value, from those of the inputs."""
    node = table[value]
    if node.op == "input":
        return given[node.params]
    if node.constant is not None:
        return node.constant
    if id(node.call) not in made:
        operands = [_evaluated(table, operand, given, made) for operand in node.inputs]
        made[id(node.call)] = node.run(operands)
    return made[id(node.call)][node.result]


def _any_convolution(seed: int) -> Callable[..., Any]:
    """A convolution in a plane: groups, strides, dilations, paddings and layout at random."""
    rng = np.random.default_rng(seed)

    def drawn(low: int, high: int) -> list[int]:
        return [int(n) for n in rng.integers(low, high, 2)]

    groups, by_batch = int(rng.integers(1, 3)), bool(rng.integers(2))
    options = {
        "window_strides": drawn(1, 4),
        "lhs_dilation": drawn(1, 4),
        "rhs_dilation": drawn(1, 3),
        "padding": [*zip(drawn(-1, 6), drawn(2, 8), strict=True)],
        "batch_group_count" if by_batch else "feature_group_count": groups,
    }
    space, kernel = drawn(1, 6), drawn(1, 4)
    turned = [axis for axis in (2, 3) if rng.integers(2)]

    def convolved(x: jax.Array) -> jax.Array:
        lhs = jnp.resize(jnp.sin(3 * x), (2 if by_batch else 1, 1 if by_batch else 2, *space))
        rhs = jnp.resize(jnp.cos(5 * x), (4, 1 if by_batch or groups == 2 else 2, *kernel))
        result = lax.conv_general_dilated(lhs, lax.rev(rhs, turned), **options)
        return lax.rev(result, turned[:1])[..., ::2]

    return convolved


STANDING = {
    **{f"{name}, {i}": pair[i] for name, pair in EQUALS.items() for i in range(2)},
    "a part of a convolution of padding alone": lambda x: lax.conv_general_dilated(
        x[None, :, :1], jnp.ones((1, 3, 1)), (1,), [(3, -1)]
    )[..., ::2],
    **{f"a convolution at random, {seed}": _any_convolution(seed) for seed in range(24)},
}


@pytest.mark.parametrize("name", STANDING)
def test_a_normal_form_is_what_it_stands_for(name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), np.float32)
    closed = instantiate(plain_jaxpr(STANDING[name], x), {})
    table = Table()
    values = number_program(table, closed).results
    got = [_evaluated(table, value, [x], {}) for value in values]
    for one, want in zip(got, jax.tree.leaves(STANDING[name](x)), strict=True):
        assert_close(one, want)


SETTLED: dict[str, Pair] = {
    "a power and a product": (lambda x: x**3, lambda x: x * x * x),
    "division by a constant": (lambda x: x / 7.0, lambda x: x * (1 / 7)),
    "a sum in another order": (lambda x: x.sum(), lambda x: x.T.sum()),
    "inside a scan": (
        scan_of(lambda c, row: (c + (row**2).sum(), None)),
        scan_of(lambda c, row: (c + (row * row).sum(), None)),
    ),
    "cotangents in another order": (
        jax.grad(lambda x: (jnp.sin(x) + jnp.cos(x) + jnp.tanh(x)).sum()),
        jax.grad(lambda x: (jnp.tanh(x) + jnp.sin(x) + jnp.cos(x)).sum()),
    ),
    "windows summed and multiplied by ones": (
        lambda x: lax.reduce_window(x.ravel(), 0.0, lax.add, (3,), (2,), "SAME"),
        lambda x: lax.conv(x.reshape(1, 1, 9), jnp.ones((1, 1, 3)), (2,), "SAME").ravel(),
    ),
    "integers": (lambda x: jnp.int32(x) * 2, lambda x: jnp.int32(x) + jnp.int32(x)),
}


@pytest.mark.parametrize("name", SETTLED)
def test_what_rounds_alike_is_settled_by_evaluation(name):
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in SETTLED[name])
    found = compare(instantiate(one, {}), other)
    assert found.difference is None
    assert found.evaluated >= 1
    assert found.unequal >= found.evaluated


def _cotangents(cube: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    """A sum of four cotangents, one of which is a cube."""

    def gradient(x: jax.Array) -> jax.Array:
        y = lax.stop_gradient(x)
        parts = [jnp.sin(y), jnp.tanh(y), cube(y), jnp.cos(y)]
        ordered = [parts[i] for i in ((1, 2, 0, 3) if swapped else range(4))]
        return jax.grad(lambda x: sum((x * part).sum() for part in ordered))(x)

    return gradient


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_in_order_is_as_right_as_its_terms(swapped):
    """In another order it rounds otherwise, and so is evaluated, too."""
    fns = _cotangents(lambda y: y**3), _cotangents(lambda y: y * y * y, swapped)
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in fns)
    found = compare(instantiate(one, {}), other)
    assert found.difference is None
    assert found.evaluated == (2 if swapped else 1)


PROVES_NOTHING: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "nothing but NaN": (
        lambda x: x * np.nan + 1,
        lambda x: x + np.nan,
        "`mul` f32[3,3] instead of argument 0, f32[3,3],",
    ),
    "the same whatever the data": (
        lambda x: jnp.sin(x) * 0,
        lambda x: jnp.cos(x) * 0,
        "`sin` f32[3,3] instead of `cos` f32[3,3]",
    ),
    "a loop without a known end": (
        lambda x: lax.while_loop(lambda c: c > 1, lambda c: c / 2, x[0, 0]),
        lambda x: lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, 1 + c[1]), (x[0, 0], 0))[
            0
        ],
        "`while` f32[] instead of `while` f32[], with other parameters",
    ),
}


def told(one: Any, other: Any) -> str | None:
    """The text of the difference of two jaxprs; None: there is none."""
    found = difference(instantiate(one, {}), other)
    return None if found is None else found.text


@pytest.mark.parametrize("name", PROVES_NOTHING)
def test_evaluation_that_proves_nothing_leaves_a_difference(name):
    *fns, text = PROVES_NOTHING[name]
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in fns)
    assert told(one, other) == text


def _evaluate_a_bug(*_: Any, **__: Any) -> Any:
    raise TypeError("a bug")


@pytest.mark.parametrize("error", [TypeError, ValueError, NotImplementedError, OverflowError])
def test_what_jax_cannot_evaluate_is_a_difference(monkeypatch, error):
    def refused(*_: Any, **__: Any) -> Any:
        raise error("of JAX")

    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in SETTLED["a power and a product"])
    monkeypatch.setattr("shapeexec._compat.bind_equation", refused)
    assert told(one, other) == "`integer_pow` f32[3,3] instead of `mul` f32[3,3]"


@pytest.mark.parametrize("bug", ["_drawn", "_is_equal", "_constants", "_comparable"])
def test_a_bug_in_the_evaluation_is_no_difference_but_an_error(monkeypatch, bug):
    one, other = (plain_jaxpr(fn, f32(3, 3)) for fn in SETTLED["a power and a product"])
    monkeypatch.setattr(f"shapeexec.checking._evaluate.{bug}", _evaluate_a_bug)
    with pytest.raises(TypeError, match=r"^a bug$"):
        difference(instantiate(one, {}), other)


def test_what_is_too_large_to_evaluate_is_a_difference():
    one, other = (plain_jaxpr(fn, f32(2048, 2048)) for fn in SETTLED["a power and a product"])
    assert told(one, other) == "`integer_pow` f32[2048,2048] instead of `mul` f32[2048,2048]"


def test_a_difference_says_what_and_where():
    one = plain_jaxpr(lambda x: jnp.sin(x.sum(0)), f32(3, 3))
    other = plain_jaxpr(lambda x: jnp.sin(x.max(0)), f32(3, 3))
    found = difference(instantiate(one, {}), other)
    assert isinstance(found, Difference)
    assert "reduce_sum" in found.text
    assert "reduce_max" in found.text
    assert "x.max(0)" in (found.line or "")
    assert "x.sum(0)" in (found.symbolic_line or "")
