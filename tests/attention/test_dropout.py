"""Dropout of weights: the right share, the right formula, and the same under padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import ConfigError
from shapeexec.attention._blocks import to_dense
from shapeexec.attention.masks.kept import Kept
from tests.attention.reference import Reference
from tests.tolerance import BY_NORM, assert_close

RATE = 0.3
KEY = jax.random.key(5)


def kept(batch: int, heads: int, lengths: tuple[int, int], key=KEY, rate=RATE) -> np.ndarray:
    bits = np.asarray(jax.random.bits(key, (batch,), np.uint32))
    return np.asarray(to_dense(Kept(rate, bits.view(np.int32)), lengths, batch=batch, heads=heads))


def operands(b: int, t: int, s: int, heads=(4, 2), size=8) -> list[np.ndarray]:
    random = np.random.default_rng(b + t)
    shapes = (b, t, heads[0], size), (b, s, heads[1], size), (b, s, heads[1], size)
    return [random.normal(size=shape).astype(np.float32) for shape in (*shapes, shapes[0])]


def with_gradients(q, k, v, d_out, *bias, mask=None, key=KEY):
    def attend(q, k, v, *bias):
        options = {"mask": mask, "dropout_rate": RATE, "dropout_key": key}
        return sx.dot_product_attention(q, k, v, *bias, **options)

    @jax.jit
    def run(d_out, *args):
        out, transpose = jax.vjp(attend, *args)
        return out, *transpose(d_out)

    return run(d_out, q, k, v, *bias)


def test_each_pair_is_kept_as_often_as_it_should_be_and_by_itself():
    pairs = kept(3, 2, (300, 500)) - (1 - RATE)
    deviation = (RATE * (1 - RATE)) ** 0.5

    def assert_small(products, count):
        assert abs(products.mean()) < 5 * deviation**2 / count**0.5

    assert abs(pairs.mean()) < 5 * deviation / pairs.size**0.5
    for axis in range(4):
        sums = pairs.sum(axis)
        assert abs(sums).max() < 6 * deviation * pairs.shape[axis] ** 0.5
        first, second = (pairs.take(i, axis) for i in (0, 1))
        assert_small(first * second, first.size)
    square = pairs[..., :300]
    assert_small(square * square.swapaxes(-1, -2), square.size // 2)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_the_share_is_that_of_the_rate(rate):
    pairs = kept(1, 1, (512, 512), rate=rate)
    assert abs(pairs.mean() - (1 - rate)) <= 5 * (rate * (1 - rate)) ** 0.5 / 512


def test_another_key_keeps_other_pairs():
    one, other = (kept(1, 1, (64, 64), jax.random.key(i)) for i in range(2))
    assert 0.3 < (one != other).mean() < 0.54  # 2 * RATE * (1 - RATE) = 0.42


def test_result_and_gradients_are_those_of_the_formula_and_three_queries_have_no_key():
    b, t, s = 2, 70, 50
    q, k, v, d_out = operands(b, t, s)
    bias = np.random.default_rng(1).normal(size=(1, 4, t, s)).astype(np.float32)
    allowed = np.broadcast_to(np.tri(t, s, k=-3, dtype=bool), (b, 4, t, s))
    wide = (x.astype(np.float64) for x in (q, k, v, bias))
    factor = kept(b, 4, (t, s)) / (1 - RATE)
    truth = Reference(*wide, allowed, q.shape[3] ** -0.5, factor)
    out, *gradients = jax.jit(lambda *x: with_gradients(*x, mask=sx.Causal(-3)))(
        q, k, v, d_out, bias
    )
    *want, d_bias = truth.gradients(d_out.astype(np.float64))
    for mine, right in zip(
        (out, *gradients), (truth.out, *want, d_bias.sum(0, keepdims=True)), strict=True
    ):
        assert_close(mine, right.astype(np.float32))
    assert not np.asarray(out[:, :3]).any()


LARGE = {
    "nothing": (0.0, None),
    "a constant": (1e6, None),
    "a finite mask of all keys": (-1e9, None),
    "the least number": (float(np.finfo(np.float32).min), None),
    "a finite mask of some rows": (-1e9, "rows"),
    "a finite mask of some keys": (-1e9, "keys"),
    "no key by -inf": (-np.inf, "rows"),
    "large scores": (None, None),
}


def large_operands(constant, where):
    """q, k, v and a bias of a row of `LARGE`."""
    random = np.random.default_rng(0)
    # So few digits that scores are exact, before a bias and after.
    q, k, v = (random.integers(-8, 9, (2, 40, 2, 16)).astype(np.float32) / 8 for _ in range(3))
    bias = np.zeros((1, 2, 40, 40), np.float32)
    if constant is None:
        q, k, bias = 1024 * q, 64 * k, bias[:, :, :1]
        k[..., :15] = 1  # scores differ little, and are large
        q[..., 15] = 1 / 64
    elif where == "rows":
        bias[:, 0, 5:9] = constant
    elif where == "keys":
        bias[..., 30:] = constant
    else:
        bias[:] = constant
    return q, k, v, bias


@pytest.mark.parametrize("name", LARGE)
def test_large_scores_lose_no_digits_of_the_share(name):
    constant, where = LARGE[name]
    q, k, v, bias = large_operands(constant, where)
    factor = kept(2, 2, (40, 40)) / (1 - RATE)

    def plainly(q, k, v, bias):
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / 4 + bias
        is_empty = scores.max(-1, keepdims=True) == -np.inf
        weights = jax.nn.softmax(jnp.where(is_empty, 0, scores), -1) * factor
        return jnp.einsum("bnts,bsnh->btnh", jnp.where(is_empty, 0, weights), v)

    def ours(*args):
        return sx.dot_product_attention(*args, dropout_rate=RATE, dropout_key=KEY)

    for arrays in ((q, k, v, bias), *(((q, k, v, None),) if constant is None else ())):
        given = arrays if arrays[3] is not None else (q, k, v, np.float32(0))

        def with_gradient(f, args):
            argnums = [i for i, x in enumerate(args) if np.ndim(x)]
            return jax.jit(jax.value_and_grad(lambda *a: (f(*a) ** 2).sum(), argnums))(*args)

        mine = (
            with_gradient(ours, arrays)
            if arrays[3] is not None
            else jax.jit(jax.value_and_grad(lambda *a: (ours(*a) ** 2).sum(), (0, 1, 2)))(q, k, v)
        )
        want = with_gradient(plainly, given)
        assert_close(mine[0], want[0], scale=0)
        for one, other in zip(mine[1], want[1], strict=True):
            assert_close(one, other, scale=float(abs(np.asarray(other)).max()))
        if constant is not None:
            assert_close(ours(*arrays), plainly(*given))


def test_in_an_exec_and_mapped_large_scores_lose_no_digits_either():
    def run(q, k, bias, key):
        return sx.dot_product_attention(q, k, k, bias, dropout_rate=RATE, dropout_key=key)

    q, k, _, _ = operands(2, 20, 20, heads=(2, 2))
    bias = np.full((1, 1, 1, 20), -1e9, np.float32)
    want = run(q, k, bias, KEY)
    spec = ("b, t, _, _", "b, s, _, _", "_, _, _, s", None)
    padded = sx.Exec(run, spec, buckets=sx.Linear(32), poison="nan")
    assert_close(padded(q, k, bias, KEY), want)
    mapped = jax.vmap(run, (0, 0, None, None))(np.stack([q, q]), np.stack([k, k]), bias, KEY)
    assert_close(mapped[0], want)


def test_where_every_weight_is_dropped_result_and_gradients_are_0():
    q, k, v, d_out = operands(1, 9, 9)

    def attend(q, k, v):
        return sx.dot_product_attention(
            q, k, v, is_causal=True, dropout_rate=0.99, dropout_key=jax.random.key(1)
        )

    out, transpose = jax.vjp(attend, q, k, v)
    is_alone = ~(kept(1, 4, (9, 9), jax.random.key(1), 0.99) & np.tri(9, dtype=bool)).any(-1)
    assert is_alone.mean() > 0.9
    for result in (out, transpose(d_out)[0]):
        assert np.isfinite(result).all()
        assert not np.asarray(result)[is_alone.transpose(0, 2, 1)].any()


def test_padding_drops_the_same_weights():
    def run(q, k, v, d_out, key):
        return with_gradients(q, k, v, d_out, mask=sx.Causal(), key=key)

    q, k = "b, t, _, _", "b, s, _, _"
    padded = sx.Exec(run, (q, k, k, q, None), buckets=sx.Linear(96), poison="nan")
    for sizes in ((3, 70, 50), (1, 1, 1), (2, 90, 96)):
        args = (*operands(*sizes), KEY)
        assert_close(padded(*args), run(*args))
    assert padded.stats.compiles == 1


def test_mapped_calls_are_those_of_a_loop():
    keys = jax.random.split(KEY, 3)
    many = [np.stack([x, x + 1, x - 1]) for x in operands(2, 20, 20)]
    mapped = jax.vmap(lambda *x: with_gradients(*x[:4], key=x[4]))(*many, keys)
    for i, key in enumerate(keys):
        alone = with_gradients(*(x[i] for x in many), key=key)
        for mine, want in zip(mapped[:4], alone[:4], strict=True):
            assert_close(mine[i], want)


def test_the_residual_is_that_of_all_scores():
    q, k, v, _ = operands(2, 20, 30)
    _, plain = sx.dot_product_attention(q, k, v, return_residual=True)
    _, dropped = sx.dot_product_attention(
        q, k, v, return_residual=True, dropout_rate=RATE, dropout_key=KEY
    )
    assert_close(dropped, plain, scale=0)


def test_without_a_rate_the_program_is_the_same():
    q, k, v, _ = operands(1, 4, 4)
    plain = jax.make_jaxpr(sx.dot_product_attention)(q, k, v)
    none = jax.make_jaxpr(lambda *x: sx.dot_product_attention(*x, dropout_key=KEY))(q, k, v)
    assert str(plain) == str(none)


@pytest.mark.parametrize(
    ("rate", "seeds", "told"),
    [(1.0, np.zeros(1, np.int32), "rate=1.0"), (0.1, np.zeros((1, 1), np.int32), "seeds is int32")],
)
def test_what_is_no_share_or_no_seed_is_refused(rate, seeds, told):
    with pytest.raises(ConfigError, match=told):
        Kept(rate, seeds)


def test_in_bf16_it_is_as_exact_as_without():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in operands(2, 64, 64)]
    exact = with_gradients(*(x.astype(np.float32) for x in arrays))[:4]
    for mine, want in zip(with_gradients(*arrays)[:4], exact, strict=True):
        error = np.linalg.norm(np.asarray(mine, np.float32) - want)
        assert error <= 2 * BY_NORM["bfloat16"] * np.linalg.norm(want)
