"""An Exec without specs: its calls show which sizes change."""

import copy
import pickle
import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shapeexec as sx
from tests.execution.support import assert_runs_as, ones, refused
from tests.tolerance import FEW, assert_close


def weighted(w, x):  # w: f32[4], x: f32[b, s, 4]
    return (x @ w).mean(axis=1)


W = ones(4)


def ran(run, *sizes):
    """An Exec of `weighted` after calls of (b, s)."""
    for b, s in sizes:
        assert_close(run(W, ones(b, s, 4)), weighted(W, ones(b, s, 4)), loose=FEW)
    return run


# What is found, and what it costs


@pytest.mark.parametrize(
    ("sizes", "specs", "traces", "graphs"),
    [
        ([(2, 5)], "(None, None)", 1, 1),
        ([(2, 5), (2, 6), (2, 5), (2, 6)], "(None, None)", 2, 2),
        # the third size makes a symbol; the graphs of the first two stay
        ([(2, 5), (2, 6), (2, 7)], '(None, "_, ?, _")', 3, 3),
        ([(2, 5), (2, 6), (2, 7), (2, 8)], '(None, "_, ?, _")', 3, 3),
        ([(2, 5), (2, 6), (2, 7), (2, 9)], '(None, "_, ?, _")', 3, 4),
        ([(2, 5), (2, 6), (2, 7), (2, 5), (2, 6)], '(None, "_, ?, _")', 3, 3),
        # both at once, one after the other
        ([(1, 5), (2, 6), (3, 7), (4, 8)], '(None, "b, ?, _")', 3, 3),
        ([(2, 5), (2, 6), (2, 7), (1, 7), (3, 7)], '(None, "b, ?, _")', 5, 5),
        # equal until now: one symbol, which parts
        ([(5, 5), (6, 6), (7, 7)], '(None, "b, b, _")', 3, 3),
        ([(5, 5), (6, 6), (7, 7), (7, 8)], '(None, "b, ?, _")', 4, 4),
        # of an older generation, where its graph serves, and the masks are its own
        ([(2, 5), (2, 6), (2, 7), (1, 7), (3, 7), (2, 8)], '(None, "b, ?, _")', 5, 5),
    ],
    ids=str,
)
def test_a_stream_of_calls_decides_specs_traces_and_graphs(sizes, specs, traces, graphs):
    run = ran(sx.Exec(weighted), *sizes)
    assert str(run.specs) == f"in_shapes={specs}"
    assert (run.stats.traces, run.cache_size, run.stats.compiles) == (traces, graphs, graphs)


def test_before_the_first_call_there_are_no_specs():
    run = sx.Exec(weighted)
    assert run.specs == sx.Specs(None)
    assert str(run.specs) == "in_shapes=None"


def test_the_first_call_is_exact():
    run = ran(sx.Exec(weighted), (3, 5))
    assert run.stats.valid_elements == run.stats.bucket_elements
    assert run.graphs[0].buckets == {}


def masked(params, batch, *, mask):
    return (params["w"] * batch[0]["x"] * mask[:, None]).sum(axis=1).max() + batch[1].mean()


def arguments(b, s, n):
    batch = ({"x": ones(b, s), "id": ones(b)}, ones(n))
    return ({"w": np.float32(2), "bias": ones(3)}, batch), {"mask": ones(b)}


def test_trees_and_keywords_are_found_too():
    run = sx.Exec(masked)
    for sizes in [(2, 5, 7), (3, 6, 8), (4, 8, 9), (5, 9, 7)]:
        args, kwargs = arguments(*sizes)
        assert_runs_as(masked, run, *args, **kwargs)
    assert str(run.specs) == (
        'in_shapes=(None, ({"id": "b", "x": "b, ?"}, "?")), kwarg_shapes={"mask": "b"}'
    )


def test_what_is_printed_can_be_pasted():
    run = sx.Exec(masked)
    for sizes in [(2, 5, 7), (3, 6, 8), (4, 8, 9)]:
        args, kwargs = arguments(*sizes)
        run(*args, **kwargs)
    pasted = eval(f"sx.Exec(masked, {run.specs})", {"sx": sx, "masked": masked})
    args, kwargs = arguments(12, 13, 14)
    found, given = (one.plan(*args, **kwargs) for one in (run, pasted))
    assert (found.sizes, found.base.dims) == (given.sizes, given.base.dims)
    assert pasted.specs.in_shapes == (
        None,
        ({"id": "b", "x": "b, unknown_1_0_x_1"}, "unknown_1_1_0"),
    )
    assert_runs_as(masked, pasted, *args, **kwargs)


def test_other_structures_and_ranks_have_specs_of_their_own():
    run = sx.Exec(lambda x, y=None: x.sum() if y is None else x.sum() + y.max())
    for n in (3, 5, 6):
        run(ones(n))
        run(ones(n, 2))
        run(ones(n), ones(4))
    assert str(run.specs).splitlines() == [
        'in_shapes=("b",)',
        '# other arguments: in_shapes=("b, _",)',
        '# other arguments: in_shapes=("b", None)',
    ]


@pytest.mark.parametrize(
    ("spec", "more", "expected"), [("n", 0, "n"), ("b", 0, "b"), ("n", 1, "b"), ("b", 1, "?")]
)
def test_an_axis_that_equals_a_given_symbol_has_its_name(spec, more, expected):
    fn = lambda x, *, y: x.sum() + y.max()
    run = sx.Exec(fn, kwarg_shapes={"y": spec})
    for n in (3, 5, 6):
        assert_runs_as(fn, run, ones(n + more), y=ones(n))
    assert str(run.specs) == f'in_shapes=("{expected}",), kwarg_shapes={{"y": "{spec}"}}'


# Never wrong


def oracle(w, batch, y):
    return (batch["x"] @ w).mean(axis=1).max() + batch["m"].min() * y.mean()


SIZES = st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3, 7)), st.integers(1, 4))


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(SIZES, min_size=3, max_size=9), st.sampled_from(("nan", "max", "garbage")))
def test_each_answer_is_the_plain_functions(stream, poison):
    run = sx.Exec(oracle, poison=poison)
    for number, (b, s, n) in enumerate(stream):
        rng = np.random.default_rng(number)
        x, m, y = (rng.normal(size=shape).astype(np.float32) for shape in ((b, s, 2), b, n))
        batch = {"x": x, "m": m}
        got = run(ones(2), batch, y)
        assert_close(got, oracle(ones(2), batch, y), loose=FEW)
    assert all(
        len(set(axis)) <= 2 or found
        for axis, found in zip(zip(*stream, strict=True), _is_symbol(run), strict=True)
    )


def _is_symbol(run):
    in_shapes = run.specs.in_shapes
    tree = in_shapes[1] or {"x": None}
    x = tree["x"] or "_, _, _"
    return [entry != "_" for entry in x.split(", ")[:2]] + [in_shapes[2] is not None]


def test_a_tree_whose_sizes_begin_to_change_is_looked_at_in_each_call():
    run = sx.Exec(lambda tree: tree["x"].mean())
    for n in (3, 3, 5, 6, 7, 5, 3, 8):
        assert run({"x": ones(n)}) == ones(n).mean()


def test_threads_may_show_sizes_at_once():
    run, begin, failures = sx.Exec(weighted), threading.Barrier(4), []

    def calls(first):
        begin.wait()
        for step in range(6):
            b, s = first + step, 1 + (first * 3 + step) % 5
            try:
                ran(run, (b, s))
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=calls, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert str(run.specs) == 'in_shapes=(None, "b, ?, _")'


# What else an Exec does

KNOWN = [(1, 5), (2, 6), (3, 7)]


def test_previews_show_nothing():
    run = ran(sx.Exec(weighted), (1, 5))
    for b in (2, 3, 4, 5):
        assert run.plan(W, ones(b, 5, 4)).sizes == {}
    run.explain(W, ones(6, 5, 4))
    assert str(run.specs) == "in_shapes=(None, None)"


def test_a_preview_tells_of_the_older_graph_that_a_call_runs_in():
    run = ran(sx.Exec(weighted), *KNOWN)
    assert (run.plan(W, ones(1, 5, 4)).sizes, run.plan(W, ones(1, 5, 4)).is_compiled) == ({}, True)
    assert run.plan(W, ones(1, 6, 4)).sizes == {"b": 1, "unknown_1_1": 6}
    run.clear()
    assert run.plan(W, ones(1, 5, 4)).sizes == {"b": 1, "unknown_1_1": 5}


def test_frozen_nothing_new_is_found_and_old_sizes_run():
    run = ran(sx.Exec(weighted), *KNOWN)
    known = run.settings.found
    run.freeze()
    before = run.stats.compiles
    ran(run, (1, 5), (2, 6), (4, 8), (3, 5))
    with pytest.raises(sx.FrozenError):
        run(W, ones(9, 5, 4))
    with pytest.raises(sx.FrozenError):
        run(ones(3), ones(4, 8, 3))
    assert (run.settings.found, run.stats.compiles) == (known, before)


def test_a_warm_up_takes_the_symbols_that_were_found():
    run = ran(sx.Exec(weighted), *KNOWN)
    assert run.warmup(b=[1, 4], sizes={"unknown_1_1": [8, 16]}) == 3
    before = run.stats.compiles
    ran(run, (4, 16), (1, 8), (1, 9))
    assert run.stats.compiles == before


def test_a_warm_up_of_a_symbol_that_was_not_found_is_an_error():
    run = ran(sx.Exec(weighted), (1, 5))
    with pytest.raises(sx.ConfigError, match="no symbol b was inferred yet"):
        run.warmup(b=range(1, 5))


@pytest.mark.parametrize(
    "other",
    [
        copy.copy,
        copy.deepcopy,
        lambda run: pickle.loads(pickle.dumps(run)),
        lambda run: run.variant(poison="nan"),
        lambda run: run.variant(fn=lambda w, x: 2 * weighted(w, x)),
    ],
    ids=["copy", "deepcopy", "pickle", "variant", "another function"],
)
def test_copies_know_what_was_found(other):
    run = ran(sx.Exec(weighted), *KNOWN)
    known = other(run)
    assert known.plan(W, ones(9, 9, 4)).sizes == {"b": 9, "unknown_1_1": 9}
    known(W, ones(9, 9, 4))
    assert str(known.specs) == str(run.specs)


def test_a_variant_with_specs_is_bound_to_them():
    run = ran(sx.Exec(weighted), *KNOWN)
    assert run.variant(in_shapes=(None, "b, _, _")).plan(W, ones(9, 9, 4)).sizes == {"b": 9}


def test_what_was_found_is_saved(tmp_path):
    run = ran(sx.Exec(weighted), *KNOWN)
    assert run.save(tmp_path) == 3
    again = sx.load(tmp_path, weighted, trusted=True)
    ran(again, (3, 7))
    assert (again.stats.loads, again.stats.compiles) == (1, 0)
    assert str(again.specs) == str(run.specs)
    with pytest.warns(RuntimeWarning, match=r'in_shapes was None, is \(None, "b, _, _"\)'):
        given = sx.load(tmp_path, weighted, (None, "b, _, _"))
    assert given.plan(W, ones(9, 9, 4)).sizes == {"b": 9}


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    @sx.bucketed()
    def total(self, x):
        return x.sum(axis=0) * self.scale


def test_the_instances_of_a_class_find_together():
    for n, scale in [(3, 1.0), (4, 2.0), (5, 3.0), (6, 4.0)]:
        x = ones(n, 2)
        assert_close(Scaled(ones(2) * scale).total(x), x.sum(0) * ones(2) * scale, loose=FEW)
    assert str(Scaled.total.specs) == 'in_shapes=("b, _",)'


def test_modules_are_static_and_their_arrays_arguments():
    equinox = pytest.importorskip("equinox")
    linear = equinox.nn.Linear(4, 3, key=jax.random.key(0))
    fn = lambda module, x: jax.vmap(module)(x).sum()
    run = sx.Exec(fn)
    for n in (2, 3, 5, 6):
        assert_runs_as(fn, run, linear, ones(n, 4))
    assert str(run.specs) == 'in_shapes=(None, "b, _")'
    assert run.stats.compiles == 3


def test_padded_results_and_handles_are_found_as_arrays_are():
    run, after = sx.Exec(lambda x: 2 * x), sx.Exec(lambda x: x.sum())
    for n in (3, 5, 6, 7):
        assert float(after(run.padded(ones(n)))) == 2 * ones(n).sum()
    assert str(after.specs) == 'in_shapes=("b",)'


def test_a_map_without_specs_has_examples_that_are_ragged_along_axis_0():
    run = sx.Exec(lambda x: x.sum())
    assert [float(x) for x in run.map([ones(3), ones(5), ones(4)])] == [6, 15, 10]
    assert run.cache_size == 1


@pytest.mark.parametrize(
    "buckets", [{"b": 4, sx.UNKNOWN: 10}, {"b": 4, "unknown_1_1": 10}], ids=str
)
def test_strategies_are_for_symbols_that_may_be_found(buckets):
    run = ran(sx.Exec(weighted, buckets=buckets), *KNOWN)
    assert run.plan(W, ones(5, 5, 4)).buckets == {"b": 8, "unknown_1_1": 10}


def test_a_strategy_for_what_is_never_found_is_an_error():
    with pytest.raises(sx.ConfigError, match="no spec has a symbol `s`; the symbols are `b`"):
        sx.Exec(weighted, buckets={"s": 4})


@pytest.mark.parametrize(
    ("sizes", "symbols"), [([], ["b"]), ([(1, 5), (2, 6), (3, 7)], ["b", "unknown_0_1"])], ids=str
)
def test_tools_take_what_was_found_or_axis_0(sizes, symbols):
    run = sx.Exec(lambda x: x.mean(axis=0))
    for size in sizes:
        run(ones(*size))
    x = ones(3, 5)
    assert sorted(run.cost_model(x).symbols) == symbols
    assert sorted(sx.validate(run, x, rounds=1, poisons=("nan",)).sizes[0]) == symbols


@pytest.mark.slow
def test_buckets_are_fitted_for_the_symbols_that_were_found():
    run = ran(sx.Exec(weighted), *KNOWN)
    fitted = sx.fit(run, [{"b": 4, "unknown_1_1": 9}], graphs=1)
    assert fitted.strategies.keys() == {"b", "unknown_1_1"}
    other = run.variant(buckets=fitted.strategies)
    assert other.plan(W, ones(3, 8, 4)).buckets == {"b": 4, "unknown_1_1": 9}


def test_warmup_of_a_symbol_that_is_not_inferred_yet_tells_when_it_is():
    ex = sx.Exec(lambda x: x + 1, buckets=sx.Pow2())
    ex(ones(3))
    with refused(sx.ConfigError, "warmup: no symbol b was inferred yet.", "in_shapes=, such as"):
        ex.warmup(b=range(1, 5))
    ex(ones(4)), ex(ones(5))
    assert ex.warmup(b=[3, 5, 9]) == 1  # the calls have made the other graphs
