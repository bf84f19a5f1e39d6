"""The source of values, as advice prints it: it runs, and makes an equal value."""

import ast
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec._code import code, parsed


def doubled(size):
    return 2 * size


@dataclasses.dataclass(frozen=True)
class Own(sx.Strategy):
    step: int
    first: int = 1

    def bucket(self, size):
        return max(self.first, -(-size // self.step) * self.step)


VALUES = [
    None,
    True,
    3,
    -1.5,
    ...,
    'a "text" of\n',
    [],
    (1,),
    ("b, s", None, {"x": [sx.BATCH, 4]}),
    sx.UNKNOWN,
    sx.Dim("2*s + 1"),
    sx.Dim(4),
    sx.Shape("float32", "b", "2*s", 4),
    sx.Shape(jnp.bfloat16, 3, sx.UNKNOWN),
    sx.Shape(None, "s"),
    sx.Exact(),
    sx.Pow2(minimum=3, maximum=100),
    sx.Linear(8, maximum=64, beyond=sx.Ladder([80, 90], beyond="exact")),
    sx.Geometric(1.5),
    sx.Hybrid(64, 32),
    sx.Ladder([30, 60], beyond=doubled),
    sx.CacheLimits(graphs=3),
    {"s": sx.Pow2(), sx.BATCH: doubled},
    sx.Pow2,
    Own(3),
    Own(3, first=6),
]


@pytest.mark.parametrize("value", VALUES, ids=code)
def test_the_source_of_a_value_makes_an_equal_one(value):
    assert eval(code(value), {"sx": sx, "doubled": doubled, "Own": Own}) == value


def test_numbers_of_numpy_are_plain_numbers():
    assert code((np.int64(3), np.int8(0))) == "(3, 0)"


def test_shapes_and_dims_of_jax_are_those_of_this_library():
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2*s"), jnp.float32)
    assert eval(code([struct, struct.shape[1]])) == [sx.Shape.of(struct), sx.Dim("2*s")]


@pytest.mark.parametrize(
    "value",
    [
        lambda size: size,
        functools.partial(doubled, 3),
        sx.Pow2().bucket,
        sx.Ladder([8], beyond=lambda size: size),
        {"s": object()},
        {object(): 8},
        (np.ones(3),),
        float("nan"),
        float("inf"),
        sx.Shape.of(jax.random.key(0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_source_is_told_to_have_none(value):
    assert code(value) is None


def test_source_is_read_while_other_threads_parse(monkeypatch):
    parse, asked = ast.parse, []

    def disturbed(*args, **kwargs):
        asked.append(args)
        if len(asked) < 3:  # as CPython 3.11 does where two threads parse at once
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=42)")
        return parse(*args, **kwargs)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.unparse(parsed("sx.Linear(32)")) == "sx.Linear(32)"
    assert len(asked) == 3
    with pytest.raises(SyntaxError):
        parsed("sx.Linear(")


def test_nobody_else_parses_expressions():
    package = pathlib.Path(sx.__file__).parent
    own = {path.name for path in package.rglob("*.py") if "ast.parse(" in path.read_text()}
    assert own == {"_code.py"}


def test_source_that_cannot_be_read_is_told_as_python_tells_it(monkeypatch):
    def broken(*args, **kwargs):
        raise SystemError("always")

    monkeypatch.setattr(ast, "parse", broken)
    with pytest.raises(SystemError, match="always"):
        parsed("1")
