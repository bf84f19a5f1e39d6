"""What is known of padding, and the fills that readers wish for, go through bodies of loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shapeexec as sx
from shapeexec.masking._interpret import Interpreter
from shapeexec.masking._masked import Masked
from tests.cases import Case
from tests.checks import assert_pad_safe
from tests.execution.support import ones
from tests.tolerance import EQUAL, assert_close

B = sx.Linear(8)


def _thrice(body):
    """Carry a function of [b, s] through three steps, and add up each carry over s."""
    return lambda x: lax.scan(lambda c, _: (body(c), c.sum(1)), x, None, length=3)


def _steps(x):
    """A recurrence over s, whose states are read and whose last one is not."""
    return lax.scan(lambda c, row: ((new := jnp.tanh(c + row + 1)), new * 2), x[:, 0], x.T)[1]


def _cumulated(x):
    return lax.scan(lambda c, row: (c + row + 1, c), x[:, 0] * 0, x.T, reverse=True)[1]


def _until(x):
    def body(state):
        c, total = state
        return c + 1, total + c.sum(1)

    return lax.while_loop(lambda state: state[1].max() < 99, body, (jnp.abs(x), x[:, 0]))


def _nested(x):
    def outer(c, _):
        inner = lax.scan(lambda d, _: (d * 2 + 1, d.sum(1)), c, None, length=2)
        return inner[0] - 1, inner[1]

    return lax.scan(outer, x, None, length=2)


BODIES = {
    "zeros stay zeros": (_thrice(lambda c: c * c), 0),
    "zeros until the first step": (_thrice(lambda c: c * 2 + 1), 1),
    "zeros until the second": (
        lambda x: lax.scan(
            lambda c, _: ((c[1], c[1] + 1), c[0].sum(1)), (x, x * x), None, length=3
        ),
        1,
    ),
    "states that are added up over all steps": (lambda x: _steps(x).sum(), 1),
    "states that are added up over examples": (lambda x: _steps(x).sum(1), 1),
    "states from the end": (lambda x: (_cumulated(x).sum(0), _cumulated(x).max()), None),
    "the last state": (lambda x: lax.scan(lambda c, r: (c + r + 1, None), x[:, 0], x.T)[0], 1),
    "a state that another one reads": (
        lambda x: lax.scan(lambda c, r: ((c[0] + r + 1, c[0] * 2), c[1]), (x[:, 0], x[:, 0]), x.T)[
            0
        ][1],
        1,
    ),
    "zeros in front of a while": (_until, None),
    "a loop in a loop": (_nested, None),
    "branches that agree": (
        lambda x: lax.cond(x[0, 0] > 0, lambda y: y * y, lambda y: y + y, x).sum(1),
        0,
    ),
    "branches of which one is unknown": (
        lambda x: lax.cond(x[0, 0] < 99, lambda y: y + 1, lambda y: y * y, x).sum(1),
        1,
    ),
    "branches of which the other is": (
        lambda x: lax.cond(x[0, 0] < 99, lambda y: y * y, lambda y: y + 1, x).sum(1),
        1,
    ),
    "a branch that adds up": (
        lambda x: lax.cond(x[0, 0] > 0, lambda y: y.sum(1), lambda y: y.max(1), x),
        1,
    ),
    "zeros into a checkpoint": (jax.checkpoint(lambda x: (x * x).sum(1)), 0),
    "zeros out of a checkpoint": (lambda x: jax.checkpoint(lambda y: y * y)(x).sum(1), 0),
}


@pytest.mark.parametrize("name", BODIES)
def test_facts_in_bodies_save_masks_and_change_nothing(name):
    fn, masks = BODIES[name]
    case = Case(name, fn, ("b, s",))
    for poison in (None, "nan", "garbage"):
        assert_pad_safe(case, case.sizes, 3, poison)
    if masks is not None:
        assert len(sx.Exec(fn, ("b, s",), buckets=B).explain(ones(3, 5)).added) == masks


@pytest.mark.parametrize("name", BODIES)
def test_a_fill_where_a_value_is_made_reaches_all_of_its_padding(name, monkeypatch):
    def run(masked, sizes, consts, leaves):
        first = Interpreter(masked.poison)
        jax.eval_shape(
            functools.partial(masked._run, interpreter=first), sizes, consts, leaves=leaves
        )
        second = Interpreter(masked.poison, planned=first.report)
        return masked._run(sizes, consts, leaves=leaves, interpreter=second)

    monkeypatch.setattr(Masked, "__call__", run)
    case = Case(name, BODIES[name][0], ("b, s",))
    assert_pad_safe(case, case.sizes, 3, "nan")


def test_explain_tells_of_bodies():
    def fn(x):
        state, states = lax.scan(
            lambda c, row: ((c[0] + row, c[1] + row), c[1]), (x[:, 0], x[:, 0]), x.T
        )
        return state[0], states.sum(0), _thrice(lambda c: c + 1)(x)[1]

    told = [
        (note.primitive, note.what, note.action)
        for note in sx.Exec(fn, ("b, s",), buckets=B).explain(ones(3, 5)).masks
    ]
    assert told == [
        ("scan", "f32[b] carried over s", "frozen behind the last step"),
        ("scan", "f32[b] carried over s", "none: nothing reads it after the loop"),
        ("reduce_sum", "f32[s,b] along s", "filled with 0.0 where it is made"),
        ("reduce_sum", "f32[b,s] along s", "filled with 0.0"),
    ]


def test_what_nobody_reads_gets_no_mask():
    def fn(x):
        (x + 1).sum()
        return jax.jit(lambda x: (x * 2, (x + 1).max()))(x)[0]

    ex = sx.Exec(fn, ("b, s",), buckets=B)
    assert not ex.explain(ones(3, 5)).masks
    np.testing.assert_array_equal(ex(ones(3, 5)), ones(3, 5) * 2)


def test_an_effect_is_kept_though_nobody_reads_its_result():
    seen = []

    def fn(x):
        jax.debug.callback(lambda n: seen.append(int(n)), jnp.int32(x.shape[0]))
        return x + 1

    jax.block_until_ready(sx.Exec(fn, ("b, s",), buckets=B)(ones(3, 5)))
    jax.effects_barrier()
    assert seen == [3]


def test_parts_of_a_static_axis_are_slices():
    def fn(x):
        return sum(jnp.split(x, 2, axis=1))

    padded = sx.masking.pad_safe(fn, ("b, 4",))
    text = str(jax.make_jaxpr(padded)({"b": 3}, ones(8, 4)))
    assert "gather" not in text
    assert_close(padded({"b": 3}, ones(8, 4))[:3], fn(ones(3, 4)), loose=EQUAL)


def test_a_static_pad_in_front_is_one_pad():
    def fn(x):
        return jnp.pad(x, ((0, 0), (1, 0)), constant_values=7)  # jnp hands over NumPy's integers

    padded = sx.masking.pad_safe(fn, ("b, s",))
    sizes = {"b": 3, "s": 5}
    x = np.pad(ones(3, 5), ((0, 1), (0, 3)), constant_values=np.nan)
    jaxpr = jax.make_jaxpr(padded)(sizes, x)
    names = [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]
    assert names.count("pad") == 1
    assert not {"gather", "select_n"} & {*names}
    assert_close(padded(sizes, x)[:3, :6], fn(ones(3, 5)), loose=EQUAL)


def test_a_checkpoint_saves_the_memory_that_it_saves_unpadded():
    def loss(checkpoint, w, x):
        def layer(x, w):
            return jnp.tanh(jnp.sin(x @ w) @ w.T) * jax.nn.softmax(x, 1), None

        return (lax.scan(checkpoint(layer), x, w)[0] ** 2).mean()

    w, x = np.ones((6, 8, 64), np.float32), np.ones((4, 100, 8), np.float32)

    def temporary(checkpoint, padded):
        fn = jax.grad(functools.partial(loss, checkpoint))
        if padded:
            safe = sx.masking.pad_safe(fn, (None, "b, s, 8"))
            compiled = jax.jit(safe).lower({"b": 3, "s": 77}, w, x).compile()
        else:
            compiled = jax.jit(fn).lower(w, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)
    for padded in (False, True):
        assert temporary(checkpoint, padded) < 0.8 * temporary(lambda fn: fn, padded)


def test_what_a_checkpoint_forgets_is_computed_again():
    def dots(checkpoint):
        layer = checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w))
        fn = jax.grad(lambda w, x: jnp.sin(layer(layer(x, w), w)).sum())
        padded = jax.jit(sx.masking.pad_safe(fn, (None, "s, 3")))
        text = padded.lower({"s": 5}, ones(3, 3), ones(8, 3)).compile().as_text()
        return text.count(" dot(")

    assert dots(jax.checkpoint) > dots(lambda fn: fn)
