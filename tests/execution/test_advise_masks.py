"""Advice on masks: what they cost is timed by copies that leave them out, which no call meets."""

import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution._function import runner_of
from shapeexec.execution.analysis import _of_masks, _timed
from shapeexec.masking._values import MaskNote
from tests.execution.support import ones
from tests.execution.test_advise import SPEED, facts_of, served


def peaks(x):  # x: f32[b, s]
    return x.max(axis=1)


def two_masks(x):  # x: f32[b, s]
    return x.max(axis=1), jnp.cos(x).sum(axis=1)


def seconds(call):
    """The median of calls, of two runs that take turns."""
    found = []
    for _ in range(15):
        began = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def test_exact_sizes_spare_what_the_masks_were_said_to_take():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(512, 4096)), jnp.float32)
    run = served(sx.Exec(peaks, ("b, s",)), [(512, 4096)] * 3)
    made, hits = run.stats.compiles, run.graphs[0].hits
    advice = run.advise(SPEED, timed="masks")
    (line,) = [line for line in advice if line.kind == "masks"]
    names = {"sx": sx, "run": run}
    exec(line.change, names)
    other = advice.apply("masks")
    assert names["run"].settings == other.settings
    assert (run.stats.compiles, len(run.graphs)) == (made, 1)
    np.testing.assert_array_equal(run(x), other(x))
    assert [len(each.explain(x).masks) for each in (run, other)] == [1, 0]
    assert any(  # of ten rounds, for other programs may take the processor in some
        line.seconds / 2
        <= hits * (seconds(lambda: run(x)) - seconds(lambda: other(x)))
        <= 2 * line.seconds
        for _ in range(10)
    )


def graph_of(fn, *arguments, in_shapes=("b, s",)):
    run = sx.Exec(fn, in_shapes)
    run(*arguments)
    (graph,) = runner_of(run).store.graphs()
    return graph


def test_each_primitive_is_timed_without_its_own_masks_alone(monkeypatch):
    predicates = []
    monkeypatch.setattr(
        _timed, "_copy", lambda *_, left_out: predicates.append(left_out or (lambda note: None))
    )
    monkeypatch.setattr(_timed, "_compared", lambda whole, other: (3.0, 1.0, 0.5))
    found = _timed.timed_masks(graph_of(two_masks, ones(3, 5)))
    assert {one.note.primitive for one in found} == {"reduce_max", "reduce_sum"}
    assert {one.symbols for one in found} == {frozenset("s")}
    notes = [one.note for one in found]
    assert [[own(note) for note in notes] for own in predicates] == [
        [True, True],
        [None, None],
        [True, False],
        [False, True],
    ]


def test_a_copy_without_masks_is_wrong_and_one_with_all_is_right():
    recipe = graph_of(two_masks, ones(3, 5)).outline.recipe
    sizes = {"b": np.int32(3), "s": np.int32(5)}
    x = np.zeros((4, 8), np.float32)
    x[:3, :5] = -1

    def top(**options):
        masked = dataclasses.replace(recipe.masked, **options)
        return np.asarray(masked(sizes, (), leaves=[x])[0][:3])

    np.testing.assert_array_equal(top(), [-1, -1, -1])
    np.testing.assert_array_equal(top(left_out=lambda note: True), [0, 0, 0])
    np.testing.assert_array_equal(
        top(left_out=lambda note: note.primitive == "reduce_sum"), [-1, -1, -1]
    )


def forever(x):  # x: f32[b, s]
    return jax.lax.while_loop(lambda y: y.max() > 2, lambda y: y / 2, x).max(axis=1)


def shown(x):  # x: f32[b, s]
    jax.debug.print("{}", x.shape[0])
    return x.max(axis=1)


@pytest.mark.parametrize("fn", [forever, shown, lambda x: x * 2], ids=("while", "print", "no mask"))
def test_what_may_not_end_or_shows_itself_is_not_timed(fn, monkeypatch):
    monkeypatch.setattr(_timed, "_copy", None)
    assert _timed.timed_masks(graph_of(fn, ones(3, 5))) == ()


def branching(x):  # x: f32[b, s]
    return jax.lax.cond(x[0, 0] > 0, lambda y: y.max(axis=1), lambda y: y.min(axis=1), x)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (forever, "copies of the graph run on made-up data, on which `while` may never end"),
        (branching, "copies of the graph run on made-up data, on which `cond` may take another"),
        (shown, "copies of the graph run on made-up data, on which `debug_"),
    ],
    ids=("while", "cond", "print"),
)
def test_advice_says_why_masks_were_not_timed(fn, why):
    run = sx.Exec(fn, ("b, s",))
    run(ones(3, 5))
    advice = run.advise(SPEED, timed="masks")
    (note,) = advice.notes
    assert note.startswith(f"the masks were not timed: {why}")
    assert str(advice).endswith(f"note: {note}")
    assert run.advise(SPEED).notes == ()


def test_advice_says_that_masks_of_arrays_placed_on_purpose_were_not_timed():
    run = sx.Exec(peaks, ("b, s",))
    run(jax.device_put(ones(3, 5), jax.devices()[0]))
    (note,) = run.advise(SPEED, timed="masks").notes
    assert note == "the masks were not timed: args[0] is committed to its device"


NOTE = MaskNote("reduce_max", "x.max()  (a.py:1)", "f32[b,s] along s", "filled", masked=True)
TIMED = _timed.TimedMask(NOTE, frozenset("s"), 100e-6, 30e-6, 20e-6)
EXACT = 'run = run.variant(buckets={"b": sx.Pow2(), "s": sx.Exact()})'
TRUST = "run = run.variant(masking=False)  # if the function masks itself: sx.validate tells"


@pytest.mark.parametrize(
    ("change", "sizes", "expected"),
    [
        ({}, [5, 5], EXACT),
        ({}, [5, 6, 7], TRUST),  # two graphs more cost more than the masks
        ({"symbols": frozenset("q")}, [5, 5], TRUST),
        ({"spared": 4e-6}, [5, 5], None),
        ({"spared_mostly": 0.0}, [5, 5], None),
    ],
    ids=("few sizes", "many sizes", "no symbol of calls", "below 5 %", "not in most rounds"),
)
def test_masks_are_told_where_most_rounds_spare_a_share_of_the_call(change, sizes, expected):
    run = served(sx.Exec(peaks, ("b, s",)), [(2, s) for s in sizes])
    facts = dataclasses.replace(facts_of(run), masks=(dataclasses.replace(TIMED, **change),))
    lines = [*_of_masks.masks(facts)]
    assert [line.change for line in lines] == ([] if expected is None else [expected])
    for line in lines:
        assert line.observation.startswith(
            "the masks of `reduce_max` take 30 of 100 us of a call in b=2, s=8"
        )
        assert line.seconds == pytest.approx(30e-6 * (len(sizes) - 1))


def test_what_cannot_be_timed_is_refused():
    run = served(sx.Exec(peaks, ("b, s",)), [(2, 3)])
    with pytest.raises(sx.ConfigError, match="advise: timed='graphs' cannot be timed") as raised:
        run.advise(SPEED, timed="graphs")
    assert raised.match('Fix: +timed="masks", or None: nothing runs')
    assert not [line for line in run.advise(SPEED) if line.kind == "masks"]
