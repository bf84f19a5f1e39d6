"""The TPU kernels, in Pallas' interpreter, and as far as they can be lowered without a TPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.backends.mosaic_tpu import _MosaicTpu, backend
from tests.attention.kernels import (
    CASES,
    Case,
    check,
    check_in_shard_map,
    check_lists,
    signature_of,
    work_of,
)
from tests.attention.lowering import Bucketed, all_in_one, arguments, layers, lowered

KERNEL = "@tpu_custom_call("


def blocks(*tile):
    return BlockMask(np.ones((-(-300 // tile[0]), -(-300 // tile[1]))), tile, (300, 300))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_formulas(case):
    check(_MosaicTpu(interpret=True), case, bias_gradient=False)


def test_tiles_that_are_not_listed_are_skipped_and_full_ones_not_masked():
    check_lists(_MosaicTpu(interpret=True))


def test_inside_of_shard_map_it_runs_as_well(monkeypatch):
    check_in_shard_map(_MosaicTpu(interpret=True), "mosaic_tpu", monkeypatch)


def test_more_layers_hold_no_more_kernels():
    x = jnp.zeros((1, 40, 2, 64), jnp.bfloat16)
    two, four = (lowered(layers(n, "mosaic_tpu"), x, platform="tpu").count(KERNEL) for n in (2, 4))
    assert two == four > 0


def test_any_mask_is_lowered():
    program = lowered(all_in_one("mosaic_tpu", of_bias=False), *arguments(), platform="tpu")
    # Forward, its statistics again, and gradients by query and by key.
    assert program.count(KERNEL) == 4


@pytest.mark.parametrize(
    ("change", "mask", "platform", "reason"),
    [
        ({}, sx.Full(), "cuda", "it is made for TPUs, not for cuda"),
        ({"dtype": "float16"}, sx.Full(), "tpu", "and not in float16"),
        ({"head_size": 257}, sx.Full(), "tpu", "tiles of head size 257 do not fit"),
        ({"bias": (1, 1, 1, 1), "bias_gradient": True}, sx.Full(), "tpu", "no gradient of a bias"),
        ({"bias": sx.RelativeBias}, sx.Full(), "tpu", "cannot look up a table"),
        ({}, sx.Causal() | blocks(96, 128), "tpu", "(96, 128) do not fit into tiles of (128, 128)"),
        ({}, ~blocks(16, 16), "tpu", "tiles of (16, 16) are too small"),
    ],
)
def test_what_it_cannot_run_it_refuses_in_words(change, mask, platform, reason):
    signature = dataclasses.replace(signature_of(CASES[0], None), **change)
    assert reason in backend.refuses(signature, mask, platform=platform)
    assert backend.refuses(signature_of(CASES[0], None), sx.Full(), platform="tpu") is None


@pytest.mark.parametrize(("mask", "side"), [(sx.Causal(), 512), (blocks(64, 256), 128)])
def test_tiles_are_large_but_for_block_masks(mask, side):
    signature = signature_of(Case("", (1, 3000, 300, 1, 1, 64, 64)), None)
    assert backend.tile(signature, mask) == (side, min(side, 384))


def test_lists_that_scalar_memory_does_not_hold_are_refused():
    many = signature_of(Case("", (1, 65536, 65536, 4, 1, 64, 64)), None)
    by_head = np.ones((1, 4, 512, 512), np.uint8)
    mask = BlockMask(by_head, (128, 128), (65536, 65536))
    assert "scalar memory holds 900000 bytes" in backend.refuses(many, mask, platform="tpu")
    assert backend.refuses(many, sx.Causal() & sx.SlidingWindow(4096), platform="tpu") is None
    ragged = dataclasses.replace(many, batch=16, is_ragged=True)
    assert "lists of tiles need" in backend.refuses(ragged, sx.Full(), platform="tpu")


def test_a_table_in_a_users_score_modifier_is_an_error_with_a_way_out():
    x = jnp.zeros((1, 40, 2, 64), jnp.bfloat16)

    def attend(x):
        bias = Bucketed(jnp.zeros((1, 2, 4)))
        return sx.dot_product_attention(x, x, x, bias, implementation="mosaic_tpu")

    with pytest.raises(sx.BackendError, match="mosaic_tpu cannot run this mask or bias") as caught:
        lowered(attend, x, platform="tpu")
    assert "cannot look up a table" in caught.value.why
    assert caught.value.fix == 'name implementation="xla"'


def test_lists_that_scalar_memory_does_not_hold_are_an_error():
    case = Case("long", (2, 8192, 8192, 1, 1, 8, 8), tile=(8, 32))
    work = work_of(case, sx.Full(), (np.full(2, 8192, np.int32),) * 2)
    arrays = [jax.ShapeDtypeStruct((2, 8192, 1, 8), np.float32)] * 3

    def attend(q, k, v):
        return backend.forward(signature_of(case, None), work, q=q, k=k, v=v, bias=None)

    with pytest.raises(sx.BackendError, match="scalar memory holds") as caught:
        jax.eval_shape(attend, *arrays)
    assert "pass a larger tile to BlockMask" in str(caught.value)
