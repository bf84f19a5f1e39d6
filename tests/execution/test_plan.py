"""Plans and explanations: what a call would run, without running it."""

import jax
import jax.numpy as jnp
import pytest

import shapeexec as sx
from tests.execution.support import counted, ones

P = sx.Pow2()


def softmax(x):
    return jax.nn.softmax(x * 2)  # the line that masks are for


def test_a_plan_compiles_nothing():
    ex = sx.Exec(softmax, ("s",), buckets=P)
    with counted() as count:
        plan, explanation = ex.plan(ones(3)), ex.explain(ones(3))
    assert count.compilations == ex.cache_size == ex.stats.compiles == 0
    assert plan == explanation.plan or plan.key == explanation.plan.key


def test_a_plan_tells_sizes_buckets_and_shapes():
    ex = sx.Exec(
        lambda x: (x.reshape(-1), x.sum(0)), ("b, s",), buckets={"b": P, "s": sx.Linear(10)}
    )
    plan = ex.plan(ones(3, 7))
    assert (plan.sizes, plan.buckets) == ({"b": 3, "s": 7}, {"b": 4, "s": 10})
    assert plan.in_capacities == ((4, 10),)
    assert (plan.out_shapes, plan.out_capacities) == (((21,), (7,)), ((40,), (10,)))
    assert plan.waste == {"b": 0.25, "s": 1 - 7 / 10}
    assert str(plan) == (
        "b=3 in bucket 4 (25% padding), s=7 in bucket 10 (30% padding); not compiled yet"
    )


def test_a_plan_says_whether_its_graph_is_compiled():
    ex = sx.Exec(softmax, ("s",), buckets=P)
    assert not ex.plan(ones(3)).is_compiled
    ex(ones(4))
    assert ex.plan(ones(3)).is_compiled


def test_shapes_will_do_for_a_plan():
    ex = sx.Exec(softmax, ("s",), buckets=P)
    assert ex.plan(jax.ShapeDtypeStruct((3,), jnp.float32)).key == ex.plan(ones(3)).key


@pytest.mark.parametrize(
    "transform", [jax.jit, jax.vmap, jax.grad, jax.eval_shape], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("look", ["plan", "explain", "trace", "why_new"])
def test_a_traced_argument_stands_for_an_array_of_its_shape(transform, look):
    ex, x, told = sx.Exec(softmax, ("s",), buckets=P), ones(3), []

    def looking(x):
        told.append(str(getattr(ex, look)(x)))
        return x.sum()

    if transform is jax.eval_shape:
        jax.eval_shape(looking, x)
    else:
        transform(looking)(x[None] if transform is jax.vmap else x)
    assert told == [str(getattr(ex, look)(jax.ShapeDtypeStruct((3,), x.dtype)))]


@pytest.mark.parametrize("look", ["plan", "explain", "trace", "why_new"])
def test_where_sizes_are_symbolic_there_is_no_bucket_to_tell(look):
    ex = sx.Exec(softmax, ("s",), buckets=P)
    outer = sx.Exec(lambda y: getattr(ex, look)(y) and y, ("n",), buckets=P)
    for attempt in (lambda: outer(ones(3)), lambda: sx.eval_shape(getattr(ex, look), "n")):
        with pytest.raises(sx.InconclusiveShapeError) as caught:
            attempt()
        assert "the sizes are symbolic here" in str(caught.value)
        assert caught.value.__cause__.got == "[n]"
        assert "ask outside of that function" in str(caught.value)


def test_sizes_of_one_bucket_have_one_key():
    ex = sx.Exec(softmax, ("s",), buckets=P)
    assert ex.plan(ones(3)).key == ex.plan(ones(4)).key != ex.plan(ones(5)).key


def test_a_symbol_without_a_strategy_is_exact():
    plan = sx.Exec(lambda x: x + 1, ("b, s",), buckets={"b": P}).plan(ones(3, 3))
    assert plan.buckets == {"b": 4, "s": 3}


def test_an_explanation_lists_masks_with_the_line_that_needs_them():
    explanation = sx.Exec(softmax, ("s",), buckets=P).explain(ones(3))
    assert [note.primitive for note in explanation.added] == ["reduce_max"]
    assert [note.primitive for note in explanation.spared] == ["reduce_sum"]
    for note in explanation.masks:
        assert note.where.startswith("return jax.nn.softmax(x * 2)")
        assert "test_plan.py" in note.where
        assert note.what == "f32[s] along s"
    assert "1 mask, 1 spared:" in str(explanation)


def test_an_explanation_lists_masks_that_were_spared():
    explanation = sx.Exec(lambda x: (x * 2).sum(), ("s",), buckets=P).explain(ones(3))
    assert not explanation.added
    (note,) = explanation.spared
    assert note.action == "none: padding is 0.0"


def test_of_the_readers_of_a_value_that_is_filled_where_it_is_made_all_but_one_are_spared():
    def fn(x):
        y = jnp.exp(x)
        return y.sum(axis=0), y.sum(axis=1), y.sum()

    masks = sx.Exec(fn, ("b, s",), buckets=P).explain(ones(3, 5)).masks
    assert [(note.what, note.action) for note in masks] == [
        ("f32[b,s] along b, s", "filled with 0.0 where it is made"),  # for the first of them
        ("f32[b,s] along s", "none: padding is 0.0"),
        ("f32[b,s] along b, s", "none: padding is 0.0"),
    ]


def test_an_explanation_of_what_runs_exactly_has_no_masks():
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P, on_unsupported="exact")
    explanation = ex.explain(ones(3))
    assert explanation.plan.exact == ("s",)
    assert not explanation.masks
    assert ex.explain(ones(0)).masks == ()


def test_an_explanation_lists_guards_with_the_line_that_asked():
    def fn(x):
        return x if x.shape[0] > 2 else x * 2

    told = str(sx.Exec(fn, ("s",), buckets=P).explain(ones(3)))
    assert "  s > 2" in told
    assert "test_plan.py" in told
