"""Masks as trees: the structure is that of the value, whatever stands where its arrays were."""

import copy
import pickle

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.masks import Dense, Lengths, Mask
from shapeexec.attention.masks.kept import Kept
from shapeexec.attention.masks.scores import Added
from tests.tolerance import assert_close

IDS = np.arange(8) // 3
MASKS = {
    "documents": sx.Documents(IDS),
    "joined": sx.Causal() & sx.Documents(IDS) & ~(sx.Global(np.array([2])) | sx.SlidingWindow(2)),
    "dense": Dense(np.tri(8, dtype=bool)),
    "windows": sx.SlidingWindow(np.array([2], np.int32), 3),
    "lengths": Lengths(np.array([4]), 5),
    "kept": Kept(0.1, np.zeros(1, np.int32)),
    "tiles": sx.BlockMask.from_mask(
        sx.Documents(IDS) & sx.Causal(), query_size=8, key_size=8, tile=(4, 4)
    ),
    "alibi": sx.ALiBi.for_heads(2),
    "table": sx.RelativeBias(np.ones((2, 5), np.float32)),
    "added": Added(np.ones((1, 1, 1, 8), np.float32), np.ones((1, 2, 8, 1), np.float32)),
    "added to a modifier": Added(sx.ALiBi.for_heads(2), np.ones((1, 2, 8, 1), np.float32)),
}
LEAVES = [0, None, "name", object(), 1.5, jax.ShapeDtypeStruct((3,), "int32"), jax.P("x"), int, len]
X = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 2, 4)), jnp.float32)
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def attend(x, mask):
    return sx.dot_product_attention(x, x, x, mask=mask)


@each_mask
@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: type(leaf).__name__)
def test_the_structure_stays_whatever_leaves_become(mask, leaf):
    structure = jax.tree.structure(mask)
    changed = jax.tree.map(lambda _: leaf, mask)
    again, structure_again = jax.tree.flatten(changed, is_leaf=lambda x: x is None)
    assert structure_again == structure
    assert hash(structure_again) == hash(structure)
    assert again == [leaf] * structure.num_leaves
    assert changed == jax.tree.map(lambda _: leaf, mask)
    assert changed != mask
    assert isinstance(hash(changed), int)
    assert repr(changed)
    back = jax.tree.map(lambda _, old: old, changed, mask, is_leaf=lambda x: x is None)
    assert back == mask


@each_mask
def test_paths_name_fields(mask):
    paths, _ = jax.tree_util.tree_flatten_with_path({"mask": mask})
    for path, leaf in paths:
        named = jax.tree_util.keystr(path)
        assert eval("tree" + named, {"tree": {"mask": mask}}) is leaf


@each_mask
@pytest.mark.parametrize("with_tree", [lambda m: m, lambda m: jax.tree.map(np.asarray, m)])
def test_copies_and_pickles_are_equal(mask, with_tree):
    mask = with_tree(mask)
    for same in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert same == mask
        assert jax.tree.structure(same) == jax.tree.structure(mask)


def test_axes_of_vmap_are_told_by_a_tree_of_the_mask():
    mask = sx.Causal() & sx.Documents(IDS)
    both = jax.tree.map(lambda x: jnp.stack([x, x * 0]), mask)
    want = [attend(X, mask), attend(X, jax.tree.map(lambda x: x * 0, mask))]
    axes = jax.tree.map(lambda _: 0, mask)
    out = jax.vmap(attend, (None, axes))(X, both)
    assert_close(out, jnp.stack(want))
    axes = jax.tree.map(lambda _: None, mask)
    out = jax.vmap(attend, (0, axes))(jnp.stack([X, X]), mask)
    assert_close(out[1], want[0])


class Layer(eqx.Module):
    mask: Mask
    scale: jax.Array

    def __call__(self, x):
        return attend(self.scale * x, self.mask)


@pytest.mark.parametrize("name", ["documents", "joined", "dense", "tiles"])
def test_an_equinox_module_holds_masks(name):
    layer = Layer(MASKS[name], jnp.ones(()))
    arrays, static = eqx.partition(layer, eqx.is_array)
    assert eqx.combine(arrays, static).mask == layer.mask
    assert isinstance(hash(static), int)
    want = attend(X, MASKS[name])
    assert_close(eqx.filter_jit(layer)(X), want)
    mapped = eqx.filter_vmap(lambda m, x: m(x), in_axes=(None, 0))(layer, jnp.stack([X, X]))
    assert_close(mapped[1], want)
    gradient = eqx.filter_grad(lambda m, x: m(x).sum())(layer, X)
    assert gradient.scale.shape == ()


def test_a_linen_module_holds_a_mask():
    class Attend(nn.Module):
        mask: Mask

        @nn.compact
        def __call__(self, x):
            return attend(nn.Dense(4)(x), self.mask)

    layer = Attend(sx.Documents(IDS) & sx.Causal())
    assert layer.apply(layer.init(jax.random.key(0), X), X).shape == X.shape
    assert layer == Attend(sx.Documents(IDS) & sx.Causal())


def test_masks_go_through_loops_branches_and_shapes():
    mask = sx.Causal() & sx.Documents(IDS)
    through = [
        jax.jit(lambda m: m)(mask),
        jax.jit(lambda m, x: jax.lax.cond(x, lambda m: m, lambda m: m, m))(mask, True),
        jax.lax.scan(lambda m, _: (m, None), mask, None, length=2)[0],
        jax.device_put(mask, jax.devices()[0]),
        jax.checkpoint(lambda m: m)(mask),
    ]
    for same in through:
        assert_close(attend(X, same), attend(X, mask))
    shapes = jax.eval_shape(lambda m: m, mask)
    assert jax.tree.structure(shapes) == jax.tree.structure(mask)
    assert jax.jit(attend).lower(X, shapes).out_info.shape == X.shape
