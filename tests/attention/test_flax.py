"""`flax_attention_fn` in Flax's modules, beside Flax's own attention."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shapeexec as sx
from shapeexec.attention import flax_attention_fn
from tests.tolerance import assert_close, tolerance

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, 16)), jnp.float32)
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, 3, (2, 12)))
MASKS = {
    "none": None,
    "causal, of floats": nn.make_causal_mask(TOKENS),
    "padding, of floats": nn.make_attention_mask(jnp.ones_like(TOKENS), TOKENS > 0),
    "both, of integers": nn.combine_masks(
        nn.make_causal_mask(TOKENS, dtype=jnp.int32),
        nn.make_attention_mask(TOKENS >= 0, jnp.arange(12) % 5 != 4, dtype=jnp.int32),
    ),
    "of bool": nn.make_causal_mask(TOKENS, dtype=jnp.bool_),
}
KEY = jax.random.key(7)


def linen(rate=0.0, **options):
    return nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=rate, **options)


@functools.cache
def variables():
    return linen().init(jax.random.key(0), X)


def in_nnx(rate=0.0, **options):
    return nnx.MultiHeadAttention(
        4, 16, dropout_rate=rate, decode=False, rngs=nnx.Rngs(0), **options
    )


@pytest.mark.parametrize("name", MASKS)
def test_linen_makes_what_it_makes_with_its_own(name):
    def loss(params, fn):
        out = linen(attention_fn=fn).apply(params, X, mask=MASKS[name])
        return (out**2).sum(), out

    run = jax.value_and_grad(loss, has_aux=True)
    assert_close(run(variables(), flax_attention_fn), run(variables(), nn.dot_product_attention))


@pytest.mark.parametrize("name", MASKS)
def test_nnx_makes_what_it_makes_with_its_own(name):
    def run(fn):
        def loss(model):
            return (model(X, mask=MASKS[name]) ** 2).sum()

        model = in_nnx(attention_fn=fn)
        value, gradient = nnx.value_and_grad(loss)(model)
        return value, nnx.to_pure_dict(nnx.state(gradient))

    assert_close(run(flax_attention_fn), run(nnx.dot_product_attention))


def test_evaluation_drops_nothing():
    want = linen().apply(variables(), X)
    given = (linen(0.5, attention_fn=flax_attention_fn), linen(0.5))
    for model in given:
        out = model.apply(variables(), X, deterministic=True, rngs={"dropout": KEY})
        assert_close(out, want)
    model, plain = in_nnx(0.5, attention_fn=flax_attention_fn), in_nnx()
    model.eval()
    assert_close(model(X, deterministic=True), plain(X))


def test_in_training_linen_says_by_its_key_which_weights_are_dropped():
    model = linen(0.5, attention_fn=flax_attention_fn)

    def run(seed):
        rngs = {"dropout": jax.random.key(seed)}
        return model.apply(variables(), X, deterministic=False, rngs=rngs)

    np.testing.assert_array_equal(run(1), run(1))
    assert abs(run(1) - run(2)).max() > 0.01
    assert abs(run(1) - linen().apply(variables(), X)).max() > 0.01
    drawn = jax.jit(jax.vmap(run))(jnp.arange(200))
    standard_error = drawn.std(0) / np.sqrt(len(drawn))
    assert (abs(drawn.mean(0) - linen().apply(variables(), X)) < 5 * standard_error).all()


def test_in_training_nnx_draws_a_key_for_each_call():
    def run(seed):
        model = in_nnx(0.5, attention_fn=flax_attention_fn)
        rngs = nnx.Rngs(seed)
        return [model(X, deterministic=False, rngs=rngs) for _ in range(2)]

    first, second = run(1)
    assert_close((first, second), tuple(run(1)))
    assert abs(first - second).max() > 0.01


def test_as_many_weights_are_dropped_as_by_flax():
    zeros, eye = jnp.zeros((1, 64, 1, 64)), jnp.eye(64)[None, :, None]

    def dropped(fn):  # values that show the weights
        out = fn(zeros, zeros, eye, dropout_rng=KEY, dropout_rate=0.3, deterministic=False)
        weights = np.asarray(out)[0, :, 0]
        np.testing.assert_allclose(weights[weights != 0], 1 / 64 / 0.7, tolerance(np.float32))
        return (weights == 0).mean()

    for fn in (flax_attention_fn, nn.dot_product_attention):
        assert abs(dropped(fn) - 0.3) < 5 * (0.21 / 64**2) ** 0.5


def test_a_mask_of_ours_is_joined_to_those_of_a_module():
    window = functools.partial(flax_attention_fn, within=sx.SlidingWindow(3, 3))
    near = abs(jnp.arange(12) - jnp.arange(12)[:, None]) <= 3
    for name in ("none", "padding, of floats"):
        mask = MASKS[name]
        both = near[None, None] if mask is None else nn.combine_masks(mask, near[None, None])
        has_key = np.asarray(jnp.broadcast_to(both, (2, 1, 12, 12)).any(-1))[:, 0]
        out = linen(attention_fn=window).apply(variables(), X, mask=mask)
        want = linen().apply(variables(), X, mask=both)
        assert_close(np.asarray(out)[has_key], np.asarray(want)[has_key])
    assert_close(
        linen(attention_fn=window).apply(variables(), X, mask=sx.Causal()),
        linen().apply(variables(), X, mask=near & jnp.tri(12, dtype=bool)[None, None]),
    )


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1, 2, 3)], ids=str)
def test_any_number_of_batch_axes_gives_what_flax_gives(batch):
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.normal(size=(*batch, 9, 4, 8)), jnp.float32) for _ in range(3))
    full = random.random((*batch, 4, 9, 9)) < 0.7
    full[..., 0] = True
    bias = jnp.asarray(random.normal(size=(*batch, 1, 9, 9)), jnp.float32)
    for mask in (None, jnp.asarray(full), jnp.asarray(full[..., :1, :, :], jnp.float32)):
        for given in (None, bias):
            args = (q, k, v, given, mask)
            assert_close(flax_attention_fn(*args), nn.dot_product_attention(*args))


def test_decoding_with_a_cache_gives_what_flax_gives():
    def run(fn):
        model = linen(attention_fn=fn, decode=True)
        state = model.init(jax.random.key(0), X)
        outs = []
        for i in range(4):
            out, cache = model.apply(state, X[:, i : i + 1], mutable=["cache"])
            state = state | cache
            outs.append(out)
        return outs

    assert_close(run(flax_attention_fn), run(nn.dot_product_attention))


def test_half_precision_comes_out_as_the_module_says():
    out = linen(attention_fn=flax_attention_fn, dtype=jnp.bfloat16).apply(variables(), X)
    assert out.dtype == jnp.bfloat16
    want = linen(dtype=jnp.bfloat16).apply(variables(), X)
    assert_close(out, want)


REFUSED = {
    "weights": ({"module": object()}, "asks for attention weights", "sow_weights=False"),
    "products": ({"qk_attn_weights_einsum": jnp.einsum}, "cannot use an einsum", "leave it out"),
    "no key": ({"dropout_rate": 0.5}, "dropout_rate=0.5 needs a key", "dropout_key"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_refused(name):
    options, what, fix = REFUSED[name]
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(sx.ConfigError, match=f"(?s){what}.*Fix:.*{fix}"):
        flax_attention_fn(x, x, x, **options)


def test_sown_weights_are_refused_and_not_forgotten():
    with pytest.raises(sx.ConfigError, match="asks for attention weights"):
        linen(attention_fn=flax_attention_fn).apply(
            variables(), X, sow_weights=True, mutable=["intermediates"]
        )


def test_the_plain_function_in_linen_drops_nothing_in_silence():
    keyed = functools.partial(sx.dot_product_attention, dropout_key=KEY)
    model = linen(0.5, attention_fn=keyed)
    with pytest.raises(
        sx.ConfigError, match=r"(?s)deterministic=True with dropout_rate=0.5.*flax_"
    ):
        model.apply(variables(), X, deterministic=True)
    assert_close(
        linen(attention_fn=keyed).apply(variables(), X, deterministic=True),
        linen().apply(variables(), X),
    )
    with pytest.raises(sx.ConfigError, match=r"(?s)mask is f32.*Fix:.*mask != 0"):
        linen(attention_fn=sx.dot_product_attention).apply(
            variables(), X, mask=MASKS["causal, of floats"]
        )


def test_in_an_exec_a_module_is_padded():
    model, state = linen(attention_fn=flax_attention_fn), variables()

    def run(x, lengths):
        mask = nn.make_attention_mask(
            jnp.ones(x.shape[:2]), jnp.arange(x.shape[1]) < lengths[:, None]
        )
        return model.apply(state, x, mask=mask)

    padded = sx.Exec(run, ("b, s, _", "b"), buckets=sx.Linear(16), poison="nan")
    lengths = np.array([12, 5], np.int32)
    assert_close(padded(np.asarray(X), lengths), run(X, lengths))
