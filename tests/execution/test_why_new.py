"""Why a call is new: what names its graph, and which graph comes nearest."""

import gc
import weakref

import jax
import numpy as np
import pytest

import shapeexec as sx
from tests.execution.graph_tables import made, total
from tests.execution.support import counted, ones, refused

L = sx.Linear


# Why a call is new


def why(ex, *args, **kwargs):
    with counted() as count:
        told = ex.why_new(*args, **kwargs)
    assert count.compilations == 0
    assert told.is_new == (not ex.plan(*args, **kwargs).is_compiled)
    return told


def struct(*shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_setting_of_jax_that_differs_has_its_name():
    ex = sx.Exec(total, ("s, ...",), buckets=L(8))
    ex(ones(3, 2))
    with jax.default_matmul_precision("highest"):
        told = why(ex, ones(3, 2))
        assert told.missing == ("jax_default_matmul_precision='highest'",)
        assert told.differences == ("jax_default_matmul_precision: None, here 'highest'",)
    with jax.debug_nans(True):
        told = why(ex, ones(3, 2))
    assert told.missing == ("True as jax_debug_nans or jax_debug_infs",)
    assert not ex.why_new(ones(3, 2)).is_new


def test_without_graphs_a_call_is_new():
    ex = made()
    told = why(ex, struct(3, 5, 2))
    assert str(told) == "no graph of a call is compiled yet"
    ex.map([ones(2, 3, 2)])
    assert str(why(ex, struct(3, 5, 2))) == "no graph of a call is compiled yet"


def test_a_call_that_is_served_says_by_which_graph():
    ex = made()
    ex(ones(1, 5, 2))
    ex(ones(4, 5, 2))
    told = why(ex, struct(3, 8, 2))
    assert str(told) == "not new: graph 1 (b=4, s=8) serves this call"
    assert (told.missing, told.differences) == ((), ())


def test_a_size_that_no_graph_has_is_named():
    ex = made()
    ex(ones(4, 5, 2))
    ex(ones(4, 30, 2))
    told = why(ex, struct(4, 100, 2))
    assert (told.missing, told.nearest, told.differences) == (("s=104",), 1, ("s: 32, here 104",))
    assert str(told) == (
        "no graph has s=104; the nearest, graph 1 (b=4, s=32), differs in s: 32, here 104"
    )


@pytest.mark.parametrize(
    ("call", "missing", "difference"),
    [
        (
            lambda: ((struct(4, 5, 2, dtype=np.int32),), {}),
            "i32 as the dtype of args[0]",
            "the dtype of args[0]: f32, here i32",
        ),
        (lambda: ((struct(4, 5, 2),), {"mode": "max"}), "mode='max'", "mode: 'sum', here 'max'"),
        (lambda: ((struct(0, 5, 2),), {"mode": "sum"}), "b=0 exact", "b: 4, here 0 exact"),
    ],
)
def test_each_part_of_a_key_is_named_when_no_graph_has_it(call, missing, difference):
    ex = made()
    ex(ones(4, 5, 2), mode="sum")
    args, kwargs = call()
    kwargs.setdefault("mode", "sum")
    told = why(ex, *args, **kwargs)
    assert (told.missing, told.differences) == ((missing,), (difference,))
    assert missing in str(told)
    assert difference in str(told)


def test_a_fixed_dim_a_structure_and_a_setting_of_jax_are_named():
    ex = sx.Exec(
        lambda w, x: x.sum() + sum(map(lambda v: v.sum(), jax.tree.leaves(w))),
        (None, "s"),
        buckets=L(8),
    )
    ex(ones(2), ones(3))
    told = why(ex, struct(5), struct(3))
    assert told.differences == ("the shape of args[0]: [2], here [5]",)
    told = why(ex, {"w": struct(2)}, struct(3))
    assert "the structure of the arguments" in told.missing[0]
    with jax.enable_x64(True):
        told = why(ex, struct(2), struct(3))
    assert told.differences == ("jax_enable_x64: False, here True",)


def test_another_outcome_of_a_guard_is_named():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] > 6 else x.max(), ("s",), buckets=L(8))
    ex(ones(3))
    told = why(ex, struct(7))
    assert told.missing == ("s > 6 as the guards",)
    assert told.differences == ("the guards: s <= 6, here s > 6",)


def test_parts_that_no_graph_has_together_are_told_so():
    ex = made()
    ex(ones(4, 5, 2))
    ex(ones(1, 30, 2))
    told = why(ex, struct(4, 30, 2))
    assert told.missing == ()
    assert "each part is in some graph, but no graph has all of them; the nearest" in str(told)
    assert len(told.differences) == 1


def test_a_trace_that_was_forgotten_is_told(monkeypatch):
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8))
    ex(ones(3))
    ex._runner.planner.clear()
    told = why(ex, struct(3))
    assert told.differences == ("the trace, which was forgotten and made anew",)


def test_what_cannot_be_padded_is_met_before_compiling():
    def with_noise(x):
        """The rbg generator draws for a shape as a whole, which only its rule knows."""
        return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape)

    ex = sx.Exec(with_noise, ("s",), buckets=L(8), on_unsupported="exact")
    ex.warmup(ones(3).astype(np.float16), s=3)
    told = why(ex, struct(4))
    assert told.missing == ("s=4 exact", "f32 as the dtype of args[0]")
    with refused(sx.UnsupportedPrimitiveError, "random_bits", ""):
        sx.Exec(with_noise, ("s",), buckets=L(8)).why_new(struct(4))
    with refused(sx.SpecError, "args[0]", ""):
        ex.why_new(struct(4, 4))


def test_what_tells_why_keeps_no_graph_alive():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8), limits=sx.CacheLimits(graphs=1))
    ex(ones(3))
    graph = weakref.ref(ex.graphs[0].compiled)
    told = ex.why_new(ones(9))
    assert graph() is not None
    ex(ones(9))  # the first has to leave
    gc.collect()
    assert graph() is None
    assert str(told).startswith("no graph has s=16; the nearest, graph 0 (s=8)")
    for ask in (told.graphs[0].hlo, told.graphs[0].cost):
        with refused(sx.ConfigError, "this row describes a graph (s=8)", "run.graphs"):
            ask()
    assert ex.graphs[0].hlo().startswith("HloModule")
