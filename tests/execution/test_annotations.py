"""Specs by annotations, and by JAX's own symbolic dims."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import shapeexec as sx
from shapeexec.execution import _runner
from tests.execution.support import assert_runs_as, ones


def weighted(w, x):  # w: f32[4], x: f32[b, s, 4]
    return (x @ w).mean(axis=1)


W = ones(4)

# Names, for linters read strings inside of annotations as Python

B, B4, BS4 = Float[Array, "b"], Float[Array, "b 4"], Float[Array, "b s 4"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    x: BS4
    y: B
    name: str = dataclasses.field(metadata={"static": True}, default="")


def step(w, batch: Batch, scale):
    return ((batch.x @ w).mean(axis=1) * batch.y).sum() * scale.max()


def test_annotated_arguments_have_specs_from_the_first_call():
    run = sx.Exec(step, buckets={"b": "pow2", "s": 8})
    for b, s in [(3, 5), (4, 7), (3, 8)]:
        assert_runs_as(step, run, W, Batch(ones(b, s, 4), ones(b)), ones(2))
    assert run.cache_size == 1
    assert str(run.specs) == 'in_shapes=(None, Batch("b, s, 4", "b"), None)'


def test_an_annotated_tree_is_looked_at_in_each_call_also_after_a_warm_up():
    run = sx.Exec(step, buckets={"b": 4, "s": 8})
    run.warmup(W, Batch(ones(3, 5, 4), ones(3)), ones(2), b=4, s=8)
    run.freeze()
    for b, s in [(3, 5), (4, 7), (3, 5), (2, 8)]:
        assert_runs_as(step, run, W, Batch(ones(b, s, 4), ones(b)), ones(2))


def test_a_call_is_remembered_by_all_that_it_was_padded_by(monkeypatch):
    run, meanwhile = sx.Exec(step, buckets={"b": 4, "s": 8}), []
    plain = _runner.signature

    def signature(*args, **kwargs):
        known_as = plain(*args, **kwargs)
        if not meanwhile:  # before it is looked up, another thread makes the very first call
            meanwhile.append(known_as)
            run(W, Batch(ones(4, 8, 4), ones(4)), ones(2))
        return known_as

    monkeypatch.setattr(_runner, "signature", signature)
    assert_runs_as(step, run, W, Batch(ones(3, 5, 4), ones(3)), ones(2))


def test_an_argument_without_an_annotation_is_inferred_beside_others():
    run = sx.Exec(step)
    for b in (3, 4, 5, 6):
        assert_runs_as(step, run, W, Batch(ones(b, 7, 4), ones(b)), ones(b))
    assert str(run.specs) == 'in_shapes=(None, Batch("b, s, 4", "b"), "b")'


def test_a_call_that_contradicts_an_annotation_is_an_error_that_shows_both():
    with pytest.raises(sx.SpecError) as caught:
        sx.Exec(step)(W, Batch(ones(3, 5, 2), ones(3)), ones(2))
    error = caught.value
    assert error.what == "args[1].x axis 2 has size 2, but its spec says 4."
    assert error.got == 'args[1].x [3,5,2] with the spec "b, s, 4"'
    assert error.why == "without in_shapes the annotations of the function are its specs"
    assert error.fix.endswith("; or correct the annotation, or give in_shapes=")


def test_specs_go_before_annotations_and_may_not_contradict_them():
    def fn(x: B4):
        return x.sum()

    assert sx.Exec(fn, (None,)).plan(ones(3, 4)).sizes == {}
    with pytest.raises(
        sx.SpecError, match=r'in_shapes.0. is "b, 5", but its annotation says "b, 4"'
    ):
        sx.Exec(fn, ("b, 5",))


class Model:
    @sx.bucketed()
    def __call__(self, x: B4, n):
        return x.sum() * n.max()


def test_annotations_of_a_method_are_those_behind_self():
    assert Model().__call__.plan(ones(3, 4), ones(2)).sizes == {"b": 3}


# Specs of JAX

M, S = jax.export.symbolic_shape("b, s")


@pytest.mark.parametrize(
    "spec",
    [
        (M, S, 4),
        jax.ShapeDtypeStruct((M, S, 4), np.float32),
        jax.ShapeDtypeStruct((M, 2 * S + 1, 4), np.float32),
    ],
    ids=str,
)
def test_symbolic_dims_of_jax_are_specs(spec):
    run = sx.Exec(weighted, (None, spec))
    for b, s in [(3, 5), (4, 7)]:
        assert_runs_as(weighted, run, W, ones(b, s, 4))
    assert run.plan(W, ones(3, 5, 4)).sizes.keys() == {"b", "s"}


def test_a_dtype_that_contradicts_a_struct_is_an_error():
    run = sx.Exec(jnp.sum, (jax.ShapeDtypeStruct((M,), np.int32),))
    with pytest.raises(sx.SpecError, match=r"args.0. is float32, but its spec is a Shape of int32"):
        run(ones(3))


def test_a_partial_of_an_annotated_function_keeps_its_specs():
    def fn(w, x: B4, *, y: B):
        return (x @ w * y).sum()

    run = sx.Exec(functools.partial(fn, W))
    for b in (3, 4):
        assert_runs_as(functools.partial(fn, W), run, ones(b, 4), y=ones(b))
    assert run.cache_size == 1


def total(x: BS4):
    return x.sum()


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (jax.jit(total), "b, s, 4"),
        (jax.vmap(total), None),
        (jax.jit(jax.vmap(total)), None),
        (jax.jit(jax.jit(jax.vmap(total))), None),
    ],
    ids=("jit", "vmap", "jit of vmap", "jit of jit of vmap"),
)
def test_annotations_of_a_function_that_jit_wraps_are_specs_and_those_behind_vmap_are_not(
    fn, specs
):
    run = sx.Exec(fn)
    run(ones(*(2, 3, 4) if specs else (5, 2, 3, 4)))
    (own,) = run.specs.in_shapes
    assert own == specs
