"""`validate`: what is right passes, what is wrong is told with the equation to blame."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking._registry import RULES

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@contextmanager
def broken(primitive: str, rule: Callable[..., Any]) -> Iterator[None]:
    """Another rule for a primitive, for a while."""
    kept = RULES[primitive]
    RULES[primitive] = dataclasses.replace(kept, apply=rule)
    try:
        yield
    finally:
        RULES[primitive] = kept


def unfilled(ctx, *operands, **params):
    return ctx.bind(*operands, **params)


def blamed(fn: Callable[..., Any], *args: Any, spec: str = "s, 4", **options: Any) -> Any:
    with pytest.raises(sx.ValidationError) as caught:
        sx.validate(sx.Exec(fn, (spec,), buckets=sx.Pow2()), *args, rounds=1, **options)
    return caught.value


def test_values_and_gradients_are_compared_under_each_poison_at_each_set_of_sizes():
    ex = sx.Exec(lambda x: jax.nn.softmax(x @ x.T).mean(0), ("s, 4",), buckets=sx.Pow2())
    done = sx.validate(ex, X, rounds=4)
    assert done.poisons == (None, *sx.masking.POISONS)
    assert len(done.sizes) == 4
    assert [at["s"] for at in done.sizes[:3]] == [5, 8, 1]
    assert done.comparisons == 4 * 2 * 5
    assert not done.skipped
    assert str(done).startswith("40 comparisons at 4 sets of sizes: all equal")


def test_the_exec_itself_is_left_alone():
    ex = sx.Exec(jnp.sum, ("s, 4",), buckets=sx.Pow2())
    sx.validate(ex, X, rounds=1)
    assert (ex.cache_size, ex.stats.compiles) == (0, 0)


def test_a_rule_that_lets_padding_through_is_blamed_with_the_users_line():
    def model(x):
        shifted = jnp.tanh(x) * 2
        return jnp.cos(shifted.sum(0)) + 1

    with broken("reduce_sum", unfilled):
        error = blamed(model, X, poisons=("max",))
    assert error.primitive == "reduce_sum"
    assert error.sizes == {"s": 5}
    assert error.poison == "max"
    assert re.search(
        r"^padding changes the result at s=5: the array is .* elements differ\.$",
        str(error).splitlines()[0],
    )
    assert "return jnp.cos(shifted.sum(0)) + 1  (test_validate.py" in error.where
    assert "f32[s,4] -> f32[4]" in error.got
    assert "report this equation" in error.fix


def test_the_first_wrong_equation_is_blamed_and_not_one_that_it_misleads():
    def model(x):
        return jnp.sort(jnp.cumsum(x[::-1], 0), 0).max(0)

    with broken("sort", unfilled), broken("reduce_max", unfilled):
        assert blamed(model, X, poisons=("min",)).primitive == "sort"


def test_a_wrong_gradient_is_found_where_the_value_is_right():
    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, x), lambda x, g: (g * x.mean(),))
    with broken("reduce_sum", unfilled):
        error = blamed(lambda x: doubled(x)[0], X, poisons=("nan",))
    assert str(error).startswith("padding changes the gradient at s=5: [0] is nan instead of")
    assert error.primitive == "reduce_sum"


def test_zero_padding_alone_can_be_what_is_wrong():
    with broken("reduce_max", unfilled):
        assert blamed(lambda x: x.max(0), -np.abs(X), poisons=(None,)).poison is None


def test_a_loop_is_compared_with_what_jax_makes_of_it():
    kept = RULES["scan"].apply

    def doubled(ctx, *operands, **params):
        results = kept(ctx, *operands, **params)
        return [dataclasses.replace(value, array=2 * value.array) for value in results]

    def total(x):
        return jax.lax.scan(lambda c, r: (c + r, c * x.shape[0]), jnp.zeros(4), x)[0] + 1

    with broken("scan", doubled):
        error = blamed(total, X)
    assert error.primitive == "scan"
    assert "scan: f32[4], f32[s,4] -> f32[4]" in error.got


def test_a_function_that_is_another_one_at_symbolic_sizes_is_told():
    ex = sx.Exec(
        lambda x: x.sum() * (2 if type(x.shape[0]) is int else 3), ("s, 4",), buckets=sx.Pow2()
    )
    done = sx.validate(ex, X, rounds=2, gradients=False)
    assert len(done.differences) == 2
    assert "the result at s=5: the constant 3.0 instead of 2.0   <- " in done.differences[0]
    assert "another function at symbolic sizes: the result at s=5" in str(done)


def test_an_update_of_a_gradient_that_is_zero_but_for_rounding_is_no_defect():
    def update(w, x):
        gradient = jax.grad(lambda w: ((x - x.mean(0)) @ w).sum())(w)
        return w - gradient / (jnp.abs(gradient) + 1e-8)

    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    done = sx.validate(
        sx.Exec(update, (None, "s, 4"), buckets=sx.Pow2()), np.ones(4, np.float32), x
    )
    assert done.rounding
    assert not done.differences


def test_results_may_be_python_numbers():
    ex = sx.Exec(lambda x: (x.sum(), 3, x.shape[0], 0.5, True), ("s, 4",), buckets=sx.Pow2())
    assert sx.validate(ex, X, rounds=2).comparisons == 20


def test_rounding_that_a_function_amplifies_is_no_defect():
    def inverse(x):
        no_steps = jax.lax.scan(lambda c, r: (c, r), 0, x[:0])[1]  # not to be had without jit
        return jnp.linalg.inv(x.T @ x + 1e-5 * jnp.eye(4)) + no_steps.sum()

    done = sx.validate(sx.Exec(inverse, ("s, 4",), buckets=sx.Pow2()), X[:2], gradients=False)
    assert done.comparisons > 0  # of rank 2: its inverse magnifies every rounding


def test_a_rule_that_returns_another_dtype_is_refused():
    def widened(ctx, *operands, **params):
        return ctx.bind(*operands, **params).astype(jnp.bfloat16)

    ex = sx.Exec(lambda x: jnp.tanh(x).sum(), ("s, 4",), buckets=sx.Pow2())
    with broken("tanh", widened), pytest.raises(sx.ConfigError, match=r"bfloat16|bf16"):
        sx.validate(ex, X, gradients=False)


def test_sizes_at_which_the_function_fails_are_skipped_and_told():
    def pair(x):
        return x.reshape(-1, 2, 4).sum()

    done = sx.validate(
        sx.Exec(pair, ("s, 4",), buckets=sx.Pow2()), X[:4], rounds=4, gradients=False
    )
    assert done.comparisons
    assert "the result at s=1, for it fails: TypeError" in done.skipped[0]


def test_constraints_forbid_sizes():
    ex = sx.Exec(jnp.sum, ("s, 4",), buckets=sx.Pow2(), constraints=("s >= 3",))
    done = sx.validate(ex, X, rounds=3, gradients=False)
    assert any("s=1: ConstraintError" in text for text in done.skipped)


def test_a_gradient_that_is_refused_is_told_and_no_error():
    @jax.custom_vjp
    def total(x):
        return x.sum()

    def backward(x, cotangent):
        return (jnp.stack([cotangent * jnp.ones_like(row) for row in x]),)

    total.defvjp(lambda x: (x.sum(), x), backward)
    ex = sx.Exec(total, ("s, 4",), buckets=sx.Pow2())
    done = sx.validate(ex, X, rounds=1)
    assert done.comparisons == 5
    assert "the gradient at s=5: InconclusiveShapeError" in done.skipped[0]


def test_a_refused_value_is_the_callers_to_see():
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s, 4",), buckets=sx.Pow2())
    with pytest.raises(sx.UnsupportedPrimitiveError, match="`new_ref`"):
        sx.validate(ex, X)


def test_static_arguments_keywords_and_trees_are_passed_on():
    ex = sx.Exec(
        lambda params, x, mode, scale: (x["a"] @ params).sum(0) * scale + len(mode),
        (None, {"a": "s, 4"}, None, None),
        buckets=sx.Pow2(),
        static_argnames="mode",
    )
    done = sx.validate(ex, X.T, {"a": X}, mode="ab", scale=np.float32(2), rounds=2)
    assert done.comparisons == 20


@pytest.mark.parametrize("returns", ["device", "padded", "host"])
def test_handles_are_compared_as_the_arrays_that_they_hold(returns):
    ex = sx.Exec(lambda x: (x.max(axis=0), 2 * x), ("s, 4",), buckets=sx.Pow2(), returns=returns)
    garbage = jnp.full((9, 4), jnp.nan).at[:5].set(X)
    found = sx.validate(ex, sx.Padded(garbage, X.shape), rounds=1)
    assert (found.sizes, found.skipped) == (({"s": 5},), ())
    assert found.comparisons == sx.validate(ex, X, rounds=1).comparisons


def test_keys_and_integers_are_drawn_from_what_there_is():
    def model(tokens, keys, table):
        noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
        return (table[tokens] + noise).mean(0)

    ex = sx.Exec(model, ("s", "s", None), buckets=sx.Pow2())
    tokens = np.array([1, 4, 2], np.int32)
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    done = sx.validate(ex, tokens, jax.random.split(jax.random.key(0), 3), table, rounds=3)
    assert done.comparisons == 30


def test_progress_is_told():
    seen = []
    ex = sx.Exec(jnp.sum, ("s, 4",), buckets=sx.Pow2())
    sx.validate(ex, X, rounds=2, poisons=("nan",), progress=lambda *at: seen.append(at))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rounds": 0}, "rounds=0 is not an integer >= 1.\n  Fix:   rounds=5"),
        ({"poisons": ("zero",)}, "poison='zero' is not known."),
    ],
)
def test_bad_options_are_told(options, text):
    with pytest.raises(sx.ConfigError, match=re.escape(text)):
        sx.validate(sx.Exec(jnp.sum, ("s, 4",), buckets=sx.Pow2()), X, **options)
