"""Advice on specs, dims and shapes."""

from collections.abc import Callable
from typing import Any

import shapeexec as sx
from tests.advice.row import Advice, quoted, runs, somewhat, value

X, PLANE = somewhat(5), somewhat(2, 3)


def double(x: Any) -> Any:
    return 2 * x


def spec_advice(
    name: str,
    wrong: Any,
    fix: str,
    spec: Callable[[str], Any],
    *,
    x: Any = PLANE,
    fn: Callable[[Any], Any] = double,
    good: Any = None,
) -> Advice:
    """A spec that is refused, and the one to write in its place."""
    good = x if good is None else good
    return Advice(
        name,
        "specs",
        sx.SpecError,
        lambda: runs(fn, x, in_shapes=(wrong,)),
        fix,
        lambda told: runs(fn, good, in_shapes=(spec(told),)),
        lambda: fn(good),
    )


def first(told: str) -> str:
    """The first text between quotation marks, a spec."""
    return quoted(told, '"')[0]


def last(told: str) -> str:
    return quoted(told, '"')[-1]


def total(x: Any, y: Any) -> Any:
    return x.sum() + 2 * y.sum()


def whole(name: str, in_shapes: Any, fix: str, *, place: int = 0, x: Any = PLANE) -> Advice:
    """Specs that are refused, and one of those that the Fix line tells to give instead."""
    return Advice(
        name,
        "specs",
        sx.SpecError,
        lambda: runs(double, x, in_shapes=in_shapes),
        fix,
        lambda told: runs(double, x, in_shapes=value(given(told)[place])),
        lambda: double(x),
    )


def given(told: str) -> list[str]:
    """The codes of in_shapes in a Fix line."""
    return [one.split("in_shapes=")[1].split(" for ")[0] for one in told.split("; ")]


def both(name: str, specs: Any, fix: str, follow: Callable[[str], Any], y: Any = X[:4]) -> Advice:
    """Specs of two arguments."""
    return Advice(
        name,
        "specs",
        sx.SpecError,
        lambda: runs(total, X[:3], y, in_shapes=specs),
        fix,
        lambda told: runs(total, X[:3], y, in_shapes=follow(told)),
        lambda: total(X[:3], y),
    )


def changing(told: str) -> list[str]:
    """The code that a Fix line has for a size that changes."""
    return told.split("write ")[1].split(";", maxsplit=1)[0].replace(" or ", ", ").split(", ")


def of_dims(name: str, broken: Callable[[], Any], fix: str, follow: Any, expected: Any) -> Advice:
    """What dims and shapes refuse."""
    return Advice(name, "dims", sx.SpecError, broken, fix, follow, lambda: expected)


ROWS = [
    Advice(
        "specs in a string",
        "specs",
        sx.SpecError,
        lambda: runs(double, PLANE, in_shapes="b, s"),
        "in_shapes=('b, s',)",
        lambda told: runs(double, PLANE, in_shapes=value(told.split("in_shapes=")[1])),
        lambda: double(PLANE),
    ),
    whole("a batch of -1", (-1, 3), "in_shapes=((sx.UNKNOWN, 3),) for one array"),
    whole("a batch of None", [None, 3], "in_shapes=((sx.UNKNOWN, 3),) for one array"),
    whole("positions of axes", (0, 1), 'in_shapes=("b, s, ...",) for axes at these positions'),
    whole("the position of an axis", (-1,), 'in_shapes=("..., d_1",) for axes at these positions'),
    whole("sizes", (2, 3), "in_shapes=((2, 3),) for one array", place=-1),
    whole(
        "dims in a list",
        [sx.BATCH, sx.SEQ_LEN],
        "in_shapes=((sx.Dim('b'), sx.Dim('s')),) for one array",
    ),
    whole(
        "a shape alone",
        sx.Shape("float32", "b", "s"),
        'in_shapes=(sx.Shape("float32", "b", "s"),)',
    ),
    both(
        "dims of two arrays in a list",
        [sx.BATCH, sx.SEQ_LEN],
        "in_shapes=((sx.Dim('b'),), (sx.Dim('s'),)) for one axis of each array",
        lambda told: value(given(told)[1]),
    ),
    spec_advice(
        "a dim beside a string",
        (sx.BATCH, "s"),
        "(sx.Dim('b'), sx.Dim('s')) for one array",
        lambda told: value(told.split(" for ")[0]),
    ),
    spec_advice("None for each axis", (None, None), 'one text for one array: "?, ?"', first),
    spec_advice("axes by number", {1: "s"}, 'one text for one array: "_, s, ..."', first),
    spec_advice("axes that are merged", "(a b) d", 'separate the axes by commas: "a_b, d"', first),
    spec_advice("a name behind ?", "b ?", 'separate the axes by commas: "b, ?"', first),
    spec_advice(
        "a name after ?", "?b, s", "`?` for a size without a name", lambda t: f"{quoted(t)[0]}, s"
    ),
    Advice(
        "specs by the names of arguments",
        "specs",
        sx.SpecError,
        lambda: runs(double, PLANE, in_shapes={"x": {0: "b"}}),
        'sx.Exec(double, in_shapes=("b, ...",))',
        lambda told: value(told, double=double)(PLANE),
        lambda: double(PLANE),
    ),
    both("too few", ("s",), "in_shapes=('s', None)", lambda t: value(t.split("in_shapes=")[1])),
    Advice(
        "too many",
        "specs",
        sx.SpecError,
        lambda: runs(double, X, in_shapes=("s", None)),
        "in_shapes=('s',)",
        lambda told: runs(double, X, in_shapes=value(told.split("in_shapes=")[1])),
        lambda: double(X),
    ),
    both(
        "sizes that differ",
        ("s", "s"),
        'give each size its own symbol: in_shapes=("s", "t")',
        lambda told: value(told.split("in_shapes=")[1]),
    ),
    spec_advice("one size that differs", "s, s", "a symbol of its own", lambda told: "s, t"),
    spec_advice("a rank too low", "b, s", 'or write a spec such as "b"', last, x=X),
    spec_advice("a rank too high", "s", 'or write a spec such as "s, _"', last),
    spec_advice(
        "another fixed size", "4, s", "pass size 4", lambda told: "4, s", good=somewhat(4, 3)
    ),
    spec_advice("a fixed size", "4, s", "or write `_`", lambda told: f"{quoted(told)[0]}, s"),
    spec_advice("no size fits", "2*s", "a symbol of its own", lambda told: "s", x=X),
    spec_advice(
        "a size that fits", "2*s", "pass a size that fits", lambda t: "2*s", x=X, good=X[:4]
    ),
    both("a multiple", ("s", "2*s"), "instead of `2*s`", lambda told: ("s", "t")),
    spec_advice("two unknown symbols", "b*s", "or give this axis a symbol", lambda told: "t", x=X),
    spec_advice("a dtype", sx.Shape("int32", "s"), 'or write "s", which', first, x=X),
    spec_advice("no array", "s", "or make its spec None", lambda told: None, x=3.0),
    spec_advice("two ellipses", "..., s, ...", 'single static axes: "_, s, ..."', first),
    spec_advice(
        "an entry that is empty", "b,, s", 'separated by commas: "b, s, 512"', lambda t: "b, s"
    ),
    spec_advice("no comma", "b s", 'separate the axes by commas: "b, s"', first),
    spec_advice("a fraction", "s / 2", '"b, 2*s + 1"', lambda told: "2*s + 1", x=X),
    spec_advice("a list for one array", ["b", "s"], 'one text for one array: "b, s"', first),
    spec_advice(
        "a container that the argument is not",
        {"b": "s"},
        "or one string or None for everything below",
        lambda told: "s",
        x={"a": X},
        fn=lambda tree: 2 * tree["a"],
    ),
    spec_advice("a number", 3.5, 'a string such as "b, 512"', lambda told: "b, 3"),
    spec_advice(
        "a negative size",
        "-1, s",
        "write `_` for a static axis of any size",
        lambda told: f"{quoted(told)[0]}, s",
    ),
    spec_advice(
        "a negative size that is to change",
        "-1, s",
        "write sx.BATCH, sx.SEQ_LEN",
        lambda told: (value("sx.BATCH"), sx.UNKNOWN),
    ),
    spec_advice(
        "None for a size that changes",
        (None, 3),
        "(sx.UNKNOWN, 3) if None is to be any size",
        lambda told: value(told.split(" if ")[0]),
    ),
    spec_advice(
        "no array under a spec", "s", "pass an array, or make", lambda told: "s", x="text", good=X
    ),
    of_dims(
        "-1",
        lambda: sx.Dim(-1),
        'for a size that changes write sx.BATCH, sx.SEQ_LEN, sx.Dim("n") or sx.UNKNOWN',
        lambda told: [sx.Dim(value(code)).is_static for code in changing(told)],
        [False] * 4,
    ),
    of_dims(
        "-1 in a shape",
        lambda: sx.Shape("float32", -1, 3),
        'for a size that changes write sx.BATCH, sx.SEQ_LEN, sx.Dim("n") or sx.UNKNOWN',
        lambda told: [len(sx.Shape("float32", value(code), 3).symbols) for code in changing(told)],
        [1] * 4,
    ),
    of_dims(
        "UNKNOWN in a string",
        lambda: sx.Dim("? + 1"),
        'sx.Dim("n") + 1',
        lambda told: value(told.partition(": ")[2]).evaluate(n=4),
        5,
    ),
    of_dims(
        "a function",
        lambda: sx.Dim("floor(s)"),
        'write it as "2*s + 1": integers, names, + - * // % **, floordiv, mod, max, min',
        lambda told: [sx.Dim(first(told)).evaluate(s=2), sx.Dim("max(s, 7)").evaluate(s=2)],
        [5, 7],
    ),
    of_dims(
        "a shape of an axis of any size",
        lambda: sx.eval_shape(double, "_, s"),
        "write a size, a symbol or `?` for each axis, or pass an array",
        lambda told: [len(sx.eval_shape(double, given).dims) for given in ("4, s", "?, s", PLANE)],
        [2, 2, 2],
    ),
    of_dims(
        "a bucket of 0",
        lambda: sx.Dim("2*s").upper_bound(s=0),
        "give `s` a bucket of at least 1",
        lambda told: sx.Dim("2*s").upper_bound(s=1),
        2,
    ),
    of_dims(
        "the value of a symbol",
        lambda: sx.Dim("b*s").value,
        "dim.evaluate(b=..., s=...)",
        lambda told: value(told.replace("...", "3"), dim=sx.Dim("b*s")),
        9,
    ),
    of_dims(
        "a size that is missing",
        lambda: sx.Dim("b*s").evaluate(b=2),
        "give s=...",
        lambda told: value(f"sx.Dim('b*s').evaluate(b=2, {told[5:].replace('...', '3')})"),
        6,
    ),
    of_dims(
        "a division by 0",
        lambda: sx.Dim("s // 0"),
        'such as "s // 2"',
        lambda told: sx.Dim(first(told)).evaluate(s=7),
        3,
    ),
    of_dims(
        "UNKNOWN",
        lambda: sx.UNKNOWN + 1,
        'sx.Dim("n") + 1',
        lambda told: value(told.partition(": ")[2]).evaluate(n=4),
        5,
    ),
    of_dims(
        "a float for a dim",
        lambda: sx.Dim(2.5),
        'a string such as "2*s + 1"',
        lambda told: sx.Dim(first(told)).evaluate(s=2),
        5,
    ),
    of_dims(
        "a dtype's name",
        lambda: sx.Shape("floaty", 3),
        'or its name: "float32"',
        lambda told: sx.Shape(first(told), 3).dims,
        (3,),
    ),
    of_dims(
        "the shape of a list",
        lambda: sx.Shape.of([1, 2]),
        "Shape.of(jnp.asarray(x))",
        lambda told: value(f"sx.{told}", x=[1, 2]).dims,
        (2,),
    ),
    of_dims(
        "an axis that is not there",
        lambda: sx.Shape("float32", 2, 3).with_dim(2, 5),
        "an axis from -2 to 1",
        lambda told: [sx.Shape("float32", 2, 3).with_dim(axis, 5).dims for axis in (-2, 1)],
        [(5, 3), (2, 5)],
    ),
    Advice(
        "a bound",
        "dims",
        sx.UnboundedDimError,
        lambda: sx.Dim("b*s").upper_bound(b=4),
        "give `s` a bucket",
        lambda told: sx.Dim("b*s").upper_bound(b=4, **{quoted(told)[0]: 8}),
        lambda: 32,
    ),
]
