"""`replace_attention`: models of Flax attend by this library, with their own parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shapeexec as sx
from shapeexec.attention import flax_attention_fn, replace_attention
from tests.execution.support import refused
from tests.libraries.support import BUCKETS, KEY
from tests.tolerance import assert_close


def tokens(b: int, s: int) -> np.ndarray:
    return np.random.default_rng(s).normal(size=(b, s, 8)).astype(np.float32)


class Block(nn.Module):
    """Attention that is made in a call, as most of linen is, also where JAX traces it anew."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> jax.Array:
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(2)(x, mask=mask)
        return x + nn.remat(nn.MultiHeadDotProductAttention)(2)(x)


class Carried(Block):
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        return super().__call__(x), None


class Model(nn.Module):
    """A layer of `setup`, layers of a scan, one that is a field, and a method beside the call."""

    last: nn.Module
    depth: int = 2

    def setup(self) -> None:
        self.first = Block()
        options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        self.more = nn.scan(Carried, length=self.depth, **options)()

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.encode(x)).mean(axis=1)

    def encode(self, x: jax.Array) -> jax.Array:
        return self.more(self.first(x), None)[0]


def is_replaced(fn, *args) -> bool:
    """Whether all attention of a program is this library's: Flax's own has a softmax."""
    text = str(jax.make_jaxpr(fn)(*args))
    return "= attention[" in text and "reduce_max" not in text


def test_a_linen_model_attends_by_this_library_wherever_its_layers_are_made():
    plain = Model(nn.MultiHeadDotProductAttention(2))
    model, x = replace_attention(plain), tokens(2, 5)
    variables = model.init(KEY, x)
    assert_close(variables, plain.init(KEY, x))
    for options in ({}, {"method": "encode"}, {"method": Model.encode}):
        run = lambda v, x, options=options: model.apply(v, x, **options)
        assert is_replaced(run, variables, x)
        assert_close(run(variables, x), plain.apply(variables, x, **options))
    assert not is_replaced(plain.apply, variables, x)  # itself it stays as it was
    assert replace_attention(plain) == model
    assert type(replace_attention(plain)) is type(model)


def test_a_replaced_linen_model_runs_ragged_with_its_gradient():
    plain = Block()
    model = replace_attention(plain)
    variables = plain.init(KEY, tokens(2, 5))
    loss = lambda model: jax.grad(lambda v, x: (model.apply(v, x) ** 2).mean())
    ex = sx.Exec(loss(model), (None, "b, s, 8"), buckets=BUCKETS)
    for b, s in ((2, 3), (3, 4), (4, 2)):
        assert_close(ex(variables, tokens(b, s)), jax.jit(loss(plain))(variables, tokens(b, s)))
    assert ex.cache_size == 1


class Net(nnx.Module):
    def __init__(self) -> None:
        layer = lambda seed, **fn: nnx.MultiHeadAttention(
            2, 8, decode=False, rngs=nnx.Rngs(seed), **fn
        )
        self.layers = nnx.List([layer(0), layer(1)])
        self.own = layer(2, attention_fn=lambda q, k, v, *_, **__: v)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x + layer(x)
        return x + self.own(x)


def test_an_nnx_model_attends_by_this_library_and_keeps_functions_of_its_own():
    plain, net, x = Net(), Net(), tokens(2, 5)
    own = net.own.attention_fn
    assert replace_attention(net) is net
    assert [layer.attention_fn for layer in net.layers] == [flax_attention_fn] * 2
    assert net.own.attention_fn is own
    ex = sx.Exec(lambda net, x: net(x), (None, "b, s, 8"), buckets=BUCKETS)
    for size in ((2, 3), (3, 4)):
        assert_close(ex(net, tokens(*size)), plain(tokens(*size)))
    assert is_replaced(net, x)
    assert ex.cache_size == 1


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_a_mask_and_a_back_end_come_with_it(kind):
    mask, x = sx.SlidingWindow(1), tokens(2, 6)
    steps = jnp.arange(6)[:, None] - jnp.arange(6)
    allowed = ((steps == 0) | (steps == 1))[None, None]
    if kind == "linen":
        plain = nn.MultiHeadDotProductAttention(2)
        variables = plain.init(KEY, x)
        got = replace_attention(plain, within=mask, implementation="xla").apply(variables, x)
        assert_close(got, plain.apply(variables, x, mask=allowed))
    else:
        layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
        want = layer(x, mask=allowed)
        assert_close(replace_attention(layer, within=mask, implementation="xla")(x), want)


def test_what_cannot_be_replaced_is_told():
    with refused(sx.ConfigError, "takes a model of Flax, not a list.", "module of nnx or linen"):
        replace_attention([])
    with refused(sx.ConfigError, "Linear has no attention of Flax's", "attention_fn="):
        replace_attention(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    with refused(sx.ConfigError, "cannot be bound.", "model.apply(variables"):
        replace_attention(Block()).bind({})


def test_a_replaced_linen_model_is_a_constant_that_equal_models_share():
    ex = sx.Exec(lambda m, v, x: m.apply(v, x), (None, None, "b, s, 8"), buckets=BUCKETS)
    variables = Block().init(KEY, tokens(2, 5))
    for _ in range(2):
        ex(replace_attention(Block()), variables, tokens(2, 3))
    assert ex.cache_size == 1
