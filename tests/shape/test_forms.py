"""Every form of a spec: tuples, strings and shapes mean the same, and unknown sizes differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec._errors import SpecError
from shapeexec.shape import BATCH, SEQ_LEN, UNKNOWN, Dim, Shape, compile_spec, eval_shape
from shapeexec.shape._forms import is_one_spec, normal_by_name, normal_by_position
from tests.tolerance import EQUAL, assert_close

B, S = BATCH, SEQ_LEN


def sizes_of(in_shapes, *args, kwarg_shapes=None, **kwargs):
    spec = compile_spec(in_shapes, args, kwarg_shapes=kwarg_shapes, kwargs=kwargs)
    return spec.sizes(spec.shapes(jax.tree.leaves((args, kwargs))))


def refused(call):
    with pytest.raises(SpecError) as caught:
        call()
    return caught.value


# Tuples of dims


@pytest.mark.parametrize(
    "spec",
    [
        (B, S, 4),
        (B, Dim("s"), np.int64(4)),
        jax.export.symbolic_shape("b, s, 4"),
        Shape(None, B, S, 4),
        Shape("float32", "b", "s", 4),
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, s, 4"), jnp.float32),
        (B, S, None),
        (B, S, ...),
        (B, ..., S, 4),
        "b, s, 4",
    ],
    ids=str,
)
def test_each_form_of_a_spec_names_the_sizes(spec):
    x = np.zeros((3, 7, 4), np.float32)
    assert sizes_of((spec,), x) == {"b": 3, "s": 7}
    assert sizes_of(({"x": spec},), {"x": x}) == {"b": 3, "s": 7}
    assert sizes_of((), kwarg_shapes={"x": spec}, x=x) == {"b": 3, "s": 7}


def test_texts_tuples_and_shapes_mix_as_pytrees_nest():
    specs = ("b, s", (B, 4), {"y": Shape(None, "s"), "z": [(B,), None]}, None)
    args = np.zeros((3, 7)), np.zeros((3, 4)), {"y": np.zeros(7), "z": [np.zeros(3), 1]}, "text"
    assert sizes_of(specs, *args) == {"b": 3, "s": 7}


def test_expressions_of_dims_stand_in_tuples():
    assert sizes_of(((B * S, 2 * S + 1, S),), np.zeros((12, 9, 4))) == {"b": 3, "s": 4}


def test_the_dims_of_the_only_argument_may_stand_alone():
    assert sizes_of((B, S, 4), np.zeros((3, 7, 4))) == {"b": 3, "s": 7}
    assert sizes_of((B,), np.zeros(3)) == {"b": 3}
    assert sizes_of(((B,),), np.zeros(3)) == {"b": 3}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((B, S, 4), True),
        ((B,), True),
        ((None, B), True),
        ((3, 4), True),
        ((UNKNOWN, ...), True),
        ((None, None), False),
        ((None,), False),
        ((), False),
        (("b", "s"), False),
        (("b", 3), False),
        ((B, "s"), False),
        (((B, S), None), False),
        ([B, S], False),
        ((True, False), False),
        ((1.5, B), False),
        (B, False),
    ],
    ids=str,
)
def test_a_tuple_of_dims_alone_is_one_spec(value, expected):
    assert is_one_spec(value) == expected


def test_a_tuple_of_none_alone_is_two_static_arguments():
    assert sizes_of((None, None), np.zeros(3), np.zeros(4)) == {}
    assert sizes_of(((None, None),), (np.zeros(3), 2)) == {}


def test_none_in_a_tuple_is_a_static_axis_of_any_size():
    spec = compile_spec(((B, None),), (np.zeros((3, 7)),))
    assert spec.dims([(3, 7)]) == ((B, 7),)
    assert spec.symbols == {"b"}


def test_the_normal_form_is_its_own():
    specs = ("b, s", (B, UNKNOWN), {"y": Shape(None, UNKNOWN), "z": None}, Shape(bool, "s"))
    once = normal_by_position(specs)
    assert once == (
        "b, s",
        "b, unknown_1_1",
        {"y": Shape(None, "unknown_2_y_0"), "z": None},
        once[3],
    )
    assert normal_by_position(once) == once
    # as a method has it, without `self`: names stay those of the places where people wrote them
    assert normal_by_position(once[1:]) == once[1:]


# Shapes without a dtype


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
def test_a_shape_without_a_dtype_pins_none(dtype):
    assert sizes_of((Shape(None, "b"),), np.zeros(3, dtype)) == {"b": 3}
    assert sizes_of(((B,),), np.zeros(3, dtype)) == {"b": 3}
    assert Shape(dtype, 3).matches(Shape(None, "b"))
    assert not Shape(None, 3).matches(Shape(dtype, "b"))


def test_no_dtype_is_not_numpys_default_one():
    assert Shape(None, 3) != Shape("float64", 3)
    assert Shape("float64", 3) != Shape(None, 3)
    assert Shape(None, 3) == Shape(None, 3)
    assert hash(Shape(None, 3)) == hash(Shape(None, 3))
    assert not Shape("float32", 3).matches(Shape("float64", 3))
    assert Shape(None, 3) != (None, (3,))


def test_a_shape_without_a_dtype_prints_its_dims():
    shape = Shape(None, B, UNKNOWN, 4)
    assert (str(shape), repr(shape)) == ("[b,unknown_1,4]", "Shape([b,unknown_1,4])")
    assert shape.with_dynamic_batch() == shape
    assert shape.rank == 3
    assert shape.dtype is None
    assert shape.evaluate(b=2, unknown_1=3) == Shape(None, 2, 3, 4)


# Errors


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: Dim(-1), "-1 is not a dimension."),
        (lambda: Dim(np.int64(-1)), "-1 is not a dimension."),
        (lambda: Shape("float32", -1, 512), "a Shape has the negative size -1 on axis 0: -1, 512."),
        (lambda: Shape("float32", 2, "-3"), "a Shape has the negative size -3 on axis 1: 2, -3."),
        (lambda: compile_spec(((-1, 512),), (0,)), "-1 is not a dimension."),
        (lambda: compile_spec(("-1, 512",), (0,)), 'the spec "-1, 512" has the negative size -1.'),
        (lambda: Shape(None, 4).with_dim(0, -1), "a Shape has the negative size -1 on axis 0: -1."),
    ],
)
def test_minus_one_is_no_size_and_the_error_names_what_is(call, what):
    error = refused(call)
    assert error.what == what
    assert error.why == "a size that changes has a name here"
    assert error.fix.startswith(
        'for a size that changes write sx.BATCH, sx.SEQ_LEN, sx.Dim("n") or sx.UNKNOWN'
    )


def test_arithmetic_may_pass_below_zero():
    assert S - S - 1 == -1
    assert Dim(1) - 2 + S == S - 1
    assert not Shape(None, 3, 4).matches("s, s - 4")


@pytest.mark.parametrize(
    ("in_shapes", "what", "fix"),
    [
        (
            ((None, 784),),
            "in_shapes[0] is (None, 784), in which no size may change.",
            "(sx.UNKNOWN, 784) if None is to be any size; None in place",
        ),
        (
            ({"x": (None, 3, ...)},),
            "in_shapes[0]['x'] is (None, 3, Ellipsis)",
            "(sx.UNKNOWN, 3, ...)",
        ),
        (
            [B, 4],
            "in_shapes[0] is Dim('b'), which is not a spec.",
            "in_shapes=((sx.Dim('b'), 4),) for one array; in_shapes=((sx.Dim('b'),), (4,)) for one",
        ),
        (
            ("b", B),
            "in_shapes[1] is Dim('b'), which is not a spec.",
            "in_shapes=(\"b\", (sx.Dim('b'),)) for one axis of each array",
        ),
        ((UNKNOWN, "b"), "in_shapes[0] is UNKNOWN, which is not a spec.", "(sx.UNKNOWN,)"),
        (([B, "2*s, 4"],), "in_shapes[0][0] is Dim('b')", "[(sx.Dim('b'),), \"2*s, 4\"] for one"),
        (({"x": (B, "s")},), "in_shapes[0]['x'][0] is Dim('b')", "(sx.Dim('b'), sx.Dim('s')) for"),
        ((np.int64(0), 1), "in_shapes[0] is ", 'in_shapes=("b, s, ...",) for axes at these'),
        ((3, 5, 4), "in_shapes[0] is 3, which is not a spec.", "in_shapes=((3, 5, 4),) for one"),
        (((1.5, B),), "in_shapes[0][0] is 1.5, which is not a spec.", "a tuple of dims"),
        (((..., B, ...),), "the spec", "keep one `...`"),
        (B, "in_shapes=Dim('b') is not a sequence of specs.", "in_shapes=((sx.Dim('b'),),)"),
        ("b, s", "in_shapes='b, s' is not a sequence of specs.", "in_shapes=('b, s',)"),
    ],
    ids=str,
)
def test_what_is_no_spec_is_told_with_what_is(in_shapes, what, fix):
    error = refused(lambda: normal_by_position(in_shapes))
    assert error.what.startswith(what)
    assert fix in error.fix


def test_a_keywords_spec_is_told_by_name():
    error = refused(lambda: normal_by_name({"mask": (-1, 3)}))
    assert error.where == "kwarg_shapes['mask']"


def test_dims_alone_for_two_arguments_are_told_both_ways():
    error = refused(lambda: sizes_of((B, S), np.zeros(3), np.zeros(4)))
    assert error.what == "in_shapes has 1 spec for 2 arguments."
    assert error.fix.endswith("or, if each argument has one axis, in_shapes=('b', 's')")
    meant = eval(error.fix.rpartition("in_shapes=")[2])
    assert sizes_of(meant, np.zeros(3), np.zeros(4)) == {"b": 3, "s": 4}


# eval_shape


@pytest.mark.parametrize(
    "spec",
    [
        "b, s, 4",
        (B, S, 4),
        Shape("float32", B, S, 4),
        Shape(None, B, S, 4),
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, s, 4"), jnp.float32),
    ],
    ids=str,
)
def test_eval_shape_takes_each_form_of_a_spec(spec):
    assert str(eval_shape(lambda x: x.sum(axis=1), spec)) == "f32[b,4]"
    told = eval_shape(lambda tree: {"y": tree["x"][0].reshape(-1)}, {"x": [spec]})
    assert str(told["y"]) == "f32[4*b*s]"


def test_eval_shape_takes_arrays_beside_specs_and_none_is_none():
    fn = lambda x, tree, none: (x[: tree["n"].shape[0]], none)
    out, none = eval_shape(fn, (B + 3, 2), {"n": np.zeros(3, np.int8)}, None)
    assert (str(out), none) == ("f32[3,2]", None)


def test_eval_shape_of_unknown_sizes_names_argument_and_axis():
    out = eval_shape(lambda x, y: jnp.concatenate([x, y]), "?, 2", (UNKNOWN, 2))
    assert str(out) == "f32[unknown_1_0 + unknown_0_0,2]"


@pytest.mark.parametrize("spec", ["b, _", "b, ...", (B, None), (B, ...)], ids=str)
def test_eval_shape_needs_the_size_of_each_axis(spec):
    error = refused(lambda: eval_shape(lambda x: x, spec))
    assert error.what.endswith("which does not give the size of each axis.")
    assert error.fix == "write a size, a symbol or `?` for each axis, or pass an array"


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (B, "shapes[0] is Dim('b'), which is not a spec."),
        (3.0, "a float has no shape and dtype."),
        ("b,, s", 'axis 1 of the spec "b,, s" is not a dimension: "".'),
        ((-1, 3), "-1 is not a dimension."),
    ],
)
def test_eval_shape_refuses_what_is_no_spec(spec, what):
    assert refused(lambda: eval_shape(lambda x: x, spec)).what == what


# In an Exec


def test_an_exec_takes_each_form():
    fn = lambda x: x.sum(axis=1)
    x = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    for spec in (((B, S, 4),), (B, S, 4), ("?, ?, 4",), ((UNKNOWN, None, 4),), ((B, ...),)):
        assert_close(sx.Exec(fn, spec)(x), fn(x), loose=EQUAL)
    by_name = sx.Exec(lambda *, x: x.sum(axis=1), kwarg_shapes={"x": (B, S, 4)}, in_shapes=())
    assert_close(by_name(x=x), fn(x), loose=EQUAL)
    assert by_name.plan(x=x).buckets == {"b": 4, "s": 8}
