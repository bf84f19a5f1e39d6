"""Sizes past the last bucket of a ladder: an error, or what goes on, with the same answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones


def centred(x):
    return x - x.mean(axis=0), x.max(axis=0)


@pytest.mark.parametrize("beyond", ["exact", "linear:3", "pow2", [16]])
def test_past_the_end_the_answers_are_those_of_the_plain_function(beyond):
    ex = sx.Exec(centred, ("s, 2",), buckets=sx.Ladder([4, 8], beyond=beyond))
    for size in (1, 4, 5, 8, 9, 10, 16, 5, 10):
        assert_runs_as(centred, ex, ones(size, 2))


def test_past_the_end_of_a_ladder_that_goes_on_exactly_each_size_is_a_graph_without_padding():
    ex = sx.Exec(centred, ("s, 2",), buckets=sx.Ladder([4, 8], beyond="exact"))
    for size in (3, 4, 9, 10, 9, 10):
        ex(ones(size, 2))
    assert ex.stats.compiles == 3
    assert ex.plan(ones(9, 2)).buckets == {"s": 9}
    assert ex.explain(ones(9, 2)).masks == ()
    assert len(ex.explain(ones(7, 2)).masks) > 0


def test_past_the_end_what_is_refused_when_it_is_padded_runs_at_its_exact_size():
    fn = lambda x: jnp.stack([x[i] for i in range(x.shape[0])])
    ex = sx.Exec(fn, ("s",), buckets=sx.Ladder([4], beyond="exact"))
    assert_runs_as(fn, ex, ones(5))
    with pytest.raises(sx.InconclusiveShapeError):
        ex(ones(3))


def test_examples_of_map_may_lie_on_both_sides_of_the_end():
    ex = sx.Exec(centred, ("s, 2",), buckets=sx.Ladder([4, 8], beyond="exact"))
    examples = [ones(size, 2) for size in (3, 12, 8, 9, 12)]
    for mapped, x in zip(ex.map(examples), examples, strict=True):
        jax.tree.map(np.testing.assert_array_equal, mapped, centred(x))


def test_warm_up_prepares_the_buckets_up_to_the_end():
    ex = sx.Exec(centred, ("s, 2",), buckets=sx.Pow2(minimum=2, maximum=6, beyond="exact"))
    assert ex.warmup(ones(1, 2)) == 3
    assert ex.warmup(ones(1, 2), s=[6, 7]) == 1


def test_the_end_of_a_ladder_tells_of_the_way_on():
    ex = sx.Exec(centred, ("s, 2",), buckets=sx.Ladder([4, 8]))
    with pytest.raises(sx.BucketOverflowError) as caught:
        ex(ones(9, 2))
    assert 'pass beyond="exact" or another strategy' in caught.value.fix
    way_out = sx.Exec(centred, ("s, 2",), buckets=sx.Ladder([4, 8], beyond="exact"))
    assert_runs_as(centred, way_out, ones(9, 2))


def test_a_strategy_may_be_given_as_a_text():
    ex = sx.Exec(lambda x: x.sum(), ("b, s",), buckets={"b": "pow2", "s": "linear:8"})
    assert ex.plan(ones(3, 9)).buckets == {"b": 4, "s": 16}
    assert sx.Exec(lambda x: x.sum(), ("b, s",), buckets="exact").plan(ones(3, 9)).buckets["b"] == 3
