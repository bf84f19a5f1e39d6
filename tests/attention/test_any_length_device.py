"""One kernel at several lengths, on a Hopper GPU: `JAX_PLATFORMS= pytest -m gpu` on this file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.attention.masks import ALiBi

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 does not run these kernels", allow_module_level=True)

from shapeexec.attention.backends.mosaic_gpu import _support
from tests.attention.lowering import lowered_for_each_batch
from tests.tolerance import BY_NORM

WHY_NOT = _support.of_device("cuda" if jax.default_backend() == "gpu" else "cpu")


def documents(batch, queries, keys):
    random = np.random.default_rng(0)
    ids = [np.sort(random.integers(0, 3, (batch, n)), axis=1) for n in (queries, keys)]
    return {"mask": sx.Documents(*map(np.int32, ids))}


def valid_lengths(batch, queries, keys):
    random = np.random.default_rng(0)
    names = ("query_seq_lengths", "key_value_seq_lengths")
    lengths = (random.integers(0, n + 1, batch).astype(np.int32) for n in (queries, keys))
    return {"mask": sx.Causal(align="end"), **dict(zip(names, lengths, strict=True))}


OPTIONS = {
    "full": lambda *_: {},
    "causal": lambda *_: {"mask": sx.Causal()},
    "window": lambda *_: {"mask": sx.SlidingWindow(300, 100)},
    "documents": documents,
    "valid lengths": valid_lengths,
    "numbers of heads": lambda *_: {"mask": sx.Causal(), "bias": ALiBi.for_heads(4)},
    "any order": lambda *_: {"mask": sx.Causal(), "deterministic": False},
}
SHORT = ((2, 384, 512), (3, 640, 384), (2, 1024, 896), (5, 384, 384))
LONG = ((2, 2048, 2048), (3, 2176, 2048), (2, 4096, 2304))


def results(options, sizes, implementation):
    """The output and the gradients, with NaN behind the valid lengths."""
    batch, queries, keys = sizes
    shapes = ((queries, 4), (keys, 2), (keys, 2), (queries, 4))
    *operands, d_out = (
        jax.random.normal(jax.random.key(i), (batch, *shape, 64), jnp.bfloat16)
        for i, shape in enumerate(shapes)
    )
    lengths = [options.get(f"{name}_seq_lengths") for name in ("query", "key_value")]
    for i, valid in enumerate((lengths[0], lengths[1], lengths[1])):
        if valid is not None and implementation != "xla":
            behind = np.arange(operands[i].shape[1]) >= valid[:, None]
            operands[i] = jnp.where(behind[..., None, None], jnp.nan, operands[i])

    def both(q, k, v):
        attend = lambda *x: sx.dot_product_attention(*x, implementation=implementation, **options)
        out, pull = jax.vjp(attend, q, k, v)
        return out, *pull(d_out)

    return jax.jit(both)(*operands)


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("name", OPTIONS)
def test_one_kernel_is_right_at_all_lengths(name, monkeypatch):
    jax.clear_caches()
    for number, sizes in enumerate(LONG if name == "any order" else SHORT):
        options = OPTIONS[name](*sizes)
        found = results(options, sizes, "mosaic_gpu")
        if number == 0:
            monkeypatch.setattr(_compat, "mosaic_kernel", lowered_for_each_batch)
        for one, right in zip(found, results(options, sizes, "xla"), strict=True):
            error = np.linalg.norm(np.asarray(one - right, np.float32))
            assert error <= 2 * BY_NORM["bfloat16"] * np.linalg.norm(np.asarray(right, np.float32))


def lengths_of(batch, keys):
    return np.random.default_rng(batch).integers(0, keys + 1, batch).astype(np.int32)


def ids_of(batch, keys):
    ids = np.random.default_rng(batch).integers(0, 2, (batch, keys))
    return sx.Documents(np.ones((batch, 4), np.int32), ids.astype(np.int32))


STEPS = {
    "valid lengths": lambda *sizes: {"key_value_seq_lengths": lengths_of(*sizes)},
    "causal": lambda *_: {"mask": sx.Causal(align="end")},
    "window": lambda *sizes: {
        "mask": sx.SlidingWindow(0, 300),
        "key_value_seq_lengths": lengths_of(*sizes),
    },
    "documents": lambda *sizes: {"mask": ids_of(*sizes)},
    "numbers of heads": lambda *_: {"bias": ALiBi.for_heads(8)},
}
CACHES = ((3, 1024), (2, 384), (7, 2176), (2, 65536), (64, 512))


def in_pages(x, places, rows):
    """A cache as pages at these places."""
    pages = x.reshape(-1, rows, *x.shape[2:])
    return jnp.zeros_like(pages).at[places].set(pages)


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("page_rows", [None, 128])
@pytest.mark.parametrize("name", STEPS)
def test_one_kernel_for_few_queries_is_right_for_all_caches(name, page_rows, monkeypatch):
    jax.clear_caches()
    for number, (batch, keys) in enumerate(CACHES):
        options = STEPS[name](batch, keys)
        q, *cache = (
            jax.random.normal(jax.random.key(i), (batch, *shape, 128), jnp.bfloat16)
            for i, shape in enumerate(((4, 8), (keys, 2), (keys, 2)))
        )
        right = step(q, *cache, "xla", options)
        valid = options.get("key_value_seq_lengths", np.full(batch, keys))
        behind = (np.arange(keys) >= valid[:, None])[..., None, None]
        cache = [jnp.where(behind, jnp.nan, x) for x in cache]
        if page_rows:
            places = np.random.default_rng(0).permutation(batch * keys // page_rows)
            cache = [in_pages(x, places, page_rows) for x in cache]
            options["pages"] = places.reshape(batch, -1).astype(np.int32)
        found = step(q, *cache, "mosaic_gpu", options)
        if number == 0:
            monkeypatch.setattr(_compat, "mosaic_kernel", lowered_for_each_batch)
        error = np.linalg.norm(np.asarray(found - right, np.float32))
        assert error <= 2 * BY_NORM["bfloat16"] * np.linalg.norm(np.asarray(right, np.float32))


def step(q, k, v, implementation, options):
    attend = functools.partial(sx.dot_product_attention, implementation=implementation, **options)
    return jax.jit(attend)(q, k, v)
