"""Plans and explanations of maps: `run.map.plan(...)`, `run.map.explain(...)`."""

import copy
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.masking.folding import notes_of_sums
from tests.execution.support import counted, ones

P = sx.Pow2()
LISTS = [ones(3, 4), ones(7, 4), ones(5, 4)]


def loss(w, x):
    return (jax.nn.softmax(x @ w)[:, None] * x).sum(axis=0).max()


def step():
    return sx.Exec(jax.value_and_grad(loss), (None, "s, 4"), buckets=P)


def test_a_plan_of_a_map_compiles_nothing_and_is_what_the_map_runs():
    ex, w = step(), ones(4)
    with counted() as count:
        plan = ex.map.plan(w, LISTS, reduce="sum")
    assert count.compilations == ex.cache_size == 0
    (group,) = plan.groups
    assert (group.numbers, group.capacity, group.reduce) == ((0, 1, 2), 4, "sum")
    assert [one.sizes for one in group.plans] == [{"s": 3}, {"s": 7}, {"s": 5}]
    assert plan.is_compiled == (False,)
    assert plan.waste == 1 - 15 / 32
    assert str(plan) == (
        "1 graph, 53% padding:\n"
        "  examples 0-2: map over 3 examples in bucket 4, s up to 7; not compiled yet"
    )
    ex.map(w, LISTS, reduce="sum")
    assert [row.key for row in ex.graphs] == [group.key]
    assert ex.map.plan(w, LISTS, reduce="sum").is_compiled == (True,)
    assert ex.map.plan(w, LISTS).is_compiled == (False,)


def test_a_plan_of_a_map_tells_which_examples_share_a_graph_and_why():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] > 4 else x.max(), ("s",), buckets=P)
    plan = ex.map.plan([ones(n) for n in (2, 9, 3, 4, 8, 5)])
    assert [group.numbers for group in plan.groups] == [(0, 2, 3), (1, 4, 5)]
    _, small, large = str(plan).splitlines()
    assert small.startswith("  examples 0, 2-3: ")
    assert small.endswith("; not compiled yet; if s <= 4")
    assert large.endswith("; if s > 4")


def test_shapes_will_do_for_a_plan_of_a_map():
    ex, w = step(), ones(4)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in LISTS]
    for reduce in (None, "sum"):
        wanted = [group.key for group in ex.map.plan(w, LISTS, reduce=reduce).groups]
        plan = ex.map.plan(jax.ShapeDtypeStruct((4,), jnp.float32), structs, reduce=reduce)
        assert [group.key for group in plan.groups] == wanted
        explained = ex.map.explain(w, structs, reduce=reduce)
        assert str(explained) == str(ex.map.explain(w, LISTS, reduce=reduce))


def test_an_explanation_of_a_map_tells_masks_and_folded_sums():
    explanation = step().map.explain(ones(4), LISTS, reduce="sum")
    ((value, gradient),) = explanation.sums
    assert (value.number, value.what, value.folded) == (0, "f32[]", ())
    assert value.why == "`reduce_max` cannot sum over examples"
    assert (gradient.number, gradient.what, gradient.why) == (1, "f32[4]", None)
    assert gradient.folded == ("dot_general",)
    text = str(explanation).splitlines()
    assert text[0] == "1 graph, 53% padding:"
    assert text[-2:] == [
        "    sum of result 0, f32[]: not folded: `reduce_max` cannot sum over examples",
        "    sum of result 1, f32[4]: folded into dot_general",
    ]
    added = sum(note.masked for note in explanation.masks)
    assert text[2] == f"    {added} masks, {len(explanation.masks) - added} spared"
    assert added
    assert len(explanation.programs) == 1
    assert explanation.programs[0].buckets == {"s": 8}
    assert step().map.explain(ones(4), LISTS).sums == ((),)


def _product_and_its_maximum(x):
    product = x.T @ (x @ ones(4))
    return product, product.max()


X = np.ones((3, 5, 4), np.float32)
WHY = {
    "it is zero": lambda x: jnp.zeros(()),
    "each example gives it as it is": lambda x: x,
    "`sort` cannot sum over examples": jnp.sort,
    "the result of `dot_general` for each example is read elsewhere, too": _product_and_its_maximum,
}


@pytest.mark.parametrize(("why", "fn"), WHY.items(), ids=WHY)
def test_each_reason_why_a_sum_is_not_folded_is_told(why, fn):
    note = notes_of_sums(jax.vmap(lambda x: jax.tree.leaves(fn(x))), len(X), X)[0]
    assert (note.folded, note.why) == ((), why)
    assert str(note).endswith(f": not folded: {why}")


def test_what_the_host_takes_part_in_is_told_to_run_one_by_one():
    def fn(x):
        jax.debug.callback(lambda: None)
        return x.sum()

    (notes,) = sx.Exec(fn, ("s",), buckets=P).map.explain([ones(3)], reduce="sum").sums
    why = "examples run one by one, because the function calls the host"
    assert [note.why for note in notes] == [why]


def test_what_a_map_would_raise_its_plan_raises():
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P)
    for look in (ex.map, ex.map.plan, ex.map.explain):
        with pytest.raises(sx.UnsupportedPrimitiveError, match="`new_ref`"):
            look([ones(3)])
        with pytest.raises(sx.SpecError, match="not a list"):
            look(ones(3))
        with pytest.raises(sx.ConfigError, match="reduce='mean' is not known"):
            look([ones(3)], reduce="mean")
    assert ex.map([]) == []
    assert ex.map.plan([]).groups == ()
    assert str(ex.map.plan([])) == "0 graphs, 0% padding:"


class Model:
    def __init__(self, scale):
        self.scale = jnp.float32(scale)

    @sx.bucketed(("s",), P)
    def run(self, x):
        return x.sum() * self.scale


def test_a_map_of_a_method_is_planned_as_it_is_run():
    model = Model(2)
    assert [float(x) for x in model.run.map([ones(2), ones(3)])] == [6, 12]
    assert model.run.map.plan([ones(2), ones(3)]).is_compiled == (True,)
    assert Model.run.map.plan(model, [ones(2), ones(3)]).is_compiled == (True,)
    assert Model(3).run.map.plan([ones(2), ones(3)]).is_compiled == (True,)


@sx.bucketed(("s",), P)
def total(x):
    return x.sum()


def test_a_map_is_pickled_and_copied_as_a_method_is():
    for made in (pickle.loads(pickle.dumps(total.map)), copy.copy(total.map)):
        assert made == total.map
        assert [float(x) for x in made([ones(2)])] == [3]
    assert total.map != sx.Exec(lambda x: x).map


def test_a_map_tells_its_parameters():
    assert [*inspect.signature(total.map).parameters] == ["args", "reduce", "kwargs"]
    assert inspect.getdoc(sx.Exec.map).startswith("Run `fn`, a function of one example")
