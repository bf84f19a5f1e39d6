"""Every tiling that a family of kernels offers gives what the formulas give, in interpreters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import shapeexec as sx
from shapeexec.attention.backends import _device, mosaic_gpu
from shapeexec.attention.backends._base import Tiling, TunableBackend
from shapeexec.attention.backends._registry import IMPLEMENTATIONS, load
from shapeexec.attention.backends._tuning import Tuning, place_of, using
from shapeexec.attention.backends.mosaic_tpu import _MosaicTpu
from shapeexec.attention.backends.triton import _Triton
from tests.attention.hopper import CASES as OF_HOPPER
from tests.attention.kernels import Case, check, signature_of, window
from tests.attention.lowering import lowered
from tests.tolerance import FEW, epsilon, tolerance

needs_kernels = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="jax < 0.11 has no interpreter for these kernels"
)
OF_TRITON = Case("two tiles", (1, 70, 100, 2, 1, 40, 40), "bfloat16", window(50, 3))
OF_TPU = Case("one large tile", (1, 300, 260, 2, 1, 40, 40), "bfloat16", window(150, 3))


def tilings(backend, case):
    return backend.tilings(signature_of(case, None), sx.SlidingWindow(150, 3))


@needs_kernels
@pytest.mark.parametrize(
    ("is_ragged", "keys", "size", "bias", "pieces"),
    [
        (False, 1024, 128, None, [128, 64]),
        (True, 1024, 128, None, [64, 128]),
        (True, 1025, 128, None, [128, 64]),
        (True, 1024, 128, (1, 1, 1024, 1024), [128, 64]),
        (True, 128, 64, None, [64, 128]),
        (False, 128, 192, None, [64]),
    ],
)
def test_hopper_takes_small_pieces_of_few_ragged_keys_and_offers_the_other_size(
    is_ragged, keys, size, bias, pieces
):
    from shapeexec.attention.backends.mosaic_gpu._pieces import (  # noqa: PLC0415 - needs jax 0.11
        default_piece,
    )

    call = dataclasses.replace(
        OF_HOPPER[0].signature,
        is_ragged=is_ragged,
        bias=bias,
        query_size=1024,
        key_size=keys,
        head_size=size,
        value_size=size,
    )
    found = mosaic_gpu.backend.tilings(call, sx.Full())
    assert found[0].piece is None
    assert [one.piece or default_piece(call) for one in found] == pieces


def test_those_who_have_a_choice_say_so():
    tunable = [name for name in IMPLEMENTATIONS if isinstance(load(name), TunableBackend)]
    assert tunable == [name for name in IMPLEMENTATIONS if name != "cudnn"]
    assert [load(name).name for name in tunable] == tunable


def test_triton_offers_its_own_tile_and_no_larger_ones():
    found = [one.tile for one in tilings(_Triton(), OF_TRITON)]
    assert found == [(64, 64), (64, 32), (32, 64), (32, 32)]


def test_mosaic_tpu_offers_its_own_tile_and_no_larger_ones():
    found = [one.tile for one in tilings(_MosaicTpu(), OF_TPU)]
    assert found == [(q, k) for q in (384, 256, 128) for k in (384, 256, 128)]
    blocks = sx.BlockMask(np.full((3, 3), 1, np.uint8), (128, 128), (300, 260), sx.Causal())
    assert _MosaicTpu().tilings(signature_of(OF_TPU, None), blocks) == (Tiling((128, 128)),)


def test_mosaic_tpu_offers_no_tile_whose_lists_do_not_fit():
    long = dataclasses.replace(OF_TPU, sizes=(1, 2**16, 2**16, 1, 1, 40, 40))
    found = _MosaicTpu().tilings(signature_of(long, None), sx.Full())
    assert found[0] == Tiling((512, 512))
    assert Tiling((128, 128)) not in found


def of_case(backend, case):
    """Rows of a table: all tilings but its own, the first of them quick."""
    _, *others = (one.tile for one in tilings(backend, case))
    return [
        pytest.param(backend, case, tile, marks=pytest.mark.slow if i else ())
        for i, tile in enumerate(others)
    ]


@pytest.mark.parametrize(
    ("backend", "case", "tile"),
    [
        *of_case(_Triton(interpret=True), OF_TRITON),
        *of_case(_MosaicTpu(interpret=True), OF_TPU),
    ],
    ids=lambda x: x.name if hasattr(x, "name") else "x".join(map(str, x)),
)
def test_each_tiling_gives_what_formulas_give(backend, case, tile):
    check(backend, dataclasses.replace(case, tile=tile), bias_gradient=False)


@needs_kernels
@pytest.mark.parametrize(
    "name", ["full tiles", "documents", "blocks", pytest.param("ragged", marks=pytest.mark.slow)]
)
def test_mosaic_gpu_takes_other_pieces_of_keys_at_a_time(name):
    (case,) = (one for one in OF_HOPPER if one.name.startswith(name))
    backend, work = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams()), case.work()
    own, other = backend.tilings(case.signature, case.mask)
    piece = 128 if case.sizes else 64
    assert (own, other) == (Tiling((128, 128)), Tiling((128, 128), piece))
    q, k, v, _ = (
        jnp.asarray(np.where(valid[:, :, None, None], x, np.nan), case.dtype)
        for x, valid in zip(
            case.operands(), np.array(case.valid, object)[[0, 1, 1, 0]], strict=True
        )
    )
    signature = dataclasses.replace(case.signature, tile=other.tile, piece=other.piece)
    out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=None)
    want = case.reference()
    limit = epsilon(case.dtype) * max(1, np.abs(want.out).max())
    np.testing.assert_allclose(np.asarray(out, np.float64), want.out, atol=limit)
    of_rows = want.logsumexp.transpose(0, 2, 1)
    np.testing.assert_allclose(logsumexp, of_rows, atol=tolerance(np.float32, loose=FEW))


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 2),
        ({"head_size": 129}, 1),
        ({"is_backward": True}, 1),
        ({"query_size": 16}, 1),
    ],
)
def test_mosaic_gpu_has_a_choice_forward_where_registers_suffice(changes, count):
    signature = dataclasses.replace(OF_HOPPER[0].signature, **changes)
    assert len(mosaic_gpu.backend.tilings(signature, sx.Full())) == count


@needs_kernels
def test_half_a_tile_at_a_time_lowers_for_a_hopper():
    x = jax.ShapeDtypeStruct((1, 512, 2, 128), jnp.bfloat16)
    signature = dataclasses.replace(
        OF_HOPPER[0].signature, query_size=512, key_size=512, head_size=128, value_size=128
    )
    place = place_of("mosaic_gpu", signature, mask=sx.Causal())
    texts = []
    for tuning in (Tuning(), Tuning(((place, Tiling((128, 128), 64)),))):

        def attend(x):
            return sx.dot_product_attention(x, x, x, is_causal=True, implementation="mosaic_gpu")

        with _device.assumed(_device.HOPPER), using(tuning):
            texts.append(lowered(attend, x, platform="cuda"))
    jax.clear_caches()
    assert [text.count("@mosaic_gpu") for text in texts] == [1, 1]
    assert texts[0] != texts[1]
