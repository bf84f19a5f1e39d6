"""Specs that follow from the shapes of calls."""

import functools
import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapeexec.shape._inferred import FEW, Inferred, first, widen

ONE = (4,)


def inferred(*calls, given=()):
    """What calls have shown; each is the shapes of its arrays."""
    places = [str(leaf) for leaf in range(len(calls[0]) - bool(given))]
    start = first(places, calls[0], given=given)
    return functools.reduce(widen, calls, start)


def sizes(*each):
    """Calls of one array of rank 1."""
    return [((size,),) for size in each]


@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        # how many sizes make a symbol
        (sizes(3), [None]),
        (sizes(3, 5), [None]),
        (sizes(3, 5, 3, 5, 5), [None]),
        (sizes(3, 5, 7), ["b"]),
        (sizes(0, 5, 7), ["b"]),
        # one axis of several
        ([((2, 5),), ((2, 6),), ((2, 7),)], ["_, ?"]),
        ([((2, 5),), ((3, 6),), ((4, 7),)], ["b, ?"]),
        # axes that are always equal share a symbol, others do not
        ([((3,), (3,)), ((4,), (4,)), ((5,), (5,))], ["b", "b"]),
        ([((3,), (3,)), ((4,), (4,)), ((5,), (6,))], ["b", "?"]),
        ([((3, 3),), ((4, 4),), ((5, 5),)], ["b, b"]),
        ([((9, 3), (9, 3)), ((9, 4), (9, 4)), ((9, 5), (9, 5))], ["_, unknown_0_1"] * 2),
        # a parameter of the size of a batch parts from it
        ([((4, 4), (4,)), ((5, 4), (4,)), ((6, 4), (4,)), ((7, 4), (4,))], ["b, _", None]),
        # the first axis 0 that becomes a symbol is `b` for good, whichever argument it is of
        (
            [((1,), (5,)), ((1,), (6,)), ((1,), (7,)), ((2,), (7,)), ((3,), (7,))],
            ["?", "b"],
        ),
        ([(ONE, (2, 5)), (ONE, (3, 5)), (ONE, (6, 5))], [None, "b, _"]),
        ([((1,), (5, 2)), ((2,), (6, 2)), ((3,), (7, 2))], ["b", "?, _"]),
        # no axes
        ([((), (3,)), ((), (4,)), ((), (5,))], [None, "b"]),
    ],
)
def test_specs_are_inferred_from_a_stream_of_calls(calls, texts):
    assert list(inferred(*calls).texts) == texts


@pytest.mark.parametrize(
    ("calls", "texts"),
    [
        # The last shape holds the sizes of `b` and `n`, symbols of arrays that have specs.
        ([((3,), (3, 9)), ((4,), (4, 9)), ((5,), (5, 9))], ["b"]),
        ([((9,), (3, 9)), ((8,), (4, 8)), ((7,), (5, 7))], ["n"]),
        ([((3,), (4, 9)), ((4,), (5, 9)), ((5,), (6, 9))], ["?"]),
        ([((9,), (3, 9)), ((9,), (4, 9)), ((9,), (5, 9))], [None]),
    ],
)
def test_axes_that_equal_a_given_symbol_have_its_name(calls, texts):
    found = inferred(*calls, given=("b", "n"))
    assert list(found.texts) == texts


def test_sizes_of_given_symbols_alone_make_no_other_specs():
    before, after = (
        inferred(*calls, given=("b",))
        for calls in ([((4,), (3,))], [((4,), (3,)), ((4,), (5,)), ((4,), (6,)), ((4,), (7,))])
    )
    assert before.symbols == after.symbols == ()


SHAPES = st.tuples(*(st.tuples(*(st.integers(0, 4) for _ in range(rank))) for rank in (2, 1, 2)))
STREAMS = st.lists(SHAPES, min_size=1, max_size=8)


@given(STREAMS, st.randoms(use_true_random=False))
def test_the_order_of_calls_does_not_matter(calls, random):
    other = random.sample(calls, len(calls))
    assert sorted(inferred(*calls).symbols) == sorted(inferred(*other).symbols)


@given(STREAMS)
def test_the_name_of_an_axis_stays(calls):
    named = [inferred(*calls[: n + 1]).batch for n in range(len(calls))]
    assert len(set(named) - {None}) <= 1
    known = [axis for axis in named if axis is not None]
    assert named == [None] * (len(named) - len(known)) + known


@given(STREAMS)
@example([((0, 0), (0,), (0, 0)), ((1, 1), (1,), (1, 1))])
def test_symbols_are_axes_of_many_sizes_and_share_where_all_are_equal(calls):
    axes = [(leaf, axis) for leaf, shape in enumerate(calls[0]) for axis in range(len(shape))]
    history = {at: [call[at[0]][at[1]] for call in calls] for at in axes}
    found = inferred(*calls)
    symbols = {axis: shared for shared in found.symbols for axis in shared}
    assert symbols.keys() == {at for at in axes if len(set(history[at])) > FEW}
    for one, other in itertools.combinations(symbols, 2):
        assert (symbols[one] == symbols[other]) == (history[one] == history[other])


@given(STREAMS, SHAPES)
def test_a_call_that_was_seen_shows_nothing_new_and_specs_only_widen(calls, call):
    before = inferred(*calls)
    assert all(widen(before, seen) is before and before.admits(seen) for seen in calls)
    after = {axis for axes in widen(before, call).symbols for axis in axes}
    assert {axis for axes in before.symbols for axis in axes} <= after


@given(STREAMS)
def test_what_is_known_can_be_written_and_read(calls):
    found = inferred(*calls)
    assert Inferred.from_json(json.loads(json.dumps(found.to_json()))) == found
