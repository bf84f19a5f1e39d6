"""Strategies by names, dims and UNKNOWN; and the lines that other libraries' spellings mean."""

import re

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import BATCH, SEQ_LEN, UNKNOWN, Dim
from tests.execution.support import assert_runs_as, ones, refused


def total(x):
    return x.sum(axis=1)


def added(x, y):
    return x.sum(axis=1) + y.sum()


# Which strategy a symbol has


def named(value: object) -> str:
    """An id without addresses, for each process of a run must make the same one."""
    return re.sub(r"<(?:function )?(\S+)(?: object)? at 0x\w+>", r"\1", str(value))


@pytest.mark.parametrize(
    "buckets",
    [
        {"b": sx.Pow2(), "s": sx.Linear(6)},
        {BATCH: "pow2", SEQ_LEN: "linear:6"},
        {"b": [2, 4], Dim("s"): 6},
        {BATCH: lambda size: -(-size // 4) * 4, "s": (6, 12)},
        {BATCH: "ladder:4", SEQ_LEN: sx.Ladder([2, 3], beyond="linear:6")},
    ],
    ids=named,
)
def test_symbols_are_names_or_dims_and_strategies_are_of_each_form(buckets):
    ex = sx.Exec(total, ("b, s, 4",), buckets=buckets)
    assert ex.plan(ones(3, 5, 4)).buckets == {"b": 4, "s": 6}


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({UNKNOWN: 8}, (8, 8, 8)),
        ({"UNKNOWN": 8}, (8, 8, 8)),
        ({"?": 8}, (8, 8, 8)),
        ({"unknown_0_1": 8}, (3, 8, 2)),
        ({Dim("unknown_1_0"): 8, UNKNOWN: "pow2"}, (4, 8, 8)),
        ("linear:6", (6, 6, 6)),
    ],
    ids=str,
)
def test_unknown_sizes_have_the_strategy_of_their_name_or_of_all(buckets, expected):
    ex = sx.Exec(added, ("?, ?, 4", (UNKNOWN,)), buckets=buckets)
    plan = ex.plan(ones(3, 5, 4), ones(2))
    assert tuple(plan.buckets.values()) == expected
    assert list(plan.buckets) == ["unknown_0_0", "unknown_0_1", "unknown_1_0"]
    assert_runs_as(added, ex, ones(3, 5, 4), ones(2))


def test_the_name_of_a_specs_place_covers_all_arrays_below_it():
    fn = lambda xs: [x.sum() for x in xs.values()]
    xs = {"x": ones(3), "y": ones(5)}
    assert sx.Exec(fn, ("?",), buckets={"unknown_0_0": 8}).plan(xs).buckets == {
        "unknown_0_x_0": 8,
        "unknown_0_y_0": 8,
    }
    what, fix = "no spec has a symbol `unknown_0_x_0`", 'buckets={"unknown_0_0": ...}'
    with refused(sx.ConfigError, what, fix) as caught:
        sx.Exec(fn, ("?",), buckets={"unknown_0_x_0": 8})
    told = caught.value.fix.split("buckets=")[1].replace("...", "8")
    assert sx.Exec(fn, ("?",), buckets=eval(told)).plan(xs).buckets["unknown_0_x_0"] == 8


@pytest.mark.parametrize("keys", [("q", "q_len"), ("a", "a.b"), ("q", "_q")], ids=str)
def test_the_name_of_a_place_covers_no_other_that_begins_alike(keys):
    short, long = keys
    fn = lambda **kw: sum(x.sum() for x in kw.values())
    specs = dict.fromkeys(keys, "?")
    run = sx.Exec(fn, (), buckets={f"unknown_{short}_0": [4], UNKNOWN: "exact"}, kwarg_shapes=specs)
    assert sorted(run.plan(**{short: ones(3), long: ones(5)}).buckets.values()) == [4, 5]
    inner = sx.Exec(
        lambda d: fn(**d), (specs,), buckets={f"unknown_0_{short}_0": [4], UNKNOWN: "exact"}
    )
    assert sorted(inner.plan({short: ones(3), long: ones(5)}).buckets.values()) == [4, 5]
    assert float(inner({short: ones(3), long: ones(5)})) == 6 + 15


def test_a_dim_that_was_made_of_unknown_has_the_strategy_of_unknown():
    own = Dim(UNKNOWN)
    ex = sx.Exec(total, ((own, 5, 4),), buckets={UNKNOWN: 8})
    assert ex.plan(ones(3, 5, 4)).buckets == {own.name: 8}


def test_the_names_of_a_methods_arguments_count_self():
    class Model:
        @sx.bucketed((None, "?, 4"), {"unknown_1_0": 8})
        def __call__(self, x):
            return x.sum(axis=0)

    assert Model().__call__.plan(ones(3, 4)).buckets == {"unknown_1_0": 8}


def test_unknown_sizes_of_examples_share_a_graph():
    ex = sx.Exec(lambda x: x.sum(), ("?",), buckets={UNKNOWN: "pow2"})
    assert [float(y) for y in ex.map([ones(3), ones(4), ones(2)])] == [6, 10, 3]
    assert ex.stats.compiles == 1


@pytest.mark.parametrize(
    ("buckets", "what", "fix"),
    [
        ({UNKNOWN: 8}, "no spec has a symbol `UNKNOWN`; the symbols are `b`, `s`.", "in_shapes"),
        ({"unknown_0_1": 8}, "no spec has a symbol `unknown_0_1`", "name a symbol"),
        ({2 * SEQ_LEN: 8}, "buckets: Dim('2*s') is not a symbol.", "buckets={'s': sx.Pow2(), ...}"),
        ({Dim(4): 8}, "buckets: Dim(4) is not a symbol.", "buckets={'b': sx.Pow2(), ...}"),
        ({"b": 8, BATCH: 4}, "buckets: `b` has two strategies.", "name each symbol once"),
        ({UNKNOWN: 8, "?": 4}, "buckets: `UNKNOWN` has two strategies.", "name each symbol once"),
        ({"b": "pow3"}, "buckets='pow3' is not a strategy.", '"linear:8"'),
    ],
    ids=str,
)
def test_what_names_no_symbol_is_told_with_a_way_out(buckets, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.Exec(total, ("b, s, 4",), buckets=buckets)


# Spellings of other libraries


class Named:
    """A dim of another library, which has a name."""

    def __init__(self, name):
        self.__name__ = name


class Hint:
    """A dim of another library that has no name, but a choice."""

    def __init__(self, name):
        self.type = Named(name)


def tree_total(tree):
    return tree["x"].sum() + tree["y"]


def masked(x, scale=2, mask=None):
    return (x * scale).sum() if mask is None else (x * scale).sum() + mask.sum()


def named_mask(x, *, mask):
    return x.sum() + mask.sum()


def any_names(x, **kwargs):
    return x.sum() + kwargs["mask"].sum()


def _specs(spec):
    return f'sx.Exec(total, in_shapes=("{spec}",))'


X, Y = ones(3, 5, 4), ones(2)
ARGUMENTS = {
    total: ((X,), {}),
    added: ((X, Y), {}),
    tree_total: (({"x": X.swapaxes(0, 1), "y": 2.0},), {}),
    masked: ((X, 2, ones(3)), {}),
    named_mask: ((X,), {"mask": ones(3)}),
    any_names: ((X,), {"mask": ones(3)}),
}
SPELLINGS = [
    (total, {"dynamic_axes": (0, 1)}, 'sx.Exec(total, in_shapes=("b, s, ...",))', "bs"),
    (total, {"dynamic_axes": 0}, 'sx.Exec(total, in_shapes=("b, ...",))', "b"),
    (total, {"dynamic_axes": [-2]}, 'sx.Exec(total, in_shapes=("..., d_2, _",))', ["d_2"]),
    (
        total,
        {"dynamic_axes": {"x": {0: "batch", 1: "seq"}, "out": {0: "batch"}}},
        'sx.Exec(total, in_shapes=("batch, seq, ...",))',
        ["batch", "seq"],
    ),
    (added, {"dynamic_axes": {"x": [1]}}, 'sx.Exec(added, in_shapes=("_, s, ...", None))', "s"),
    (
        added,
        {"dynamic_shapes": {"x": {0: Named("n")}, "y": None}},
        'sx.Exec(added, in_shapes=("n, ...", None))',
        "n",
    ),
    (
        added,
        {"dynamic_shapes": ({1: Named("n")}, {0: Named("m")})},
        'sx.Exec(added, in_shapes=("_, n, ...", "m, ..."))',
        "nm",
    ),
    (total, {"in_axes": 1}, 'sx.Exec(total, in_shapes=("_, b, ...",))', "b"),
    (added, {"in_axes": (0, None)}, 'sx.Exec(added, in_shapes=("b, ...", None))', "b"),
    (
        total,
        {"input_shapes": [(None, -1, 4)]},
        "sx.Exec(total, in_shapes=((sx.UNKNOWN, sx.UNKNOWN, 4),))",
        ["unknown_0_0", "unknown_0_1"],
    ),
    (
        total,
        {"input_shape": (None, 5, 4)},
        "sx.Exec(total, in_shapes=((sx.UNKNOWN, 5, 4),))",
        ["unknown_0_0"],
    ),
    (
        total,
        {"input_signature": [jax.ShapeDtypeStruct((3, 5, 4), np.float32)]},
        "sx.Exec(total, in_shapes=((3, 5, 4),))",
        "",
    ),
    (total, {"shapes": "b, s, 4"}, 'sx.Exec(total, in_shapes=("b, s, 4",))', "bs"),
    (total, {"dynamic": True}, "sx.Exec(total)", "b"),
    (total, {"bucket_sizes": [4, 8]}, "sx.Exec(total, buckets=[4, 8])", "b"),
    (total, {"strategy": sx.Pow2(minimum=4)}, "sx.Exec(total, buckets=sx.Pow2(minimum=4))", "b"),
    (
        total,
        {"in_shapes": ("b, s, 4",), "bucket_sizes": {BATCH: sx.Pow2(), "s": [8]}},
        'sx.Exec(total, in_shapes=("b, s, 4",), buckets={sx.Dim(\'b\'): sx.Pow2(), "s": [8]})',
        "bs",
    ),
    (
        total,
        {"dynamic_axes": (1,), "bucketing": "pow2"},
        'sx.Exec(total, in_shapes=("_, s, ...",), buckets="pow2")',
        "s",
    ),
    # by the names of axes, one an axis, as torch.export takes them
    (total, {"dynamic_shapes": {"x": ("b", None, None)}}, _specs("b, _, _"), "b"),
    (total, {"dynamic_shapes": {"x": [BATCH, None, 4]}}, _specs("b, _, 4"), "b"),
    (total, {"dynamic_shapes": (("n", Named("m"), ...),)}, _specs("n, m, ..."), "nm"),
    (total, {"dynamic_shapes": [[UNKNOWN, None, None]]}, _specs("?, _, _"), ["unknown_0_0"]),
    (total, {"dynamic_shapes": "n"}, _specs("n, ..."), "n"),
    (total, {"dynamic_shapes": {"x": BATCH}}, _specs("b, ..."), "b"),
    (total, {"dynamic_shapes": ({0: Hint("AUTO"), 1: Hint("STATIC")},)}, _specs("b, ..."), "b"),
    (
        tree_total,
        {"dynamic_shapes": {"tree": {"x": {0: "b"}, "y": None}}},
        'sx.Exec(tree_total, in_shapes=({"x": "b, ...", "y": None},))',
        "b",
    ),
    (
        tree_total,
        {"in_axes": ({"x": 1, "y": None},)},
        'sx.Exec(tree_total, in_shapes=({"x": "_, b, ...", "y": None},))',
        "b",
    ),
    # by the names of arguments that need not be given by position
    (total, {"dynamic_axes": {"input": {0: "batch"}}}, _specs("batch, ..."), ["batch"]),
    (
        masked,
        {"dynamic_shapes": {"x": {0: "b"}, "mask": {0: "b"}}},
        'sx.Exec(masked, in_shapes=("b, ...", None, "b, ..."))',
        "b",
    ),
    (
        named_mask,
        {"dynamic_shapes": {"x": {0: "b"}, "mask": {0: "b"}}},
        'sx.Exec(named_mask, in_shapes=("b, ...",), kwarg_shapes={"mask": "b, ..."})',
        "b",
    ),
    (
        any_names,
        {"dynamic_shapes": {"x": {0: "b"}, "mask": {0: "b"}}},
        'sx.Exec(any_names, in_shapes=("b, ...",), kwarg_shapes={"mask": "b, ..."})',
        "b",
    ),
    (
        added,
        {"shapes": {"y": (None,), "x": (None, 5, 4)}},
        "sx.Exec(added, in_shapes=((sx.UNKNOWN, 5, 4), (sx.UNKNOWN,)))",
        ["unknown_0_0", "unknown_1_0"],
    ),
    # sources of values
    (
        total,
        {"strategy": sx.Ladder([8], beyond="exact")},
        "sx.Exec(total, buckets=sx.Ladder((8,), beyond=sx.Exact()))",
        "b",
    ),
    (total, {"strategy": sx.Pow2}, "sx.Exec(total, buckets=sx.Pow2())", "b"),
    (total, {"strategy": sx.Geometric(1.5)}, "sx.Exec(total, buckets=sx.Geometric(1.5))", "b"),
    (
        total,
        {"shape": sx.Shape("float32", "b", "2*s + 1", 4)},
        'sx.Exec(total, in_shapes=(sx.Shape("float32", "b", "2*s + 1", 4),))',
        "bs",
    ),
    (total, {"static_argnum": (0,)}, "sx.Exec(total, static_argnums=(0,))", None),
    (
        total,
        {"limit": sx.CacheLimits(graphs=3)},
        "sx.Exec(total, limits=sx.CacheLimits(graphs=3))",
        "b",
    ),
]


@pytest.mark.parametrize(("fn", "options", "line", "symbols"), SPELLINGS, ids=named)
def test_a_spelling_of_another_library_prints_the_line_that_was_meant_and_it_runs(
    fn, options, line, symbols
):
    with pytest.raises(sx.ConfigError) as caught:
        sx.Exec(fn, **options)
    told = [name for name in options if name != "in_shapes"]
    assert caught.value.what == f"Exec has no option {', '.join(map(repr, told))}."
    assert f"{caught.value.fix}: ".startswith(f"{line}: ")
    ex = eval(line, {"sx": sx} | {known.__name__: known for known in ARGUMENTS})
    args, kwargs = ARGUMENTS[fn]
    if symbols is not None:
        assert_runs_as(fn, ex, *args, **kwargs)
        # Without specs a first call is exact.
        found = ex.plan(*args, **kwargs).sizes if ex.settings.in_shapes else symbols
        assert sorted(found) == sorted(symbols)


@pytest.mark.parametrize(
    ("fn", "axes", "notes"),
    [
        (
            total,
            {"x": {0: "b"}, "out": {0: "b"}},
            "no argument is called `out`",
        ),
        (
            total,
            {"input": {0: "b"}, "output": {0: "b"}},
            "no argument is called `input`, taken for `x`; no argument is called `output`",
        ),
    ],
)
def test_names_that_no_argument_has_are_told(fn, axes, notes):
    with refused(sx.ConfigError, "no option", f'in_shapes=("b, ...",)): {notes}'):
        sx.Exec(fn, dynamic_axes=axes)


def test_what_has_no_source_is_told_in_words():
    with refused(sx.ConfigError, "Exec has no option 'strategy'", "") as caught:
        sx.Exec(total, strategy=lambda size: size)
    assert caught.value.fix == "buckets= in the place of strategy="
    with refused(sx.ConfigError, "", "in_shapes= in the place of dynamic_axes=, buckets= in the"):
        sx.Exec(total, dynamic_axes=0, strategy=sx.Ladder([8], beyond=lambda size: size))


@pytest.mark.parametrize(
    "in_shapes",
    [{"x": {0: "b"}}, {"x": "b, _, _"}, {0: "b"}, {"x": ("b", None, None)}],
)
def test_specs_by_name_are_told_by_position(in_shapes):
    with refused(sx.SpecError, "is not a sequence of specs.", "sx.Exec(total, in") as caught:
        sx.Exec(total, in_shapes)
    ex = eval(caught.value.fix, {"sx": sx, "total": total})
    assert_runs_as(total, ex, X)
    assert ex.plan(X).sizes == {"b": 3}


def test_a_decorator_tells_it_too():
    with refused(sx.ConfigError, "Exec has no option 'dynamic_axes'.", 'in_shapes=("b, ...",)'):
        sx.bucketed(dynamic_axes=0)(total)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"donate_argnum": 0}, "Exec has no option 'donate_argnum'.", "donate_argnums=0)"),
        (
            {"foo": 0},
            "Exec has no option 'foo'.",
            "the options are in_shapes, buckets, kwarg_shapes",
        ),
    ],
)
def test_a_slip_is_told_with_the_options_there_are(options, what, fix):
    with refused(sx.ConfigError, what, fix):
        sx.Exec(total, **options)


def test_positions_where_specs_are_meant_are_an_error_at_once():
    with refused(sx.SpecError, "in_shapes[0] is 0, which is not a spec.", '("b, s, ...",)'):
        sx.Exec(total, (0, 1))
    assert_runs_as(total, sx.Exec(total, ((3, 5, 4),)), X)


def test_a_tuple_is_told_as_the_text_that_it_is():
    ex = sx.Exec(lambda *, x: x, (), kwarg_shapes={"x": (BATCH, 4)})
    with refused(sx.SpecError, "kwargs['x'] has the spec \"b, 4\" but is not an array.", "pass an"):
        ex(x="text")
