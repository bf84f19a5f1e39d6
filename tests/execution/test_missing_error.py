"""A missing graph that is an error, and what heeds the choice: maps, copies and warm-ups."""

import pickle

import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from tests.execution.behind import Gate, gate
from tests.execution.support import assert_same, ones, refused

P = sx.Pow2()

__all__ = ["gate"]


def refusing():
    return sx.Exec(lambda x: x.sum(), ("s",), buckets=P, missing="error")


def test_missing_error_refuses_a_call_until_warmup_has_made_its_graph():
    ex = refusing()
    what = 'missing="error", and no graph is compiled for s=3 in bucket 4'
    fix = 'warm up these sizes, by `warmup(*args, s=3)` with args such as these; or missing="wait"'
    with refused(sx.FrozenError, what, fix):
        ex(ones(3))
    assert ex.warmup(ones(3), s=3) == 1
    assert float(ex(ones(3))) == 6


def test_missing_error_refuses_maps():
    fix = 'missing="wait", and freeze() after a map over as many examples'
    with refused(sx.FrozenError, 'missing="error", and no graph is compiled for map over', fix):
        refusing().map([ones(3)])


def test_what_is_frozen_refuses_warmup_too():
    ex = refusing()
    ex.freeze()
    with refused(sx.FrozenError, "frozen, and no graph", "warm up these sizes before freeze(), by"):
        ex.warmup(ones(3), s=5)


def test_maps_wait(gate: Gate):
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=P, missing="larger")
    ex.map([ones(64)])
    assert_same(ex.map([ones(5)]), [ones(5).sum()])
    assert (ex.stats.larger, len(ex.graphs)) == (0, 2)


def test_the_choice_is_one_of_three_and_travels_with_the_settings():
    with refused(sx.ConfigError, "missing='soon' is not known.", 'missing="wait", "larger" or'):
        sx.Exec(np.sum, missing="soon")
    ex = sx.Exec(jnp.sum, missing="larger")
    assert pickle.loads(pickle.dumps(ex)).settings.missing == "larger"
    assert ex.variant(missing="wait").settings.missing == "wait"
