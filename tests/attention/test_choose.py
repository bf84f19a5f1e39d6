"""Which back end runs which pass of a call, asked without any device."""

import dataclasses
import functools
import itertools
import re
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention import backends
from shapeexec.attention._blocks import BlockMask, to_dense
from shapeexec.attention._call import Call, Operands
from shapeexec.attention._primitive import attention
from shapeexec.attention.backends._base import Signature, TangentBackend
from shapeexec.attention.backends._choose import candidates, choose, choose_for_tangent
from shapeexec.attention.backends._diagonal import diagonal_of
from shapeexec.attention.backends._registry import (
    IMPLEMENTATIONS,
    REGISTERED,
    Name,
    load,
    load_with_tangent,
)
from shapeexec.attention.masks import Dense
from tests.attention.lowering import layers, lowered

BLACKWELL, HOPPER, AMPERE, TURING = (10, 0), (9, 0), (8, 0), (7, 5)
CALL = Signature(
    batch=1,
    query_size=4096,
    key_size=4096,
    query_heads=16,
    key_heads=4,
    head_size=128,
    value_size=128,
    dtype="bfloat16",
    scale=128**-0.5,
    bias=None,
    is_ragged=False,
    tile=(128, 128),
)
FULL, CAUSAL, WINDOW = sx.Full(), sx.Causal(), sx.Causal() & sx.SlidingWindow(1024)
KINDS = np.full((1, 1, 32, 32), 2, np.uint8)
KINDS[..., 0, :10] = 0  # 99 % of the tiles, and not full
DENSE = BlockMask(KINDS, (128, 128), (4096, 4096))
TREE = Dense(np.ones((1, 1, 4, 4096), bool))
HEAD_64 = {"head_size": 64, "value_size": 64}
BACK = {"is_backward": True}
LOOSE = {"is_backward": True, "deterministic": False}


@pytest.mark.parametrize(
    ("mask", "change", "name"),
    [
        (CAUSAL, {}, "mosaic_gpu"),
        (FULL, {}, "mosaic_gpu"),
        (WINDOW, {}, "mosaic_gpu"),
        (DENSE, {}, "mosaic_gpu"),
        (CAUSAL, HEAD_64, "mosaic_gpu"),
        (FULL, HEAD_64, "mosaic_gpu"),
        (FULL, HEAD_64 | {"query_size": 1}, "mosaic_gpu"),
        # Decoding: few queries against a cache, docs/attention.md.
        (FULL, {"query_size": 1}, "mosaic_gpu"),
        (FULL, {"query_size": 1, "is_ragged": True}, "mosaic_gpu"),
        (sx.Causal(align="end"), {"query_size": 4}, "mosaic_gpu"),
        (sx.Causal(align="end"), {"query_size": 16, "is_ragged": True}, "mosaic_gpu"),
        (TREE, {"query_size": 4}, "mosaic_gpu"),
        # Short sequences.
        (FULL, {"query_size": 128, "key_size": 128}, "mosaic_gpu"),
        (CAUSAL, {"query_size": 512, "key_size": 512, "is_ragged": True}, "mosaic_gpu"),
        (FULL, HEAD_64 | {"query_size": 128, "key_size": 128}, "mosaic_gpu"),
        (CAUSAL, HEAD_64 | {"query_size": 1024, "key_size": 1024}, "mosaic_gpu"),
        (FULL, HEAD_64 | {"query_size": 4096, "key_size": 1024}, "mosaic_gpu"),
        (FULL, HEAD_64 | {"batch": 64, "query_size": 128, "key_size": 128}, "mosaic_gpu"),
        (CAUSAL, HEAD_64 | {"batch": 32, "query_size": 256, "key_size": 256}, "mosaic_gpu"),
        (FULL, HEAD_64 | {"query_size": 2048, "key_size": 2048}, "mosaic_gpu"),
        (WINDOW, HEAD_64, "mosaic_gpu"),
        (DENSE, HEAD_64, "mosaic_gpu"),
        (CAUSAL, HEAD_64 | {"is_ragged": True}, "mosaic_gpu"),
        (CAUSAL, HEAD_64 | {"dtype": "float32"}, "triton"),
        (sx.MaskFunction(lambda b, h, q, k: jnp.cumsum(q + k, 0) > 4), {}, "xla"),
        # Backward, the same bits each time.
        (CAUSAL, BACK, "mosaic_gpu"),
        (FULL, BACK | HEAD_64, "mosaic_gpu"),
        # Backward, and the bits may differ.
        (CAUSAL, LOOSE, "mosaic_gpu"),
        (FULL, LOOSE, "mosaic_gpu"),
        (FULL, LOOSE | HEAD_64 | {"dtype": "float16"}, "mosaic_gpu"),
        (FULL & sx.SlidingWindow(4095, None), LOOSE, "mosaic_gpu"),
        (WINDOW, LOOSE, "mosaic_gpu"),
        (DENSE, LOOSE, "mosaic_gpu"),
        (sx.Dilated(2), LOOSE, "mosaic_gpu"),
        (sx.Documents(np.zeros((1, 4096), np.int32)), LOOSE, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"is_ragged": True}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"query_size": 2048, "key_size": 2048}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"query_size": 1024, "key_size": 1024}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"logsumexp_gradient": True}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"query_size": 4095, "key_size": 4095}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"query_size": 4160, "key_size": 4160}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"value_size": 64}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"head_size": 96, "value_size": 96}, "mosaic_gpu"),
        (CAUSAL, LOOSE | {"dtype": "float32"}, "triton"),
    ],
)
def test_on_a_hopper_the_fastest_that_can_is_chosen(device, mask, change, name):
    device(HOPPER)
    assert choose(None, dataclasses.replace(CALL, **change), mask=mask, platform="cuda") is load(
        name
    )


@pytest.mark.parametrize(
    ("platform", "capability", "change", "name"),
    [
        ("cuda", AMPERE, {}, "triton"),
        ("cuda", AMPERE, LOOSE, "triton"),
        ("cuda", AMPERE, {"bias": (1, 16, 4096, 4096)}, "triton"),
        ("cuda", AMPERE, {"dtype": "float64"}, "xla"),
        ("cuda", TURING, {}, "xla"),
        # No kernel of the library was run on a Blackwell: docs/adr/0030.
        ("cuda", BLACKWELL, {}, "cudnn"),
        ("cuda", BLACKWELL, LOOSE, "cudnn"),
        ("cuda", BLACKWELL, BACK, "xla"),
        ("cuda", BLACKWELL, {"is_ragged": True}, "xla"),
        ("cuda", BLACKWELL, {"dtype": "float32"}, "xla"),
        ("cuda", (12, 0), {"bias": (1, 16, 4096, 4096)}, "xla"),
        ("cuda", None, LOOSE | HEAD_64, "triton"),
        ("rocm", None, LOOSE | HEAD_64, "triton"),
        ("rocm", None, {"dtype": "float64"}, "xla"),
        ("tpu", None, {}, "mosaic_tpu"),
        ("tpu", None, {"dtype": "float16"}, "xla"),
        ("cpu", None, {}, "xla"),
        ("unknown", None, {}, "xla"),
    ],
)
def test_a_refusal_of_one_leads_to_the_next(device, platform, capability, change, name):
    device(capability)
    assert choose(
        None, dataclasses.replace(CALL, **change), mask=CAUSAL, platform=platform
    ) is load(name)


def test_who_is_asked_is_said_by_platform_and_by_what_was_measured():
    narrow = dataclasses.replace(CALL, **HEAD_64)
    back = dataclasses.replace(narrow, is_backward=True)
    # Under jax 0.10 there is no mosaic_gpu.
    for call in (narrow, back):
        assert candidates(call, CAUSAL, platform="cuda", capability=HOPPER) == (
            "mosaic_gpu",
            "cudnn",
            "triton",
            "xla",
        )
    short = dataclasses.replace(narrow, query_size=2047)
    assert candidates(short, CAUSAL, platform="cuda", capability=HOPPER)[1] == "triton"
    assert candidates(back, DENSE, platform="cuda", capability=HOPPER) == (
        "mosaic_gpu",
        "triton",
        "cudnn",
        "xla",
    )
    assert candidates(back, CAUSAL, platform="cuda", capability=AMPERE) == (
        "mosaic_gpu",
        "triton",
        "cudnn",
        "xla",
    )
    assert candidates(back, CAUSAL, platform="cuda", capability=BLACKWELL) == (
        "mosaic_gpu",
        "cudnn",
        "xla",
    )
    assert candidates(back, CAUSAL, platform="rocm", capability=None) == ("triton", "xla")
    assert set(IMPLEMENTATIONS) == {
        name
        for platform, capability in (("cuda", HOPPER), ("tpu", None))
        for name in candidates(back, CAUSAL, platform=platform, capability=capability)
    }


def test_a_back_end_is_one_folder_and_one_row():
    folders = {path.parent.name for path in Path(backends.__file__).parent.glob("*/__init__.py")}
    assert folders == set(IMPLEMENTATIONS) == set(get_args(Name))
    assert len(IMPLEMENTATIONS) == len(REGISTERED) == len(folders)

    def makes_tangents(name):
        return isinstance(load(name), TangentBackend)

    assert [makes_tangents(row.name) for row in REGISTERED] == [
        row.makes_tangents for row in REGISTERED
    ]
    assert load_with_tangent("xla") is load("xla")
    with pytest.raises(AssertionError, match="triton has no method `tangent`"):
        load_with_tangent("triton")


def test_a_derivative_of_a_dtype_that_nobody_computes_in_is_refused():
    assert choose_for_tangent(CALL, CAUSAL, platform="cuda") is load("xla")
    with pytest.raises(sx.BackendError, match="no back end can run") as caught:
        choose_for_tangent(
            dataclasses.replace(CALL, dtype="float8_e4m3fn"), CAUSAL, platform="cuda"
        )
    assert "xla because it computes in float16" in (caught.value.why or "")


CUDNN_REFUSES = {
    "no GPU": ("cpu", HOPPER, {}, FULL, "it needs an NVIDIA GPU, and this is cpu"),
    "old": ("cuda", TURING, {}, FULL, "it needs compute capability 8.0, and this is 7.5"),
    "dtype": ("cuda", HOPPER, {"dtype": "float32"}, FULL, "float16 and bfloat16, not float32"),
    "large heads": ("cuda", AMPERE, {"head_size": 136}, FULL, "multiples of 8 up to 128, not 136"),
    "odd heads": ("cuda", HOPPER, {"head_size": 100}, FULL, "multiples of 8 up to 256, not 100"),
    "values": ("cuda", HOPPER, {"value_size": 64}, FULL, "query and value have one size"),
    "bias": ("cuda", HOPPER, {"bias": (1, 1, 1, 1)}, FULL, "a bias is left to the other"),
    "ragged": ("cuda", HOPPER, {"is_ragged": True}, FULL, "it reads behind valid lengths"),
    "mask": ("cuda", HOPPER, {}, sx.Global(4), r"causal windows, not Global"),
    "right": ("cuda", HOPPER, {}, sx.SlidingWindow(3, 3), r"causal windows, not Sliding"),
    "lonely": ("cuda", HOPPER, {"query_size": 5000}, WINDOW, "no key in their window"),
    "beside": (
        "cuda",
        HOPPER,
        {},
        sx.SlidingWindow(-1, 9) & CAUSAL,
        "without a query's own position",
    ),
    "bits": ("cuda", HOPPER, BACK, FULL, "last bits: say deterministic=False"),
    "residual": ("cuda", HOPPER, LOOSE | {"logsumexp_gradient": True}, FULL, "no gradient of the"),
    "lengths": ("cuda", HOPPER, LOOSE | {"key_size": 4097}, FULL, r"whole 128s.*\(4096, 4097\)"),
}


@pytest.mark.parametrize("case", CUDNN_REFUSES)
def test_cudnn_says_what_it_refuses(device, case):
    platform, capability, change, mask, why = CUDNN_REFUSES[case]
    device(capability)
    backend = load("cudnn")
    assert re.search(
        why, backend.refuses(dataclasses.replace(CALL, **change), mask, platform=platform)
    )
    assert backend.refuses(
        dataclasses.replace(CALL, **HEAD_64), WINDOW, platform="cuda"
    ) is None or (capability == TURING)


def test_without_its_primitives_cudnn_is_refused_and_another_runs(device, monkeypatch):
    device(HOPPER)
    monkeypatch.setattr("shapeexec._compat.cudnn_attention_is_known", lambda: False)
    signature = dataclasses.replace(CALL, **LOOSE)
    assert choose(None, signature, mask=CAUSAL, platform="cuda") is load("mosaic_gpu")
    with pytest.raises(sx.BackendError, match="cannot make the gradient") as caught:
        choose("cudnn", signature, mask=CAUSAL, platform="cuda")
    assert caught.value.why == "cudnn because this version of jax keeps it elsewhere"


@pytest.mark.parametrize(
    ("change", "mask", "name"),
    [({}, CAUSAL, "cudnn"), ({}, sx.Global(4), "xla"), ({"dtype": "float32"}, CAUSAL, "xla")],
)
def test_where_jax_has_dropped_pallas_triton_another_runs(device, monkeypatch, change, mask, name):
    device(AMPERE)
    monkeypatch.setattr("shapeexec._compat.pallas_has", lambda module: module != "triton")
    signature = dataclasses.replace(CALL, **change)
    assert choose(None, signature, mask=mask, platform="cuda") is load(name)
    with pytest.raises(sx.BackendError, match="implementation='triton' cannot run") as caught:
        choose("triton", signature, mask=mask, platform="cuda")
    version = jax.__version__
    assert caught.value.why == f"triton because jax {version} has no jax.experimental.pallas.triton"


def test_triton_is_not_for_old_gpus(device):
    device(TURING)
    told = load("triton").refuses(CALL, FULL, platform="cuda")
    assert told == "it needs compute capability 8.0, and this is 7.5"


@pytest.mark.parametrize(
    "mask",
    [
        sx.Full(),
        sx.Causal(),
        sx.Causal(align="end"),
        sx.Causal(2) & sx.SlidingWindow(3, None),
        sx.SlidingWindow(4, 4),
        sx.SlidingWindow(1, 0) & sx.Causal(-1),
        sx.SlidingWindow(0, 9) & sx.Full(),
    ],
    ids=repr,
)
def test_a_band_allows_what_its_mask_allows(mask):
    for queries, keys in itertools.product((1, 4, 5, 7), repeat=2):
        band = diagonal_of(mask, queries=queries, keys=keys)
        distance = np.arange(keys) - np.arange(queries)[:, None]
        low = -queries if band.left is None else -band.left
        high = keys if band.right is None else band.right
        want = np.asarray(to_dense(mask, (queries, keys)))[0, 0]
        np.testing.assert_array_equal((low <= distance) & (distance <= high), want)
        assert (band.kind == "full") == want.all()
    window = jnp.array([3])
    assert diagonal_of(mask & sx.SlidingWindow(window), queries=4, keys=4) is None
    assert diagonal_of(mask & sx.Global(1), queries=4, keys=4) is None


GRADIENT, FORWARD = "@__cudnn$fmhaSoftmaxBackward(", "@__cudnn$fmhaSoftmax("


def test_cudnn_is_handed_residuals_and_does_not_run_its_forward_pass_again():
    x = jnp.zeros((1, 128, 3, 64), jnp.bfloat16)

    def loss(x, **options):
        return sx.dot_product_attention(x, x, x, implementation="cudnn", **options).sum()

    def run(x, **options):
        return jax.grad(lambda x: loss(x, deterministic=False, **options))(x)

    program = lowered(
        lambda x: run(x, local_window_size=(9, 0), is_causal=True), x, platform="cuda"
    )
    assert [program.count(call) for call in (FORWARD, GRADIENT)] == [1, 1]
    assert program.count(r"sliding_window_length\22: 10,") == 2
    assert program.count(r"\22CAUSAL\22") == 2
    program = lowered(run, x, platform="cuda")
    assert program.count(r"\22NO_MASK\22") == 2
    with pytest.raises(sx.BackendError, match="cannot make the gradient") as caught:
        lowered(jax.grad(loss), x, platform="cuda")
    assert "say deterministic=False" in caught.value.why


@pytest.mark.parametrize("transform", ["vmap", "checkpoint", "shard_map"])
def test_under_transformations_cudnn_makes_both_passes(transform):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    axes = jax.sharding.PartitionSpec("x")
    around = {
        "vmap": jax.vmap,
        "checkpoint": jax.checkpoint,
        "shard_map": functools.partial(jax.shard_map, mesh=mesh, in_specs=axes, out_specs=axes),
    }[transform]
    options = {"implementation": "cudnn", "deterministic": False}
    x = jnp.zeros((2, *((1,) if transform == "vmap" else ()), 128, 6, 64), jnp.float16)

    def run(x):
        attend = around(lambda x: sx.dot_product_attention(x, x, x, **options))
        out, pull = jax.vjp(attend, x)
        return out, pull(out)

    program = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count(GRADIENT) == 1
    assert program.count(FORWARD) >= 1
    assert "(tensor<2x128x6x64xf16>, tensor<2x128x6x64xf16>, tensor<2x128x6x64xf16>)" in program


def test_the_gradient_of_a_log_sum_exp_is_not_asked_of_cudnn():
    trees = map(jax.tree.structure, (sx.Causal(), None))
    call = Call(None, *trees, False, False, implementation="cudnn", deterministic=False)

    def loss(x):
        out, logsumexp = attention(Operands(x, x, x, None, None, (), ()), call)
        return out.sum() + logsumexp.sum()

    with pytest.raises(sx.BackendError, match="no gradient of the log-sum-exp"):
        lowered(jax.grad(loss), jnp.zeros((1, 128, 7, 64), jnp.bfloat16), platform="cuda")


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="has no such kernels")
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_model_of_12_layers_holds_each_kernel_once(device, deterministic):
    device(HOPPER)
    x = jnp.zeros((1, 2048, 5, 64), jnp.bfloat16)
    program = lowered(layers(12, None, deterministic=deterministic), x, platform="cuda")
    ours = program.count("@mosaic_gpu_v2(")
    assert (ours, program.count(GRADIENT)) == ((3, 0) if deterministic else (2, 0))
    for name in ("_attention_forward", "_attention_gradient"):
        assert len(re.findall(rf"func\.func private @{name}\b", program)) == 1
        assert len(re.findall(rf"call @{name}\b", program)) == 12
