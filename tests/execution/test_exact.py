"""on_unsupported="exact": right answers, and only the symbols that are the matter become exact."""

import jax
import jax.numpy as jnp
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones

P = sx.Pow2()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jax.new_ref(x)[...],
        lambda x: jax.lax.associative_scan(jnp.add, x, axis=1),
        lambda x: sum(x[:, i] for i in range(x.shape[1])),
        lambda x: sum(row.sum() for row in x),
        lambda x: x * float(x.shape[1]),
        lambda x: x[:, : int(x.shape[1] ** 0.5)],
    ],
    ids=["new_ref", "associative_scan", "range", "rows", "float", "sqrt"],
)
def test_what_cannot_be_padded_runs_at_its_exact_size(fn):
    ex = sx.Exec(fn, ("b, s",), P, on_unsupported="exact")
    for shape in ((3, 5), (3, 6), (2, 5), (3, 5)):
        assert_runs_as(fn, ex, ones(*shape))
    assert sum(ex.stats.exact.values()) >= 4


def test_a_symbol_that_is_told_leaves_the_others_ragged():
    def fn(x):
        return int(x.shape[0]) * x.sum()

    ex = sx.Exec(fn, ("b, s",), P, on_unsupported="exact")
    for shape in ((3, 5), (3, 6), (4, 7)):
        assert_runs_as(fn, ex, ones(*shape))
    assert ex.stats.exact == {"b": 3}
    assert ex.plan(ones(3, 5)).buckets == {"b": 3, "s": 8}


def test_other_structures_stay_ragged():
    def fn(x):
        return jax.new_ref(x)[...] if x.ndim > 1 else x * 2

    ex = sx.Exec(fn, ("b, ...",), P, on_unsupported="exact")
    ex(ones(3))
    ex(ones(3, 4))
    assert ex.plan(ones(3)).exact == ()
