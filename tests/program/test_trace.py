"""What a program tells: operations, shapes, lines, masks and their reasons."""

import dataclasses
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.shape import _dim
from tests.execution.support import ones
from tests.program.support import PARAMS, SPECS, WIDTH, block, tokens, traced
from tests.tolerance import assert_close

P = sx.Pow2()
X = sx.Shape("float32", "b", "s")


def shapes(tree):
    return jax.tree.map(sx.Shape.of, tree)


def block_program():
    return sx.trace(block, shapes(PARAMS), sx.Shape("float32", "b", "s", WIDTH))


def row_maxima(x):
    return x.max(axis=1)  # the line that is told


# Without a call


def test_each_equation_has_its_primitive_and_symbolic_shapes():
    (eqn,) = sx.trace(row_maxima, X)
    assert eqn.primitive == "reduce_max"
    assert [(v.name, str(v.shape)) for v in eqn.operands] == [("x", "f32[b,s]")]
    assert [str(v.shape) for v in eqn.results] == ["f32[b]"]
    assert eqn.operands[0].shape.dtype == np.float32
    assert dict(eqn.params)["axes"] == "(1,)"
    assert eqn.rule == "Fill"


def test_each_equation_has_the_users_line():
    (eqn,) = sx.trace(row_maxima, X)
    assert eqn.where.startswith("return x.max(axis=1)  # the line that is told  (test_trace.py:")


def concrete(eqns):
    """Per equation its primitive, and the shapes and dtypes of its results."""
    return [(e.primitive.name, [(v.aval.shape, v.aval.dtype) for v in e.outvars]) for e in eqns]


def test_a_program_at_sizes_is_what_jax_traces_there():
    sizes = {"b": 3, "s": 17}
    told = [
        (
            eqn.primitive,
            [
                (tuple(_dim.evaluate(dim, sizes) for dim in v.shape.dims), v.shape.dtype)
                for v in eqn.results
            ],
        )
        for eqn in block_program()
    ]
    jaxpr = jax.make_jaxpr(block)(PARAMS, tokens(**sizes)).jaxpr
    plain = concrete(jaxpr.eqns)
    assert [pair for pair in told if pair[0] != "dim_as_value"] == plain


def test_inputs_are_named_by_their_paths():
    program = block_program()
    assert program.name == "block"
    assert [v.name for v in program.inputs][:2] == ["params['bias']", "params['down']"]
    assert str(program.inputs[-1]) == f"x f32[b,s,{WIDTH}]"
    partial = sx.trace(functools.partial(block, PARAMS), sx.Shape("float32", "b", "s", WIDTH))
    assert partial.name == "block"
    assert [v.name for v in partial.inputs] == ["x"]
    assert len(partial.constants) == len(PARAMS)


def test_results_are_those_of_eval_shape():
    def fn(x):
        return {"flat": x.reshape(-1), "sum": x.sum(axis=0)}

    program = sx.trace(fn, X)
    assert [v.shape for v in program.results] == jax.tree.leaves(
        sx.eval_shape(fn, X), is_leaf=lambda leaf: isinstance(leaf, sx.Shape)
    )


def test_without_a_call_there_are_neither_lengths_nor_masks():
    program = block_program()
    assert not program.sizes
    assert not program.buckets
    assert not program.extents
    assert not program.masks
    assert all(v.lengths is v.capacities is None for e in program for v in e.results)


def test_symbols_are_sorted():
    assert sx.trace(lambda x, y: (x, y), X, sx.Shape("int32", "2*n")).symbols == ("b", "n", "s")


def test_find_searches_functions_inside_of_equations_and_their_names():
    program = sx.trace(lambda x: jax.nn.silu(x).max(), X)
    (logistic,) = program.find("logistic")
    assert str(logistic.results[0].shape) == "f32[b,s]"
    assert [eqn.name for eqn in program.find("silu")] == ["silu"] * len(program.find("silu"))
    assert program.find("silu")
    assert program.find("sort") == ()

    def step(carry, row):
        return carry + row.max(), row

    loop = sx.trace(lambda x: lax.scan(step, 0.0, jax.nn.relu(x)), X)
    assert [eqn.primitive for eqn in loop.find("step")] == ["scan"]
    assert {eqn.primitive for eqn in loop.find("relu")} == {"jit", "custom_jvp_call"}


def test_iterating_gives_what_is_shown():
    program = sx.trace(lambda x: jax.nn.silu(x).max(), X)
    assert [eqn.primitive for eqn in program][-1] == "reduce_max"
    assert len(program) == len(list(program)) == len(program.equations)
    expanded = program.expand()
    assert len(expanded) == len(list(expanded)) > len(program)
    assert "logistic" in [eqn.primitive for eqn in expanded]
    assert "logistic" not in [eqn.primitive for eqn in program]


def test_a_program_is_frozen_plain_data():
    program = sx.Exec(block, SPECS).trace(PARAMS, tokens(3, 5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        program.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        program.equations[0].primitive = "other"
    assert pickle.loads(pickle.dumps(program)) == program
    assert not any(note.at for note in program.masks)


def test_a_call_of_a_function_speaks_of_the_operands():
    program = sx.trace(lambda x: jnp.tril(jnp.cumsum(x, axis=1) * 2), X)
    (call,) = program.find("tril")
    assert [v.name for v in call.bodies[0].inputs] == [v.name for v in call.operands]
    made = [v.name for eqn in program.expand() for v in eqn.results]
    assert len(made) == len(set(made))


def test_one_function_called_twice_has_two_sets_of_values():
    inner = jax.jit(lambda x: x * 2)
    program = sx.trace(lambda x: inner(x) + inner(x + 1), X)
    made = [v.name for eqn in program.expand() for v in eqn.results]
    assert len(made) == len(set(made)) == 6  # two calls, a product in each, two sums
    first, second = program.find("mul")
    assert first.operands[0].name == "x" != second.operands[0].name


with_constant = jax.jit(lambda x: x.sum() + jnp.array([1.0, 2.0]))


def in_a_loop(x):
    return lax.scan(jax.jit(lambda c, row: (c + row.sum() * TABLE, None)), TABLE, x)[0]


TABLE = jnp.array([3.0, 4.0])


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (with_constant, 1),
        (lambda x: with_constant(x) * with_constant(2 * x), 1),
        (lambda x: with_constant(x) + jnp.array([5.0, 6.0]), 2),
        (in_a_loop, 2),
        (jax.grad(lambda x: with_constant(x).sum()), 1),
    ],
    ids=["a constant", "two calls", "two constants", "in a loop", "a gradient"],
)
def test_arrays_that_inner_functions_close_over_are_constants(fn, count):
    ex = sx.Exec(fn, ("b, s",), buckets=P)
    for program in (sx.trace(fn, X), ex.trace(ones(3, 5)), ex.explain(ones(3, 5)).program):
        assert [v.text for v in program.constants] == ["f32[2]"] * count
        assert [v.name for v in program.constants] == [f"const{i}" for i in range(count)]
        known = {v.name for v in (*program.inputs, *program.constants)}
        for eqn in program.expand():
            known |= {v.name for body in eqn.bodies for v in body.inputs}
            assert {v.name for v in eqn.operands if not v.is_literal} <= known
            known |= {v.name for v in eqn.results}
        read = {v.name for eqn in program.expand() for v in eqn.operands}
        assert {v.name for v in program.constants} <= read
    assert_close(ex(ones(3, 5)), fn(ones(3, 5)))


def test_no_constant_has_the_name_of_an_argument():
    table = jnp.arange(3.0)
    program = sx.trace(lambda const0, const2: const0.sum() + table + const2, "s", "3")
    assert [v.name for v in program.inputs] == ["const0", "const2"]
    assert [v.name for v in program.constants] == ["const1"]
    first, second, _ = program
    assert [v.name for v in first.operands] == ["const0"]
    assert [v.name for v in second.operands] == ["%0", "const1"]
    chart = program.to_mermaid()
    assert 'in0 -->|"f32[s]"| n0' in chart
    assert 'in2 -->|"f32[3]"| n1' in chart
    assert 'in1 -->|"f32[3]"| n2' in chart


def test_numbers_of_the_host_are_told_without_values():
    program = sx.trace(lambda x: x.sum() / (x.shape[0] * (x.shape[0] - 1) / 2), X)
    assert [(n.text, n.dtype, n.value) for n in program.numbers] == [
        ("(b^2 - b) / 2", "float32", None)
    ]
    assert dict(program.find("host_value")[0].params)["operand"] == "(b^2 - b) / 2"


# Bad input


def test_what_cannot_be_called_is_refused():
    with pytest.raises(sx.ConfigError) as caught:
        sx.trace(X, row_maxima)
    assert str(caught.value).startswith("trace: Shape(f32[b,s]) cannot be called.")
    assert "sx.trace(f, sx.Shape(" in caught.value.fix


def test_too_many_or_too_few_specs_are_refused():
    with pytest.raises(
        sx.SpecError, match=r"^trace: 2 specs do not fit row_maxima\(x\)\."
    ) as caught:
        sx.trace(row_maxima, X, X)
    assert caught.value.why == "too many positional arguments"
    assert caught.value.fix == "one spec for each argument of the function, in their order"
    with pytest.raises(sx.SpecError, match="0 specs do not fit"):
        sx.trace(row_maxima)


def test_what_is_no_spec_is_refused():
    with pytest.raises(sx.SpecError):
        sx.trace(row_maxima, object())


def test_a_question_that_needs_a_size_is_refused_and_a_constraint_answers_it():
    def fn(x):
        return x if x.shape[0] > 2 else x * 2

    with pytest.raises(sx.InconclusiveShapeError, match="`b > 2` cannot be decided") as caught:
        sx.trace(fn, X)
    assert 'constraints="b <= 2"' in caught.value.fix
    assert len(sx.trace(fn, X, constraints="b >= 3")) == 0
    assert len(sx.trace(fn, X, constraints=["b <= 2"])) == 1


def test_a_call_that_contradicts_its_specs_is_refused():
    with pytest.raises(sx.SpecError, match="has rank 1"):
        traced(row_maxima, ("b, s",), ones(3))
    with pytest.raises(ZeroDivisionError):  # as the plain function at this size
        traced(lambda x: x.sum() / (1 / (x.shape[0] - 1)), ("s",), ones(1))
    with pytest.raises(sx.UnsupportedPrimitiveError, match="new_ref"):
        traced(lambda x: jax.new_ref(x)[...], ("s",), ones(3))
