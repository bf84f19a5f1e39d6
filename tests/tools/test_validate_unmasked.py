"""`validate` of a function that masks for itself: whether its masks hold, and where they do not."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx

X = -np.random.default_rng(0).uniform(1, 2, size=(3, 5, 4)).astype(np.float32)
TOKENS = np.arange(1, 16, dtype=np.int32).reshape(3, 5)
SPEC = "b, s, 4"


def run_of(fn: Any, *specs: str, **options: Any) -> sx.Exec:
    return sx.Exec(fn, specs or (SPEC,), masking=False, **options)


def blamed(fn: Any, *args: Any, specs: tuple[str, ...] = (SPEC,), **options: Any) -> Any:
    run = run_of(fn, *specs, **{key: options.pop(key) for key in ["padding"] if key in options})
    with pytest.raises(sx.ValidationError) as caught:
        sx.validate(run, *args, rounds=1, **options)
    return caught.value


def masked_mean(tokens, x):
    mask = (tokens != 0)[..., None]
    return jnp.where(mask, x, 0).sum(axis=1) / mask.sum(axis=1)


def test_masks_that_hold_pass_with_values_and_gradients_under_each_poison():
    report = sx.validate(run_of(masked_mean, "b, s", SPEC), TOKENS, X, rounds=3)
    assert report.comparisons == 3 * 2 * 5
    assert report.skipped == report.rounding == report.differences == ()


def test_masks_that_multiply_hold_for_numbers_and_not_for_nan():
    def multiplied(tokens, x):
        return (x * (tokens != 0)[..., None]).sum(axis=1)

    run = run_of(multiplied, "b, s", SPEC)
    finite = (None, "garbage")
    assert sx.validate(run, TOKENS, X, rounds=2, poisons=finite).comparisons == 8
    error = blamed(multiplied, TOKENS, X, specs=("b, s", SPEC), poisons=("nan",))
    assert (error.primitive, error.poison) == ("reduce_sum", "nan")
    assert "padding holds args[0]: zeros, args[1]: nan (poison nan)" in error.why


def softened(x):
    weights = jax.nn.softmax(x, axis=1)
    return weights * 2


def averaged(x):
    y = jnp.abs(x)
    return y.mean(axis=1)


def merged(x):
    y = x.reshape(-1) * 2
    z = y + 1
    return z.reshape(x.shape), z.max()


def branched(x):
    if x.shape[1] > 6:
        x = jnp.sin(x)
    return x


def looped(x):
    total = 0.0
    for i in range(x.shape[1]):
        total = total + jnp.cos(x[:, i])
    return total


def counted(x):
    return x.sum(axis=1) / x.shape[1]


BLAMED = [
    (softened, "reduce_max", "weights = jax.nn.softmax(x, axis=1)"),
    (averaged, "convert_element_type", "return y.mean(axis=1)"),
    (merged, "reduce_max", "return z.reshape(x.shape), z.max()"),
    (branched, "sin", "x = jnp.sin(x)"),
    (counted, "convert_element_type", "return x.sum(axis=1) / x.shape[1]"),
]


@pytest.mark.parametrize(("fn", "primitive", "line"), BLAMED)
def test_the_first_equation_that_lets_padding_in_is_named(fn, primitive, line):
    error = blamed(fn, X, poisons=(None,))
    assert error.what.startswith(
        "the masks of the function itself do not hold: padding changes the result at b=3, s=5: "
    )
    assert error.primitive == primitive
    assert line in error.where
    assert "test_validate_unmasked.py" in error.where
    assert error.sizes == {"b": 3, "s": 5}
    assert error.why == "masking=False puts no mask in, and padding holds args[0]: zeros"
    assert error.fix.startswith("mask it in the function, choose another padding=, or masking=True")


def test_a_loop_over_a_size_goes_on_at_the_bucket():
    error = blamed(looped, X, poisons=(None,))
    assert "total + jnp.cos" in error.where or "return total" in error.where


def test_an_extreme_of_repeated_elements_is_right_and_its_gradient_is_not():
    def peak(x):
        return x.max(axis=1)

    run = run_of(peak, padding="edge")
    sx.validate(run, X, rounds=3, poisons=(None,), gradients=False)
    last = X.copy()
    last[:, -1] = 9
    error = blamed(peak, last, padding="edge", poisons=(None,))
    assert "padding changes the gradient at b=3, s=5" in error.what
    assert "return x.max(axis=1)" in error.where


def test_gradients_are_of_valid_elements():
    def scaled(w, x):
        return x * w

    w = np.float32(2)
    run = sx.Exec(scaled, (None, SPEC), masking=False, padding=5)
    assert sx.validate(run, w, X, rounds=2, poisons=(None, "garbage")).comparisons == 8
    with pytest.raises(sx.ValidationError, match="padding changes the gradient") as caught:
        sx.validate(run, w, X, rounds=2, poisons=("nan",))
    assert "return x * w" in (caught.value.where or "")


def test_modes_that_were_measured_are_those_that_are_validated():
    run = run_of(lambda x: x.max(axis=1), padding="adaptive")
    run(X)
    sx.validate(run, -X, rounds=1, poisons=(None,), gradients=False)
    kept = run.plan(-X).fillings[0]
    assert kept.mode == "edge"


def test_what_runs_unpadded_has_nothing_to_find():
    run = run_of(averaged, buckets=sx.Exact())
    assert sx.validate(run, X, rounds=1).comparisons == 10
