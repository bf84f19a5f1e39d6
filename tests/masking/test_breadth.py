"""Breadth: many small programs, each once; those that deserve more are rows of the tables."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax, nn, random

import shapeexec as sx
from tests.marks import marked_slow
from tests.tolerance import SUMS, assert_close

# Each is a program of `x`, f32[b,s], and of the key `k`.
FAMILIES = {
    "draws": """
        random.uniform(k, x.shape, jnp.bfloat16)
        random.bernoulli(k, nn.sigmoid(x))
        random.truncated_normal(k, -1.0, x)
        random.beta(k, jnp.abs(x) + 0.1, 2.0)
        random.poisson(k, jnp.abs(x))
        random.binomial(k, 10.0, nn.sigmoid(x))
        random.dirichlet(k, jnp.ones(3), x.shape[1:])
        random.ball(k, 3, shape=x.shape[:1])
        random.t(k, 3.0, x.shape)
        random.categorical(k, x, shape=(3, x.shape[0]))
        random.choice(k, x, (3,), axis=0)
        random.choice(k, jnp.arange(7.0), x.shape, p=jnp.ones(7) / 7)
        random.orthogonal(k, 3, x.shape[:1])
        jax.vmap(lambda key: random.permutation(key, 5))(random.split(k, x.shape[0]))
        jax.vmap(lambda y: random.choice(y, 5, (2,), replace=False))(random.split(k, x.shape[0]))
    """,
    "reads and writes": """
        x[..., ::-2] + x[0, -1]
        x[:, jnp.array([0, -1])]
        x[jnp.arange(x.shape[0])[:, None], jnp.arange(x.shape[1])]
        x[-1:, None, 1:]
        x.at[1:, ::2].multiply(2.0)
        x.at[jnp.array([0, 9]), :].min(-1.0, mode="drop")
        x.at[..., -1].apply(jnp.sin)
        jnp.take(x, jnp.array([0, 9, -1]), 1, mode="clip")
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1)
        jnp.unique(jnp.sign(x), size=4, return_counts=True)
        jnp.nonzero(x > 0, size=5, fill_value=-1)
        jnp.repeat(x, jnp.arange(x.shape[0]), 0, total_repeat_length=7)
        jnp.histogram(x, bins=4)
        jnp.digitize(x, np.arange(4.0))
        jnp.select([x > 1, x > 0], [x, -x], 3.0)
        jnp.tril(x, -1) + jnp.triu(x, 1)
        jnp.packbits(x > 0, axis=1)
        jax.ops.segment_max(x, jnp.arange(x.shape[0]) % 3, 3)
        lax.dynamic_slice_in_dim(x, jnp.int32(9), 2, 1)
        lax.dynamic_update_slice(x, x[:1] * 2, (jnp.int32(9), 0))
    """,
    "windows": """
        lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "SAME")
        lax.reduce_window(x, -jnp.inf, jnp.logaddexp, (2, 2), (1, 1), "SAME")
        jax.grad(lambda y: lax.reduce_window(y, jnp.inf, lax.min, (1, 2), (1, 2), "SAME").sum())(x)
        lax.conv_general_dilated_patches(x[..., None], (3,), (1,), "SAME", dimension_numbers=NHC)
        jax.vmap(lambda y: jnp.convolve(y[:3], y[:2]))(x)
        jax.image.resize(x[:, :2], (x.shape[0], 5), "cubic")
        jsp.ndimage.map_coordinates(x, [jnp.arange(3.0), jnp.arange(3.0)], 1, cval=7.0)
    """,
    "functions of science": """
        jsp.special.expi(jnp.abs(x) + 0.1)
        jsp.special.hyp1f1(1.0, 2.0, x)
        jsp.special.logsumexp(x, 0, return_sign=True)
        jsp.stats.rankdata(x, axis=1)
        jsp.stats.sem(x, axis=0)
        jsp.linalg.expm(jnp.cos(x.T @ x))
        jsp.linalg.toeplitz(x[0])
        jsp.linalg.block_diag(x, x.T)
        jnp.linalg.pinv(x)
        jnp.linalg.cond(x @ x.T + 3 * jnp.eye(x.shape[0]))
        jnp.linalg.matrix_power(jnp.cos(x @ x.T), 3)
        jnp.fft.fftshift(jnp.fft.rfftfreq(x.shape[1]))
        jax.grad(lambda y: jnp.linalg.det(y @ y.T + jnp.eye(y.shape[0])))(x)
        nn.dot_product_attention(x[..., None, None], x[..., None, None], x[..., None, None])
        nn.standardize(x, where=x > -1)
    """,
}
NAMES = {
    "jax": jax,
    "jnp": jnp,
    "jsp": jsp,
    "lax": lax,
    "nn": nn,
    "np": np,
    "random": random,
    "NHC": ("NHC", "HIO", "NHC"),
}


def programs(family: str) -> list[str]:
    return [line.strip() for line in FAMILIES[family].strip().splitlines()]


@pytest.mark.parametrize("family", marked_slow(FAMILIES, {"draws", "functions of science"}))
def test_each_is_exact_among_nan(family: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    for text in programs(family):
        fn = eval(f"lambda x, k: {text}", NAMES)
        run = sx.Exec(
            fn, ("b, s", None), buckets={"b": sx.Linear(4), "s": sx.Linear(8)}, poison="nan"
        )
        got, want = run(x, random.key(7)), jax.jit(fn)(x, random.key(7))
        assert jax.tree.structure(got) == jax.tree.structure(want), text
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), text
            assert_close(a, b, loose=SUMS, message=text)
