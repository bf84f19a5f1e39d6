"""Which kernels make the gradients on a Hopper: one for all, where rows are long, or two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.masks import Causal, Documents
from tests.attention.lowering import hopper_kernels

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from shapeexec.attention.backends import _device, mosaic_gpu

FULL_TILES = np.full((1, 1, 16, 16), 2, np.uint8)
FEW_TILES = FULL_TILES * np.eye(16, dtype=np.uint8)
ONE_DOCUMENT = np.zeros((1, 2048), np.int32)


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    """As if there were one."""
    monkeypatch.setattr(mosaic_gpu._support, "of_device", lambda platform: None)
    monkeypatch.setattr(_device, "multiprocessors", lambda: 132)


def kernels_of(loss, *arguments, size=128):
    """The number of kernels that a loss of an input [1, 2048, 1, size] and its gradient need."""
    x = jnp.zeros((1, 2048, 1, size), jnp.bfloat16)
    lowered = jax.jit(jax.grad(loss)).trace(x, *arguments).lower(lowering_platforms=("cuda",))
    return hopper_kernels(lowered.as_text())


@pytest.mark.parametrize(
    ("kinds", "size", "is_known", "options", "kernels"),
    [
        (FULL_TILES, 128, True, {}, 3),
        (FULL_TILES, 128, True, {"deterministic": False}, 2),
        (FULL_TILES, 64, True, {"deterministic": False}, 2),
        (FULL_TILES, 40, True, {"deterministic": False}, 2),
        (FULL_TILES, 136, True, {"deterministic": False}, 4),
        (FULL_TILES, 128, False, {"deterministic": False}, 3),
        (FULL_TILES, 128, False, {"deterministic": False, "expected_density": 0.5}, 2),
        (FULL_TILES, 128, False, {"deterministic": False, "expected_density": 0.49}, 3),
        (FULL_TILES, 128, False, {"deterministic": True, "expected_density": 1}, 3),
        (FULL_TILES, 128, False, {"deterministic": False, "expected_density": 0.25}, 3),
        (FULL_TILES, 64, False, {"deterministic": False, "expected_density": 0.25}, 2),
        (FULL_TILES, 64, False, {"deterministic": False, "expected_density": 0.24}, 3),
        (FEW_TILES, 128, True, {"deterministic": False}, 3),
        (FEW_TILES, 128, True, {"deterministic": False, "expected_density": 1}, 3),
        (FULL_TILES * 0, 128, True, {"deterministic": False}, 3),
    ],
)
def test_one_kernel_makes_all_gradients_where_it_may_and_is_known_to_pay(
    kinds, size, is_known, options, kernels
):
    def loss(x, traced):
        mask = BlockMask(kinds if is_known else traced, (128, 128), (2048, 2048))
        return sx.dot_product_attention(
            x, x, x, mask=mask, implementation="mosaic_gpu", **options
        ).sum()

    assert kernels_of(loss, kinds, size=size) == kernels


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (lambda ids: {"mask": Documents(ids) & Causal()}, ONE_DOCUMENT),
        (lambda array: {"mask": array}, np.ones((1, 1, 2048, 2048), bool)),
        (lambda lengths: {"key_value_seq_lengths": lengths}, np.array([2048], np.int32)),
    ],
    ids=["documents", "an array", "valid lengths"],
)
@pytest.mark.parametrize(("expected", "kernels"), [(None, 3), (0.6, 2)])
def test_an_expected_density_stands_for_one_that_is_not_known(options, given, expected, kernels):
    def loss(x, given):
        return sx.dot_product_attention(
            *(x, x, x),
            **options(given),
            implementation="mosaic_gpu",
            deterministic=False,
            expected_density=expected,
        ).sum()

    assert kernels_of(loss, given, size=64) == kernels


@pytest.mark.parametrize("rate", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_mapped_calls_and_those_that_drop_weights_expect_it_too(rate):
    def kernels(expected):
        def attend(x, ids, key):
            return sx.dot_product_attention(
                *(x, x, x),
                mask=Documents(ids),
                implementation="mosaic_gpu",
                deterministic=False,
                dropout_rate=rate,
                dropout_key=key if rate else None,
                expected_density=expected,
            )

        def loss(*arguments):
            return jax.vmap(attend)(*(x[None] for x in arguments)).sum()

        return kernels_of(loss, ONE_DOCUMENT, jax.random.key(0), size=64)

    assert kernels(0.5) < kernels(None)


def test_similar_densities_share_a_kernel():
    def loss(x, ids):
        for expected in (0.5, 0.7, 0.99):
            x = sx.dot_product_attention(
                *(x, x, x),
                mask=Documents(ids),
                implementation="mosaic_gpu",
                deterministic=False,
                expected_density=expected,
            )
        return x.sum()

    assert kernels_of(loss, ONE_DOCUMENT, size=64) == 2


@pytest.mark.parametrize(("k", "kernels"), [(8, 2), (7, 3)])
def test_of_tiles_chosen_on_the_device_it_is_known_how_many_there_are(k, kernels):
    options = {"implementation": "mosaic_gpu", "deterministic": False}

    def loss(x, scores):
        mask = BlockMask.from_topk(scores, k, tile=(128, 128), length=(2048, 2048))
        return sx.dot_product_attention(x, x, x, mask=mask, **options).sum()

    assert kernels_of(loss, jnp.zeros((16, 16))) == kernels
