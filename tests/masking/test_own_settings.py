"""A `with` of the user's around part of a function holds in its graph, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import shapeexec as sx
from tests.tolerance import assert_close

X = np.arange(1, 6, dtype=np.float32)
KEY = jax.random.key(0)


def fixed_draw(x):
    with jax.threefry_partitionable(False):
        return x + jax.random.uniform(KEY, (5,)).sum()


def ragged_draw(x):
    with jax.threefry_partitionable(False):
        return x * jax.random.uniform(KEY, x.shape)


def in_a_loop(x):
    def step(total, _):
        with jax.threefry_partitionable(False):
            return total + jax.random.uniform(KEY, (5,)).sum(), None

    return x + jax.lax.scan(step, 0.0, None, length=2)[0]


DRAWS = {"fixed": fixed_draw, "ragged": ragged_draw, "in a loop": in_a_loop}


def default_of(fn):
    """The function without its setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "threefry_partitionable", lambda _: jax.named_scope("unset"))
        return np.asarray(fn(X))


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("buckets", [sx.Pow2(), sx.Exact()], ids=["padded", "exact"])
def test_a_draw_is_split_as_its_own_setting_says(name, buckets):
    fn = DRAWS[name]
    run = sx.Exec(fn, ("s",), buckets=buckets)
    for size in (5, 3):
        assert_close(run(X[:size]), jax.jit(fn)(X[:size]))
    assert not np.array_equal(run(X), default_of(fn))
    assert run.stats.differences == 0


def test_the_examples_of_a_map_keep_the_setting():
    run = sx.Exec(fixed_draw, ("s",))
    for got, x in zip(run.map([X, X[:3]]), (X, X[:3]), strict=True):
        assert_close(got, fixed_draw(x))


def test_metadata_for_xla_reach_the_graph():
    def fn(x):
        with set_xla_metadata(marked="here"):
            return jnp.sin(x).sum()

    run = sx.Exec(fn, ("s",))
    run(X)
    (graph,) = run._runner.store.graphs()
    assert 'marked="here"' in graph.compiled.as_text()
