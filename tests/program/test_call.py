"""Programs of one call: lengths, capacities, masks with reasons, guards and numbers of the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from tests.execution.support import counted, ones
from tests.program.support import PARAMS, SPECS, WIDTH, block, tokens, traced

P = sx.Pow2()
X = sx.Shape("float32", "b", "s")


def test_a_call_tells_lengths_and_capacities():
    program = traced(lambda x: x.reshape(-1)[1:], ("b, s",), ones(3, 5))
    (result,) = program.results
    assert (str(result.shape), result.lengths, result.capacities) == ("f32[b*s - 1]", (14,), (31,))
    assert program.inputs[0].lengths == (3, 5)
    assert program.inputs[0].capacities == (4, 8)
    assert (program.sizes, program.buckets) == ({"b": 3, "s": 5}, {"b": 4, "s": 8})
    told = {extent.dim: (extent.length, extent.capacity) for extent in program.extents}
    assert told["b"] == (3, 4)
    assert told["b*s"] == (15, 32)
    assert [extent.dim for extent in program.extents][:2] == ["b", "s"]


def test_a_call_is_planned_and_nothing_is_compiled():
    ex = sx.Exec(block, SPECS, buckets=P)
    with counted() as count:
        ex.trace(PARAMS, tokens(3, 5))
        ex.trace(PARAMS, jax.ShapeDtypeStruct((3, 6, WIDTH), jnp.float32))
    assert count.compilations == ex.cache_size == 0
    assert ex.stats.traces == 1


def test_a_mask_stands_with_the_equation_that_needs_it_and_says_why():
    program = traced(lambda x: jnp.exp(x).sum(axis=1), ("b, s",), ones(3, 5))
    exp, total = program
    assert not exp.masks
    (note,) = total.masks
    assert note.masked
    assert note.what == "f32[b,s] along s"
    assert note.action == "filled with 0.0 where it is made"
    assert note.why == "padding is 1.0"


def test_a_mask_that_is_spared_stands_there_too():
    program = traced(lambda x: (x * 2).sum(axis=1), ("b, s",), ones(3, 5))
    (note,) = program.find("reduce_sum")[0].masks
    assert not note.masked
    assert note.action == "none: padding is 0.0"


def test_masks_stand_inside_of_loops_and_branches():
    def fn(x):
        def step(total, row):
            return total + row.max(), row.prod()

        return lax.scan(step, 0.0, x)

    program = traced(fn, ("b, s",), ones(3, 5))
    (scan,) = program.find("scan")
    assert [note.primitive for note in scan.masks] == ["scan"]
    for name in ("reduce_max", "reduce_prod"):
        (eqn,) = program.find(name)
        assert [note.primitive for note in eqn.masks] == [name]
    assert len(scan.all_masks) == 3

    branches = traced(
        lambda x: lax.cond(x[0, 0] > 0, lambda y: y.max(), lambda y: y.prod(), x),
        ("b, s",),
        ones(3, 5),
    )
    (cond,) = branches.find("cond")
    assert not cond.masks
    told = {
        body.label: [n.primitive for e in body.equations for n in e.masks] for body in cond.bodies
    }
    assert told == {"branches[0]": ["reduce_prod"], "branches[1]": ["reduce_max"]}


def test_two_calls_of_one_function_have_masks_of_their_own():
    inner = jax.jit(lambda x: x.max())
    program = traced(lambda x: inner(x) + inner(x * 2), ("s",), ones(5))
    first, second = program.find("reduce_max")
    assert [note.masked for note in first.masks] == [True]
    assert [note.masked for note in second.masks] == [False]


FUNCTIONS = {
    "block": (block, SPECS, (PARAMS, tokens(3, 5))),
    "gradient": (
        jax.grad(lambda params, x: block(params, x).std()),
        SPECS,
        (PARAMS, tokens(3, 5)),
    ),
    "loop": (
        lambda x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] / c[1].max()), (0, x)
        ),
        ("s",),
        (ones(5),),
    ),
    "checkpoint": (jax.checkpoint(lambda x: jnp.cumsum(x).max()), ("s",), (ones(5),)),
    "guard": (lambda x: x.max() if x.shape[0] % 2 else x.sum(), ("s",), (ones(5),)),
    "exact": (lambda x: jax.new_ref(x)[...], ("s",), (ones(5),)),
    "attention": (
        lambda x: sx.dot_product_attention(x, x, x, mask=sx.Causal()).max(axis=1),
        ("b, s, 2, 4",),
        (ones(2, 3, 2, 4),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_explain_is_a_view_of_the_program(name):
    fn, specs, args = FUNCTIONS[name]
    ex = sx.Exec(fn, specs, buckets=P, on_unsupported="exact")
    explanation, program = ex.explain(*args), ex.trace(*args)
    assert explanation.program == program
    assert explanation.masks == program.masks
    # Each mask stands with one equation, and none is lost.
    at_equations = [note for eqn in program.expand() for note in eqn.masks]
    assert sorted(map(str, at_equations)) == sorted(map(str, program.masks))


def test_guards_are_told_with_the_line_that_asked():
    def fn(x):
        return x if x.shape[0] > 2 else x * 2

    (guard,) = traced(fn, ("s",), ones(3)).guards
    assert guard.text == "s > 2"
    assert guard.where.startswith("return x if x.shape[0] > 2 else x * 2  (test_call.py:")


def test_a_symbol_that_a_guard_replaced_is_told_in_the_symbols_of_the_call():
    # At odd sizes alone, so that the trace has another symbol, of half the size.
    program = traced(lambda x: x[0::2][:-1] + x[1::2], ("s",), ones(5))
    assert program.symbols == ("s",)
    every = [v for eqn in program for v in (*eqn.operands, *eqn.results)]
    assert {s for v in every if v.shape is not None for s in v.shape.symbols} == {"s"}
    assert str(program.inputs[0]) == "x f32[s]"
    assert (program.inputs[0].lengths, program.inputs[0].capacities) == ((5,), (7,))
    assert str(program.extents[0]) == "s = 5 of 7"
    assert program.results[0].lengths == (2,)
    assert [guard.text for guard in program.guards] == ["mod(s, 2) == 1"]
    equal = traced(lambda x, y: x + y, ("s", "t"), ones(5), ones(5))
    assert equal.symbols == ("s", "t")
    assert [str(extent) for extent in equal.extents] == ["s = 5 of 8", "t = 5 of 8"]
    assert {str(v.shape) for v in (*equal.inputs, *equal.results)} == {"f32[s]"}
    pinned = traced(lambda x: x * (2 if x.shape[0] == 5 else 3), ("s",), ones(5))
    assert pinned.symbols == ("s",)
    assert str(pinned.results[0].shape) == "f32[5]"


def test_numbers_of_the_host_have_their_values():
    def fn(x):
        return x.sum() / (x.shape[0] * (x.shape[0] - 1) / 2)

    (number,) = traced(fn, ("s",), ones(5)).numbers
    assert (number.text, number.dtype, number.value) == ("(s^2 - s) / 2", "float32", "10.0")
    # None is told twice.
    twice = sx.trace(lambda x: x * (x.shape[0] / 2) + x * (x.shape[0] / 2), X)
    assert [number.text for number in twice.numbers] == ["b / 2"]
    assert len(twice.find("host_value")) == 2


def test_why_a_symbol_is_exact_is_told():
    program = traced(lambda x: jax.new_ref(x)[...], ("s",), ones(3), on_unsupported="exact")
    assert program.buckets == {"s": 3}
    assert "no pad-safe rule for `new_ref`" in program.exact["s"]


def test_arguments_by_name_and_what_methods_hold_are_named():
    class Scaled:
        def __init__(self):
            self.scale = jnp.ones(4)

        @sx.bucketed(("b, 4",), P)
        def run(self, x, *, shift):
            return x * self.scale + shift

    program = Scaled().run.trace(ones(3, 4), shift=np.float32(1))
    assert program.name == "run"
    assert [v.name for v in program.inputs if v.name in ("x", "shift")]
    assert len(program.inputs) == 3
    named = sx.Exec(lambda *, z, a: z.sum() + a, kwarg_shapes={"z": "n, 2", "a": "m"})
    assert list(map(str, named.trace(z=ones(3, 2), a=ones(5)).inputs)) == [
        "a f32[m]",
        "z f32[n,2]",
    ]
    (held,) = [v.name for v in program.inputs if v.name not in ("x", "shift")]
    assert held.startswith("run[")
    assert held.endswith("['scale']")
    static = Scaled.run.trace(Scaled(), ones(3, 4), shift=np.float32(1))
    assert static.inputs == program.inputs
