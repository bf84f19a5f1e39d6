"""Unknown sizes: a symbol for each, called after argument and axis."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.shape import UNKNOWN, Dim, Shape, _unknown, compile_spec, eval_shape
from tests.shape.test_forms import B, refused, sizes_of


@pytest.mark.parametrize(
    "spec",
    ["?, UNKNOWN, 4", (UNKNOWN, UNKNOWN, 4), Shape("float32", UNKNOWN, "?", 4), "( ? , ?, _)"],
    ids=str,
)
def test_each_unknown_size_is_a_symbol_called_after_argument_and_axis(spec):
    x = np.zeros((3, 7, 4), np.float32)
    assert sizes_of((spec,), x) == {"unknown_0_0": 3, "unknown_0_1": 7}
    expected = {"unknown_1_0": 3, "unknown_1_1": 7}
    assert sizes_of((None, spec), 1, x) == expected


def test_a_name_tells_the_way_to_the_array():
    spec = ({"tokens": "b, ?", "ids": [(UNKNOWN,), (UNKNOWN,)]}, "..., ?, 4")
    args = {"tokens": np.zeros((3, 5)), "ids": [np.zeros(6), np.zeros(7)]}, np.zeros((9, 8, 4))
    assert sizes_of(spec, *args) == {
        "b": 3,
        "unknown_0_tokens_1": 5,
        "unknown_0_ids_0_0": 6,
        "unknown_0_ids_1_0": 7,
        "unknown_1_end2": 8,
    }
    assert sizes_of((), kwarg_shapes={"m": "?"}, m=np.zeros(3)) == {"unknown_m_0": 3}
    assert sizes_of(({"a b": "?"},), {"a b": np.zeros(3)}) == {"unknown_0_a0x20zb_0": 3}
    assert sizes_of((), kwarg_shapes={"q_len": "?"}, q_len=np.zeros(3)) == {"unknown_q__len_0": 3}


ENTRIES = [*"a a_b a__b _a a_ _ __ b a.b a-b a\u00e9 0x 0xz 0x5fz x 0 00x2dz A end1 _0".split(), ""]


def test_no_two_places_have_one_name():
    paths = [*itertools.product(ENTRIES, repeat=1), *itertools.product(ENTRIES, repeat=2)]
    paths += [(first, *rest) for first in ("a", "_") for rest in paths if len(rest) == 2]
    names = {_unknown.at_place(_unknown.place_of(*path), 0) for path in paths}
    assert len(names) == len(paths)
    assert all(name.isascii() and name.isidentifier() for name in names)
    for path in paths[:: len(paths) // 40]:
        name = _unknown.at_place(_unknown.place_of(*path), 0)
        assert Dim(name).name == name


@pytest.mark.parametrize(
    "path", [("q",), ("q", "len"), ("q_len",), ("_q_", 0, "a.b"), (0, "_", "")]
)
def test_a_name_is_covered_by_those_of_the_places_around_it_and_no_other(path):
    name = _unknown.at_place(_unknown.place_of(*path), 2)
    around = [
        _unknown.at_place(_unknown.place_of(*path[:end]), 2) for end in range(len(path), 0, -1)
    ]
    assert _unknown.names_for(name) == (*around, "UNKNOWN")


@pytest.mark.parametrize(
    "spec",
    [{"a": {"b": "?"}, "a_b": "?"}, {"x.y": "?", "x-y": "?"}, {"a_": {"b": "?"}, "a": {"_b": "?"}}],
    ids=str,
)
def test_unknown_sizes_of_keys_that_look_alike_are_two(spec):
    sizes = iter((3, 5))
    arrays = jax.tree.map(lambda _: np.zeros(next(sizes)), spec)
    assert sorted(sizes_of((spec,), arrays).values()) == [3, 5]
    dims = [shape.dims for shape in jax.tree.leaves(eval_shape(lambda d: d, spec))]
    assert dims[0] != dims[1]


UNKNOWN_PAIRS = [
    ("?", "unknown_0_0"),
    ("unknown_1_0", "?"),
    ("unknown_1_0", (UNKNOWN,)),
    ("2*unknown_1_0", Shape("float32", UNKNOWN)),
    ((Dim("unknown_1_1"),), "4, ?"),
    ("?, unknown_0_0", None),
    ({"a": "?", "b": "unknown_0_a_0"}, None),
    (None, collections.OrderedDict([("1", "?"), (1, "?")])),
]


@pytest.mark.parametrize("pair", UNKNOWN_PAIRS, ids=str)
def test_a_symbol_that_is_called_as_an_unknown_size_is_refused(pair):
    for attempt in (
        lambda: sx.Exec(lambda x, y: x, pair),
        lambda: compile_spec(pair, (0, 0)),
        lambda: eval_shape(lambda x, y: x, *pair),
    ):
        error = refused(attempt)
        assert error.what.endswith("would be the name of two sizes.")
        assert error.fix.startswith("rename the other size")
    if pair[1] is not None and type(pair[1]) is not collections.OrderedDict:
        error = refused(lambda: sx.Exec(lambda x: x, pair[:1]).variant(in_shapes=pair))
        assert error.what.endswith("would be the name of two sizes.")


def test_a_symbol_that_is_called_as_an_unknown_size_behind_others_is_refused():
    error = refused(lambda: sx.Exec(lambda x, y: x, ((Dim("unknown_1_end1"),), "..., ?")))
    assert error.what == "`unknown_1_end1` would be the name of two sizes."
    assert error.got == "UNKNOWN in in_shapes[1], `unknown_1_end1` in in_shapes[0]"


def test_a_symbol_that_is_called_as_an_unknown_size_of_a_tree_is_refused_where_the_tree_is_known():
    spec, x = ("?", "unknown_0_a_0"), {"a": np.zeros(3), "b": np.zeros(4)}
    run = sx.Exec(lambda x, y: x["a"].sum() + y.sum(), spec)
    error = refused(lambda: run(x, np.zeros(3)))
    assert error.what == "`unknown_0_a_0` would be the name of two sizes."


def test_a_name_of_an_unknown_size_may_be_written_where_there_is_none():
    specs = ("unknown_0_0, 4", "unknown_0_0")
    assert sizes_of(specs, np.zeros((3, 4)), np.zeros(3)) == {"unknown_0_0": 3}
    out = eval_shape(lambda x, y: jnp.concatenate([x, y]), "?", "?")
    assert str(eval_shape(lambda x: x * 2, out)) == "f32[unknown_1_0 + unknown_0_0]"


def test_one_spec_of_several_arrays_makes_a_symbol_for_each():
    args = {"x": np.zeros((3, 5)), "y": np.zeros((4, 5))}
    assert sizes_of(("?, s",), args) == {"unknown_0_x_0": 3, "unknown_0_y_0": 4, "s": 5}


def test_an_unknown_dim_that_is_taken_along_stays_the_same_size():
    first = Shape(None, UNKNOWN, 4).dims[0]
    shape = Shape(None, UNKNOWN, 4).with_dim(1, first * 2)
    assert sizes_of((shape,), np.zeros((3, 6))) == {"unknown_0_0": 3}
    assert refused(lambda: sizes_of((shape,), np.zeros((3, 5)))).what.startswith("args[0] axis 1")


def test_an_unknown_dim_never_takes_a_name_that_is_taken():
    taken = Shape(None, UNKNOWN, UNKNOWN).dims[1]
    first, second = Shape(None, taken, UNKNOWN).dims
    assert first != second


def test_unknown_answers_what_a_dim_answers():
    assert (UNKNOWN.name, UNKNOWN.is_static, UNKNOWN.symbols) == ("UNKNOWN", False, frozenset())


@pytest.mark.parametrize("text", ["2*UNKNOWN", "UNKNOWN + 1", "? // 2", "max(?, 2)"])
def test_a_text_computes_nothing_of_an_unknown_size(text):
    shaped = (lambda: compile_spec((f"b, {text}",), (0,)), lambda: Shape(None, text))
    for call in (lambda: Dim(text), *shaped):
        error = refused(call)
        assert error.what == "UNKNOWN cannot be used in arithmetic."
        assert error.fix == 'name the size: sx.Dim("n") + 1'


@pytest.mark.parametrize(
    "pattern",
    ["?, UNKNOWN, 4", (UNKNOWN, None, 4), ("?", "_", 4), (..., 4), Shape(None, "a", "c", 4)],
)
def test_a_shape_matches_a_pattern_of_each_form(pattern):
    assert Shape("float32", "b", "2*s", 4).matches(pattern)
    assert not Shape("float32", "b", "2*s", 5).matches(pattern)


@pytest.mark.parametrize("pattern", [None, np.ones((3, 4)), 3, B], ids=lambda p: type(p).__name__)
def test_what_is_no_pattern_is_told(pattern):
    error = refused(lambda: Shape("float32", 3, 4).matches(pattern))
    assert error.what == f"a {type(pattern).__name__} is not a pattern."
    assert Shape("float64", 3, 4).matches(Shape.of(np.ones((3, 4))))


def test_shapes_of_unknown_dims_take_every_method():
    shape = Shape("float32", UNKNOWN, 4)
    assert shape == Shape("float32", "?", 4)
    assert shape.with_dim(0, UNKNOWN) == shape
    assert shape.with_dynamic_batch() == Shape("float32", B, 4)
    assert (shape.rank, shape.dims, shape.is_static) == (2, (Dim("unknown_0"), 4), False)
    assert shape.matches("?, 4")
    assert shape.matches((UNKNOWN, 4))
