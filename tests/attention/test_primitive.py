"""Attention under JAX's transformations, and how often it is lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import shapeexec as sx
from shapeexec.attention._call import Call, Operands
from shapeexec.attention._primitive import attention
from tests.tolerance import assert_close


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def causal(q, k, v, bias=None):
    return sx.dot_product_attention(q, k, v, bias, is_causal=True)


def causal_of_jax(q, k, v, bias=None):
    return jax.nn.dot_product_attention(q, k, v, bias, is_causal=True)


@functools.partial(jax.jit, static_argnums=0)
def jvp(f, primals, tangents):
    return jax.jvp(f, primals, tangents)


Q, K, BIAS = normal(2, 140, 4, 16), normal(2, 140, 2, 16, seed=1), normal(1, 4, 1, 140, seed=2)


@pytest.mark.parametrize("along", [(0, 1, 2, 3), (2,)], ids=str)
def test_a_derivative_along_a_direction_is_that_of_jax(along):
    arrays = (Q, K, K + 1, BIAS)
    directions = [
        normal(*x.shape, seed=9 + i) if i in along else jnp.zeros_like(x)
        for i, x in enumerate(arrays)
    ]
    assert_close(*(jvp(f, arrays, tuple(directions)) for f in (causal, causal_of_jax)))


def test_a_derivative_of_a_modifier_is_that_of_its_bias():
    def run(slopes):
        return causal(Q, K, K, sx.ALiBi(slopes))

    def plainly(slopes):
        distance = abs(jnp.arange(140) - jnp.arange(140)[:, None])
        return causal_of_jax(Q, K, K, -slopes[None, :, None, None] * distance)

    slopes = jnp.array([0.1, 0.2, 0.01, 0.3])
    assert_close(*(jvp(f, (slopes,), (normal(4),)) for f in (run, plainly)))


def test_linearize_and_its_transpose_agree():
    direction, cotangent = normal(*Q.shape, seed=5), normal(*Q.shape, seed=6)
    _, push = jax.linearize(lambda q: causal(q, K, K), Q)
    _, pull = jax.vjp(lambda q: causal(q, K, K), Q)
    assert_close((push(direction) * cotangent).sum(), (pull(cotangent)[0] * direction).sum())


def test_the_log_sum_exp_has_a_gradient_of_its_own():
    def residual(attend, q):
        out, logsumexp = attend(q)
        return (out * Q).sum() + (logsumexp * weight).sum()

    def ours(q):
        none = jax.tree.structure(None)
        mask = jax.tree.structure(sx.Causal())
        call = Call(None, mask, none, False, False, None, True)
        return attention(Operands(q, K, K, None, None, (), ()), call)

    def plainly(q):
        scores = jnp.einsum("btkgh,bskh->bkgts", q.reshape(2, 140, 2, 2, 16), K) / 4
        scores = jnp.where(jnp.tri(140, dtype=bool), scores.reshape(2, 4, 140, 140), -jnp.inf)
        return causal_of_jax(q, K, K), jax.nn.logsumexp(scores, -1)

    weight = normal(2, 4, 140, seed=3)
    gradient = jax.jit(jax.grad(residual, argnums=1), static_argnums=0)
    assert_close(*(gradient(f, Q) for f in (ours, plainly)))
    direction = normal(*Q.shape, seed=5)
    assert_close(*(jvp(f, (Q,), (direction,))[1] for f in (ours, plainly)))


def test_a_second_derivative_is_an_error_that_says_so():
    x = Q[:1, :2, :, :2]
    for transform in (jax.hessian, lambda f: jax.grad(lambda x: jax.grad(f)(x).sum())):
        with pytest.raises(sx.BackendError, match="no second derivative") as caught:
            transform(lambda x: causal(x, x, x).sum())(x)
        assert "jax.nn.dot_product_attention" in caught.value.fix
        assert "test_primitive.py" in caught.value.where


VMAPS = {
    "all": (0, 0, 0, 0, 0),
    "key at the end": (None, 4, None, None, None),
    "bias": (None, None, None, 0, None),
    "mask": (None, None, None, None, 1),
}
SHAPES = {"q": (9, 4, 8), "k": (9, 2, 8), "v": (9, 2, 8), "bias": (1, 4, 1, 9), "ids": (9,)}


@jax.jit
def value_and_gradients(q, k, v, bias, ids):
    def total(q, k, v, bias):
        mask = sx.Documents(ids) & sx.Causal()
        return (sx.dot_product_attention(q, k, v, bias, mask) ** 2).sum()

    return jax.value_and_grad(total, argnums=(0, 1, 2, 3))(q, k, v, bias)


@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 2) for name in VMAPS), ("all", 1), ("mask", 1)]
)
def test_a_mapped_axis_is_part_of_the_batch(name, batch):
    axes, arrays = VMAPS[name], []
    for axis, (operand, shape) in zip(axes, SHAPES.items(), strict=True):
        own = shape if operand == "bias" else (batch, *shape)
        x = normal(*(own if axis is None else (*own[:axis], 3, *own[axis:])), seed=len(operand))
        arrays.append((x > 0).astype(np.int32) if operand == "ids" else x)

    def example(i):
        cut = [
            x if axis is None else jnp.take(x, i, axis)
            for x, axis in zip(arrays, axes, strict=True)
        ]
        return value_and_gradients(*cut)

    expected = jax.tree.map(lambda *x: jnp.stack(x), *map(example, range(3)))
    assert_close(jax.jit(jax.vmap(value_and_gradients, axes))(*arrays), expected)


def test_lengths_are_mapped_and_so_are_directions():
    lengths = jnp.array([[3], [9], [0]], jnp.int32)
    q, d = normal(3, 1, 9, 2, 8), normal(3, 1, 9, 2, 8, seed=1)

    def along(q, d, n):
        def run(q):
            return sx.dot_product_attention(q, q, q, key_value_seq_lengths=n)

        return jax.jvp(run, (q,), (d,))

    one = jax.jit(along)
    expected = [one(*x) for x in zip(q, d, lengths, strict=True)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *expected)
    assert_close(jax.jit(jax.vmap(along))(q, d, lengths), expected)


def test_checkpoint_makes_the_same_gradient():
    def total(f):
        return jax.jit(jax.grad(lambda q: (f(q, K, K) ** 2).sum()))(Q)

    assert_close(total(jax.checkpoint(causal)), total(causal))


def test_where_jit_is_disabled_it_is_one_operation():
    x = normal(1, 2, 1, 8)
    run = jax.value_and_grad(lambda x: sx.dot_product_attention(x, x, x).sum())
    with jax.disable_jit():
        got = run(x)
    assert_close(got, run(x))


def test_layers_alike_are_lowered_once():
    def model(x):
        for _ in range(12):
            x = causal(x, x[:, :, :2], x[:, :, 2:])
        return x.sum()

    text = jax.jit(jax.grad(model)).lower(Q).as_text()
    for name in ("_attention_forward", "_attention_gradient"):
        assert text.count(f"func.func private @{name}") == 1
        assert text.count(f"call @{name}") == 12


def test_equal_masks_are_traced_once():
    traces = []

    @jax.jit
    def run(q, mask):
        traces.append(mask)
        return sx.dot_product_attention(q, q, q, mask=mask)

    for size in (3, 3, 4):
        run(Q, sx.Causal() & sx.SlidingWindow(size))
    for value in (0, 1):
        run(Q, sx.Documents(jnp.full((2, 140), value)))
    assert len(traces) == 3


def test_sizes_may_be_symbolic_until_it_is_lowered():
    b, s, t = export.symbolic_shape("b, s, t")
    q = jax.ShapeDtypeStruct((b, t, 4, 8), np.float32)
    k, v = (jax.ShapeDtypeStruct((b, s, 2, n), np.float32) for n in (8, 5))

    def total(q, k, v):
        return sx.dot_product_attention(q, k, v, is_causal=True)

    assert jax.eval_shape(total, q, k, v).shape == (b, t, 4, 5)
    gradient = jax.grad(lambda *x: total(*x).sum(), argnums=2)
    assert jax.eval_shape(gradient, q, k, v).shape == (b, s, 2, 5)
    with pytest.raises(sx.BackendError, match="symbolic sizes"):
        export.export(jax.jit(total))(q, k, v)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_inside_of_shard_map_what_all_share_is_shared(kind):
    kind = getattr(jax.sharding.AxisType, kind)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(kind,))
    split, whole = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()

    def total(q, k):
        return (causal(q, k, k) ** 2).sum(keepdims=True)

    with jax.set_mesh(mesh):
        q, k = (jax.device_put(x, jax.NamedSharding(mesh, s)) for x, s in ((Q, split), (K, whole)))
        mapped = jax.shard_map(total, in_specs=(split, whole), out_specs=split)
        gradients = jax.jit(jax.grad(lambda q, k: mapped(q, k).sum(), argnums=(0, 1)))(q, k)
    expected = jax.jit(jax.grad(lambda *x: total(*x).sum(), argnums=(0, 1)))(Q, K)
    assert_close(gradients, expected)
