"""A warm-up of more graphs than the limits keep."""

import jax.numpy as jnp
import pytest

import shapeexec as sx
from tests.execution.support import ones

P = sx.Pow2()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_warm_up_whose_graphs_have_to_leave_says_so(workers):
    run = sx.Exec(jnp.cumsum, ("s",), buckets=P, limits=sx.CacheLimits(graphs=2))
    with pytest.warns(RuntimeWarning) as told:
        assert run.warmup(ones(1), s=[1, 2, 4], workers=workers) == 3
    (text,) = [str(warning.message) for warning in told]
    assert "warmup compiled 3 graphs, and CacheLimits(graphs=2) keeps 2 of them: the other " in text
    assert "buckets compile again on their first call.\n" in text
    assert "Fix:   limits= with room for all of them" in text


def test_a_warm_up_whose_graphs_all_stay_says_nothing():
    run = sx.Exec(jnp.cumsum, ("s",), buckets=P, limits=sx.CacheLimits(graphs=2))
    assert run.warmup(ones(1), s=[1, 2]) == 2
    assert run.warmup(ones(1), s=[4]) == 1  # takes the place of one
