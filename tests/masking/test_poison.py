"""Poison: a missing mask shows in the result, and a right one hides it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking._fill import one
from shapeexec.masking._knowledge import FINITE, UNSPECIFIED, constant, nothing_known, uniform
from shapeexec.masking._poison import POISONS, check_poison, poison_padding, poison_value
from shapeexec.masking._registry import RULES
from tests.execution.support import assert_runs_as, ones

P = sx.Pow2()


def total(x):
    return (x * 2).sum() + x.max() + jnp.dot(x, x)


@pytest.mark.parametrize("poison", POISONS)
def test_a_poisoned_run_is_right(poison):
    ex = sx.Exec(total, ("s",), buckets=P, poison=poison)
    for size in (1, 3, 4, 5):
        assert_runs_as(total, ex, ones(size))


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("wrong", ["no fill", "another identity", "another axis"])
def test_a_wrong_rule_shows(poison, wrong, monkeypatch):
    def rule(ctx, operand, *, axes, **params):
        if wrong == "another identity":
            operand = ctx.fill(0, one(operand.dtype), axes=axes)
        if wrong == "another axis":
            operand = ctx.fill(0, np.float32(0), axes=[1 - axis for axis in axes])
        return ctx.bind(operand, axes=axes, **params)

    changed = dataclasses.replace(RULES["reduce_sum"], apply=rule)
    monkeypatch.setitem(RULES, "reduce_sum", changed)
    ex = sx.Exec(lambda x: x.sum(0), ("b, s",), buckets=P, poison=poison)
    assert not np.allclose(ex(ones(3, 3)), ones(3, 3).sum(0))


def test_the_environment_may_ask_for_poison(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "nan")
    assert sx.Exec(total).settings.poison == "nan"
    assert sx.Exec(total, poison="max").settings.poison == "max"
    monkeypatch.setenv("SHAPEEXEC_POISON", "")
    assert sx.Exec(total).settings.poison is None


def test_the_environment_is_checked_too(monkeypatch):
    monkeypatch.setenv("SHAPEEXEC_POISON", "bad")
    with pytest.raises(sx.ConfigError, match="poison='bad' is not known"):
        sx.Exec(total)


@pytest.mark.parametrize("poison", [*POISONS, None])
def test_known_poison_is_itself(poison):
    assert check_poison(poison) == poison


DTYPES = [np.float32, jnp.bfloat16, np.int8, np.uint8, np.int32, np.bool_, np.complex64]


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_poison_is_of_the_dtype_and_never_a_plain_0(poison, dtype):
    value = poison_value(poison, np.dtype(dtype), padding=UNSPECIFIED)
    assert np.asarray(value).dtype == dtype
    assert bool(value != 0) or poison == "min"


def test_what_is_known_to_be_finite_gets_finite_poison():
    for poison in POISONS:
        assert np.isfinite(poison_value(poison, np.dtype(np.float32), padding=FINITE))


def test_poison_leaves_valid_elements_and_known_padding():
    x, lengths = jnp.zeros((2, 4)), (2, jnp.int32(3))
    got = poison_padding(x, lengths, known=nothing_known(2, x.dtype), poison="nan")
    np.testing.assert_array_equal(np.isnan(got), [[0, 0, 0, 1]] * 2)
    known = uniform(2, constant(np.float32(7)))
    # Left as it is, also where it is not what is claimed, so that a false claim shows.
    np.testing.assert_array_equal(poison_padding(x, lengths, known=known, poison="nan"), x)


def test_keys_are_left_alone():
    keys = jax.random.split(jax.random.key(0), 4)
    assert poison_value("nan", keys.dtype, padding=UNSPECIFIED) is None
