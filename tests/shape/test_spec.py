"""Specs: their text, how they fit arguments, the sizes that follow, and each error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapeexec._errors import SpecError
from shapeexec.shape import (
    UNKNOWN,
    Dim,
    Shape,
    compile_spec,
    default_in_shapes,
    parse_spec,
)

B, S = Dim("b"), Dim("s")


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def bound(in_shapes, *args, kwarg_shapes=None, **kwargs):
    spec = compile_spec(in_shapes, args, kwarg_shapes=kwarg_shapes, kwargs=kwargs)
    shapes = spec.shapes(jax.tree.leaves((args, kwargs)))
    return spec, shapes


def sizes_of(in_shapes, *args, **kwargs):
    spec, shapes = bound(in_shapes, *args, **kwargs)
    return spec.sizes(shapes)


def dims_of(in_shapes, *args, **kwargs):
    spec, shapes = bound(in_shapes, *args, **kwargs)
    return spec.dims(shapes)


def refused(in_shapes, *args, **kwargs):
    with pytest.raises(SpecError) as caught:
        sizes_of(in_shapes, *args, **kwargs)
    return caught.value


# The text of a spec


@pytest.mark.parametrize(
    ("text", "before", "has_ellipsis", "after"),
    [
        ("b, s, 512", (B, S, 512), False, ()),
        ("(b, 2*s + 1)", (B, 2 * S + 1), False, ()),
        ("(b), (s)", (B, S), False, ()),
        ("b, _", (B, None), False, ()),
        ("b, ...", (B,), True, ()),
        ("..., s", (), True, (S,)),
        ("b, ..., s, 3", (B,), True, (S, 3)),
        ("b,", (B,), False, ()),
        ("max(s - 2, 0), b", (Dim("max(s - 2, 0)"), B), False, ()),
        ("", (), False, ()),
        ("()", (), False, ()),
    ],
)
def test_a_spec_reads_as_jax_export_writes_it(text, before, has_ellipsis, after):
    spec = parse_spec(text)
    assert (spec.before, spec.has_ellipsis, spec.after) == (before, has_ellipsis, after)
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize("text", ["b, s", "b, 2*s + 1, 3", "_, b", "b, ...", "(b, s)"])
def test_a_spec_means_what_it_means_to_jax(text):
    rank = 3 if text in ("b, 2*s + 1, 3", "b, ...") else 2
    own = tuple(range(3 - rank + 1, 4))
    ours = parse_spec(text).resolve(own)
    theirs = jax.export.symbolic_shape(text, like=own)
    assert list(map(str, ours)) == list(map(str, theirs))


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("b,, s", 'axis 1 of the spec "b,, s" is not a dimension: ""', "separated by commas"),
        ("b, 2s", 'axis 1 of the spec "b, 2s" is not a dimension: "2s"', "separated by commas"),
        ("b s", 'axis 0 of the spec "b s" is not a dimension: "b s"', 'commas: "b, s"'),
        ("b, f(s", 'axis 1 of the spec "b, f(s" is not a dimension: "f(s"', "separated by commas"),
        ("..., b, ...", 'the spec "..., b, ..." has more than one `...`', "keep one"),
        ("-1, b", 'the spec "-1, b" has the negative size -1', "write `_`"),
    ],
)
def test_a_malformed_spec_names_its_text_the_axis_and_the_way_out(text, what, fix):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert caught.value.what == f"{what}."
    assert fix in caught.value.fix


def test_a_malformed_spec_is_found_in_its_tree():
    error = refused((None, {"t": "b, 2s"}), 1, {"t": zeros(3)})
    assert error.where == "in_shapes[1]['t']"
    assert error.what.startswith('axis 1 of the spec "b, 2s"')


# How specs fit arguments


def test_one_text_or_none_holds_for_everything_below_it():
    params, batch = {"w": zeros(5, 5), "n": 2}, [zeros(3, 7), zeros(3, 7)]
    assert dims_of((None, "b, s"), params, batch) == (None, (5, 5), (B, S), (B, S))
    assert sizes_of((None, "b, s"), params, batch) == {"b": 3, "s": 7}


def test_a_spec_may_mirror_its_argument():
    batch = {"tokens": zeros(3, 7), "lengths": zeros(3), "name": "train"}
    spec = {"tokens": "b, s", "lengths": "b", "name": None}
    assert dims_of((spec,), batch) == ((B,), None, (B, S))


def test_an_argument_that_is_none_needs_no_size():
    assert sizes_of(("b, s", "b"), zeros(3, 4), None) == {"b": 3, "s": 4}


def test_placeholders_become_the_own_sizes():
    assert dims_of(("b, _, ..., s",), zeros(2, 3, 4, 5, 6)) == ((B, 3, 4, 5, S),)


def test_a_shape_is_a_spec_that_fixes_the_dtype():
    assert dims_of((Shape(jnp.float32, "b", 4),), zeros(3, 4, dtype=np.float64)) == ((B, 4),)
    error = refused((Shape(jnp.float32, "b"),), zeros(3, dtype=np.int32))
    assert error.what == "args[0] is int32, but its spec is a Shape of float32."
    assert 'write "b"' in error.fix


def test_an_unknown_dim_of_a_shape_is_a_symbol():
    (symbol,) = sizes_of((Shape(jnp.float32, UNKNOWN),), zeros(3))
    assert symbol.startswith("unknown")


@pytest.mark.parametrize(
    "array", [zeros(3), jnp.zeros(3), jax.ShapeDtypeStruct((3,), jnp.int8)], ids=type
)
def test_whatever_has_a_shape_and_a_dtype_is_an_array(array):
    assert sizes_of(("b",), array) == {"b": 3}


def test_keyword_arguments_have_specs_by_name():
    spec = {"mask": "b, s", "absent": "q"}
    kwargs = {"training": True, "mask": zeros(3, 7), "scale": zeros(2)}
    assert sizes_of(("b",), zeros(3), kwarg_shapes=spec, **kwargs) == {"b": 3, "s": 7}
    expected = ((B,), (B, S), (2,), None)  # by name: mask, scale, training
    assert dims_of(("b",), zeros(3), kwarg_shapes=spec, **kwargs) == expected


def test_without_specs_axis_0_of_each_array_is_the_batch():
    args = zeros(3, 4), {"w": zeros(9)}, zeros(3), zeros(), 2.0, [zeros(3)]
    assert default_in_shapes(args) == ("b, ...", None, "b, ...", None, None, None)
    assert sizes_of(None, *args) == {"b": 3}
    assert dims_of(None, zeros(3, 4), mask=zeros(3)) == ((B, 4), (B,))


@pytest.mark.parametrize(
    ("in_shapes", "args", "what", "fix"),
    [
        (
            ("b",),
            (zeros(3), zeros(3)),
            "in_shapes has 1 spec for 2 arguments.",
            "in_shapes=('b', None)",
        ),
        (("b", "b"), (zeros(3),), "in_shapes has 2 specs for 1 argument.", "in_shapes=('b',)"),
        ("b", (zeros(3),), "in_shapes='b' is not a sequence of specs.", "in_shapes=('b',)"),
        (
            (("b", "s"),),
            (zeros(3, 2),),
            "in_shapes[0] does not fit the structure of args[0].",
            'one text for one array: "b, s"',
        ),
        (
            ({"t": "b"},),
            ({"x": zeros(3)},),
            "in_shapes[0] does not fit the structure of args[0].",
            "containers as in the argument",
        ),
        (
            (("b", 3),),
            ((1, 2),),
            "in_shapes[0][1] is 3, which is not a spec.",
            "(sx.Dim('b'), 3) for one array",
        ),
        (("b",), (3.0,), 'args[0] has the spec "b" but is not an array.', "make its spec None"),
        (
            ({"x": ["b"]},),
            ({"x": [3.0]},),
            "args[0]['x'][0] has the spec \"b\" but is not an array.",
            "make its spec None",
        ),
    ],
)
def test_specs_that_do_not_fit_say_what_would(in_shapes, args, what, fix):
    error = refused(in_shapes, *args)
    assert error.what == what
    assert fix in error.fix


def test_what_is_not_an_array_is_told_by_type():
    assert refused(("b",), 3.0).got == "float: 3.0"


def test_a_keyword_is_told_by_name():
    error = refused((), kwarg_shapes={"mask": "b, s"}, mask=zeros(3))
    assert error.what == "kwargs['mask'] has rank 1, but its spec \"b, s\" wants 2."


# Which sizes follow


@pytest.mark.parametrize(
    ("in_shapes", "shapes", "sizes"),
    [
        (("b, s", "s"), [(3, 7), (7,)], {"b": 3, "s": 7}),
        (("2*s + 1",), [(7,)], {"s": 3}),
        (("100 - s",), [(93,)], {"s": 7}),
        (("s // 2", "s"), [(3,), (7,)], {"s": 7}),
        (("b*s", "b"), [(12,), (3,)], {"b": 3, "s": 4}),
        (("b*s + k", "2*b", "k"), [(17,), (6,), (5,)], {"b": 3, "s": 4, "k": 5}),
        (("s^2", "s - 1"), [(9,), (2,)], {"s": 3}),
        (("s % 4 + b", "s"), [(5,), (7,)], {"s": 7, "b": 2}),
        (("b",), [(0,)], {"b": 0}),
        (("2*s + 1",), [(1,)], {"s": 0}),
        (("..., s", "s, ..."), [(2, 3, 7), (7, 1)], {"s": 7}),
    ],
)
def test_sizes_follow_from_shapes(in_shapes, shapes, sizes):
    assert sizes_of(in_shapes, *(zeros(*shape) for shape in shapes)) == sizes


@given(st.integers(-4, 5).filter(bool), st.integers(-9, 9), st.integers(0, 20))
def test_a_linear_expression_gives_back_the_size(slope, offset, size):
    axis = slope * size + offset
    if axis >= 0:
        text = f"{slope}*s + {offset}"
        struct = jax.ShapeDtypeStruct((axis,), jnp.int8)
        assert sizes_of((text,), struct) == {"s": size}


@pytest.mark.parametrize(
    ("in_shapes", "shapes", "what", "fix"),
    [
        (
            ("2*s + 1",),
            [(8,)],
            "args[0] axis 0: no s gives 2*s + 1 = 8.",
            "a symbol of its own instead of `2*s + 1`",
        ),
        (
            ("s + 3",),
            [(2,)],
            "args[0] axis 0: no s gives s + 3 = 2.",
            "a symbol of its own instead of `s + 3`",
        ),
        (
            ("b*s", "b"),
            [(13,), (3,)],
            "args[0] axis 0: at b=3, no s gives b*s = 13.",
            "a symbol of its own instead of `b*s`",
        ),
        (
            ("..., s // 2", "s"),
            [(1, 4), (19,)],
            "args[0] axis 1: at s=19, `floordiv(s, 2)` is 9, but the axis has size 4.",
            "a symbol of its own instead of `floordiv(s, 2)`",
        ),
        (
            ("s // 2",),
            [(8,)],
            "the size of `s` does not follow from `floordiv(s, 2)` on args[0] axis 0.",
            "let an axis be `s` itself",
        ),
        (
            ("8 // s", "s"),
            [(8,), (0,)],
            "args[0] axis 0: at s=0, `floordiv(8, s)` is None, but the axis has size 8.",
            "a symbol of its own",
        ),
        (
            ("b*s",),
            [(8,)],
            "the size of `b` does not follow from `b*s` on args[0] axis 0.",
            "let an axis be `b` itself",
        ),
        (
            ("b, s",),
            [(2,)],
            'args[0] has rank 1, but its spec "b, s" wants 2.',
            'a spec such as "b"',
        ),
        (
            ("b, s",),
            [(2, 3, 4)],
            'args[0] has rank 3, but its spec "b, s" wants 2.',
            'a spec such as "b, s, _"',
        ),
        (
            ("b, 4, ..., s",),
            [(2, 4)],
            'args[0] has rank 2, but its spec "b, 4, ..., s" wants at least 3.',
            "pass an array of rank at least 3",
        ),
        (
            ("b, 4",),
            [(2, 3)],
            "args[0] axis 1 has size 3, but its spec says 4.",
            "pass size 4, or write `_`",
        ),
        (
            ("..., 4",),
            [(2, 3)],
            "args[0] axis 1 has size 3, but its spec says 4.",
            "pass size 4, or write `_`",
        ),
        (
            ("b, b",),
            [(3, 4)],
            "`b` is 3 on args[0] axis 0, but 4 on args[0] axis 1.",
            "give each size a symbol of its own in place of `b`",
        ),
        (
            ("b, c", "b"),
            [(3, 4), (5,)],
            "`b` is 3 on args[0] axis 0, but 5 on args[1] axis 0.",
            'in_shapes=("b, c", "d")',
        ),
        (
            None,
            [(3, 4), (4, 2), (3,), ()],
            "`b` is 3 on args[0] axis 0, but 4 on args[1] axis 0.",
            'in_shapes=("b, ...", "c, ...", "b, ...", None)',
        ),
    ],
)
def test_a_contradiction_names_the_places_the_values_and_the_way_out(in_shapes, shapes, what, fix):
    error = refused(in_shapes, *(zeros(*shape) for shape in shapes))
    assert error.what == what
    assert fix in error.fix
    assert error.path
    assert f"{error.path} " in what


def test_a_contradiction_between_trees_names_both_leaves():
    args = {"x": zeros(3, 2)}, {"tokens": zeros(4), "n": 1}
    error = refused(({"x": "b, s"}, {"tokens": "b", "n": None}), *args)
    assert error.what == "`b` is 3 on args[0]['x'] axis 0, but 4 on args[1]['tokens'] axis 0."
    assert error.got == (
        "args[0]['x'] [3,2] with the spec \"b, s\"; args[1]['tokens'] [4] with the spec \"b\""
    )


def test_the_suggested_default_specs_accept_the_call():
    args = zeros(3, 4), zeros(4, 2), {"w": zeros(9), "v": zeros(8)}, zeros(5)
    suggestion = refused(None, *args).fix.partition("in_shapes=")[2]
    assert sizes_of(eval(suggestion), *args) == {"b": 3, "c": 4, "d": 5}


def test_one_bound_spec_serves_every_call_of_its_structure():
    spec = compile_spec(("b, s",), (zeros(3, 4),))
    assert spec.symbols == {"b", "s"}
    for shape in ((3, 4), (1, 1), (128, 7)):
        assert spec.sizes([shape]) == dict(zip("bs", shape, strict=True))
