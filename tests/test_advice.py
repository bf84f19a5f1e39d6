"""Each way out that an error tells is followed, and leads to a program that is right.

The rows are in `tests/advice/`. Where a Fix line holds code, the row takes it out of the message.
"""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _errors
from tests.advice import (
    attention,
    inconclusive,
    limits,
    looking,
    memory,
    operands,
    options,
    primitives,
    running,
    specs,
    statics,
    tiles,
)
from tests.advice.row import value
from tests.tolerance import tolerance

MODULES = (
    specs,
    options,
    statics,
    inconclusive,
    limits,
    looking,
    memory,
    primitives,
    running,
    attention,
    operands,
    tiles,
)
ROWS = [row for module in MODULES for row in module.ROWS]
KINDS = """attention; back ends; biases; buckets; by hand; constraints; dims; donation; dropout;
    exact symbols; frozen; graphs; handles; inconclusive; lengths; maps; masks; memory; objects;
    options; pad_safe; programs; rules; specs; statics; strategies; unsupported primitives;
    validation"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.name}")
def test_the_way_out_leads_to_a_program_that_is_right(row):
    with pytest.raises(row.error) as caught:
        row.broken()
    assert type(caught.value) is row.error
    assert row.fix in caught.value.fix
    assert str(caught.value).endswith(f"\n  Fix:   {caught.value.fix}")
    got, want = row.follow(caught.value.fix), row.expected()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for actual, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        limit = tolerance(np.float32)  # a row may expect Python's numbers, or NumPy's of 64 bits
        np.testing.assert_allclose(actual, expected, limit, limit)


def test_each_class_of_error_and_each_kind_of_advice_is_followed():
    classes = {
        value
        for value in vars(_errors).values()
        if inspect.isclass(value) and issubclass(value, sx.ShapeExecError)
    }
    assert classes - {sx.ShapeExecError} == {row.error for row in ROWS}
    assert {kind.strip() for kind in KINDS.split(";")} == {row.kind for row in ROWS}
    assert all(row.fix for row in ROWS)
    names = [(row.kind, row.name) for row in ROWS]
    assert len(names) == len(set(names))


def test_limits_of_a_warning_keep_the_graphs_that_were_compiled_again():
    def run(limits):
        ex = sx.Exec(jnp.sum, ("s",), buckets=sx.Exact(), limits=limits)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                for size in (1, 2, 3):
                    assert ex(np.ones(size, np.float32)) == size
        return [str(w.message) for w in caught if "Fix:" in str(w.message)], ex

    (message,), _ = run(sx.CacheLimits(graphs=2))
    code = message.split("limits=")[1].split(")")[0] + ")"
    again, ex = run(value(code))
    assert not again
    assert ex.stats.compiles == 3
