"""The Hopper kernels, in the interpreter and lowered for CUDA; on a GPU a benchmark checks."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention._blocks import BlockMask
from shapeexec.attention.backends._base import Residuals
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dense,
    Dilated,
    Documents,
    Full,
    MaskFunction,
    PrefixLM,
    RelativeBias,
    ScoreModifier,
)

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 has no interpreter for these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends import mosaic_gpu
from tests.attention.hopper import (
    CASES,
    IDS,
    IDS_OF_MANY,
    Case,
    random_bias,
)
from tests.attention.interpreted import assert_as_formulas, interpreted
from tests.tolerance import BLOCKED, SUMS, tolerance

pytestmark = pytest.mark.usefixtures("no_races")


def test_the_interpreter_reports_a_race(capsys):
    def kernel(out, shared):
        shared[...] = jnp.full((8,), jax.lax.axis_index("warpgroup"))
        out[...] = shared[...]

    launch = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((8,), jnp.int32),
        scratch_types=[plgpu.SMEM((8,), jnp.int32)],
        num_threads=2,
        thread_name="warpgroup",
        interpret=plgpu.InterpretGPUParams(detect_races=True),
    )
    told = ""
    try:
        jax.block_until_ready(launch())
    except jax.errors.JaxRuntimeError as error:  # jax 0.12 raises, 0.11 prints
        told = str(error)
    assert "RACE DETECTED" in told + capsys.readouterr().out, "or `no_races` finds none"


QUICK = (
    "documents",
    "blocks",
    "ragged",
    "rows without",
    "a random share",
    "the widest",
    "fp16",
    "a bias of pairs",
    "extreme",
    "one tile",
    "two tiles",
    "tiles of each head",
    "any length",
    "whole tiles",
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            # The interpreter takes some ten seconds for each.
            marks=() if case.name.startswith(QUICK) else pytest.mark.slow,
        )
        for case in CASES
    ],
)
def test_a_kernel_gives_what_the_formulas_give(case):
    assert_as_formulas(case, *interpreted(case))


def of_heads(name: str, size: int, value_size: int | None = None) -> Case:
    (case,) = [case for case in CASES if case.name.startswith(name)]
    sizes = (size, size if value_size is None else value_size)
    return dataclasses.replace(case, name=f"{case.name}, heads of {size}", head_sizes=sizes)


@pytest.mark.parametrize(
    "case",
    [
        # Each warpgroup makes half of dq's columns.
        of_heads("documents", 128),
        of_heads("ragged", 128),
        of_heads("a bias of pairs", 128),
        pytest.param(of_heads("full tiles", 128), marks=pytest.mark.slow),
        pytest.param(of_heads("no keys", 128), marks=pytest.mark.slow),
        pytest.param(of_heads("extreme biases", 128), marks=pytest.mark.slow),
        pytest.param(of_heads("fp16", 128), marks=pytest.mark.slow),
        pytest.param(of_heads("blocks", 100, 64), marks=pytest.mark.slow),
        # They make all columns in turns.
        of_heads("documents", 64),
        of_heads("ragged", 64, 128),
        of_heads("fp16", 40),
        pytest.param(of_heads("a bias of pairs", 64), marks=pytest.mark.slow),
        pytest.param(of_heads("full tiles", 40), marks=pytest.mark.slow),
        pytest.param(of_heads("no keys", 64), marks=pytest.mark.slow),
        pytest.param(of_heads("extreme biases", 64), marks=pytest.mark.slow),
        pytest.param(of_heads("rows without", 30), marks=pytest.mark.slow),
        pytest.param(of_heads("blocks", 64, 128), marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)
def test_all_gradients_of_one_kernel_are_those_of_the_formulas(case):
    assert_as_formulas(case, *interpreted(case, at_once=True))


def test_scores_far_below_0_are_not_outweighed_by_what_lies_behind_the_end():
    case = Case("", Full(), queries=64, keys=72, heads=(1, 1))
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams())
    _, _, v, d_out = (jnp.asarray(x, case.dtype) for x in case.operands())
    q, k = (jnp.full((1, n, 1, 64), x, case.dtype) for n, x in ((64, 8), (72, -8)))
    call = case.signature, case.work()
    out, logsumexp = backend.forward(*call, q=q, k=k, v=v, bias=None)
    assert logsumexp.max() < -500
    residuals = Residuals(q, k, v, None, out, logsumexp)
    d_q, *_ = backend.backward(
        *call, residuals=residuals, d_out=d_out, d_logsumexp=None, deterministic=True
    )
    # All weights are alike, and all keys: no query has a gradient but by rounding.
    assert np.abs(np.asarray(d_q, np.float64)).max() <= tolerance(case.dtype, loose=BLOCKED)


@pytest.mark.parametrize(
    ("at_once", "size", "length"),
    [
        (False, 64, 512),
        (True, 64, 512),
        pytest.param(True, 128, 512, marks=pytest.mark.slow),
        # One program sums the gradients of the queries of a head; in one tile they are no sums.
        (False, 64, 256),
        pytest.param(False, 64, 128, marks=pytest.mark.slow),
    ],
)
def test_no_warpgroup_overwrites_what_another_reads(at_once, size, length):
    # 512 is long enough for rings and items to come round more than once.
    mask = Documents(IDS_OF_MANY[:, :length]) & Causal()
    heads = (2, 1) if length == 512 else (3, 3)
    case = Case("", mask, length, length, heads, (size, size))
    assert_as_formulas(case, *interpreted(case, detect_races=True, at_once=at_once))


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (130, 264)])
def test_a_gradient_of_the_logsumexp_adds_to_that_of_the_scores(queries, keys):
    case = Case("", Causal(), queries=queries, keys=keys, heads=(1, 1))
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams())
    q, k, v, d_out = (jnp.asarray(x, case.dtype) for x in case.operands())
    work, signature = case.work(), case.signature
    out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=None)
    ones = jnp.ones_like(logsumexp)
    residuals = Residuals(q, k, v, None, out, logsumexp)
    d_q, d_k, d_v, _ = backend.backward(
        signature, work, residuals=residuals, d_out=d_out * 0, d_logsumexp=ones, deterministic=True
    )
    want = case.reference()
    of_queries = np.einsum("bnts,bsnh->btnh", want.weights, want.k) * want.scale
    of_keys = np.einsum("bnts,btnh->bsnh", want.weights, want.q) * want.scale
    limit = tolerance(case.dtype, loose=SUMS)
    np.testing.assert_allclose(np.asarray(d_q, np.float64), of_queries, atol=limit)
    np.testing.assert_allclose(np.asarray(d_k, np.float64), of_keys, atol=limit)
    assert not np.asarray(d_v, np.float64).any()


@pytest.mark.parametrize(
    "case",
    [
        Case("documents", Documents(IDS) & Causal(), head_sizes=(128, 128)),
        Case("arrays and rests", Dense(np.ones((1, 1, 192, 192), bool)) & Dilated(3)),
        Case("wide", PrefixLM(np.array([7], np.int32)), head_sizes=(256, 256)),
        Case("a table", Causal(), bias=RelativeBias(random_bias(2, 9))),
        Case("a bias", Full(), bias=jnp.asarray(random_bias(1, 1, 192, 192), jnp.bfloat16)),
    ],
    ids=lambda case: case.name,
)
def test_kernels_lower_for_cuda_where_no_gpu_is(case):
    def both(q, k, v, d_out, bias):
        backend, work, signature = mosaic_gpu.backend, case.work(), case.signature
        out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=bias)
        residuals = Residuals(q, k, v, bias, out, logsumexp)
        return backend.backward(
            signature, work, residuals=residuals, d_out=d_out, d_logsumexp=None, deterministic=True
        )[:3]

    operands = [jax.ShapeDtypeStruct(x.shape, case.dtype) for x in case.operands()]
    bias = jax.tree.map(jnp.asarray, case.bias)
    lowered = jax.jit(both).trace(*operands, bias).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("@mosaic_gpu") >= 3


def test_layers_with_one_signature_lower_one_kernel():
    case = Case("", Causal(), heads=(1, 1))

    def layers(q, k, v):
        for _ in range(3):
            q, _ = mosaic_gpu.backend.forward(case.signature, case.work(), q=q, k=k, v=v, bias=None)
        return q

    operands = [jax.ShapeDtypeStruct(x.shape, case.dtype) for x in case.operands()[:3]]
    lowered = jax.jit(layers).trace(*operands).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("@mosaic_gpu") == 1


class Softened(ScoreModifier):
    def modify(self, at, scores):
        return jnp.tanh(scores)


@pytest.mark.parametrize(
    ("change", "mask", "reason"),
    [
        ({"dtype": "float32"}, Full(), "in bfloat16, float16, and not in float32"),
        ({"head_size": 264}, Full(), "head size 264 do not fit into shared memory, 256 do"),
        ({"bias": ALiBi}, Full(), None),
        ({"bias": Softened}, Full(), "knows ALiBi and RelativeBias, not Softened"),
        ({"bias": (1, 1, 1, 1), "bias_gradient": True}, Full(), "no gradient of a bias"),
        ({"scale": -1.0}, Full(), "-1.0 is not > 0"),
        ({}, MaskFunction(lambda b, h, q, k: jnp.sin(q) > 0), "knows no .*sin"),
        ({}, MaskFunction(lambda b, h, q, k: ~((q - k) % 3 == 0) | (h == 1)), None),
        (
            {},
            BlockMask(np.ones((3, 3), np.uint8), (64, 64), (192, 192)),
            "64 x 64 are not multiples",
        ),
        ({}, Documents(IDS) | Causal(), None),
    ],
)
def test_hoppers_kernels_say_which_calls_they_refuse(change, mask, reason):
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams())
    signature = dataclasses.replace(Case("", mask).signature, **change)
    told = backend.refuses(signature, mask, platform="cpu")
    assert told is None if reason is None else re.search(reason, told)
    assert "Hopper" in mosaic_gpu.backend.refuses(signature, mask, platform="cpu")
