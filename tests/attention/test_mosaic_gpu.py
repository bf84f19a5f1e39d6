"""The Hopper kernels, in the interpreter and lowered for CUDA; on a GPU a benchmark checks."""

import dataclasses
import re
from types import SimpleNamespace

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

from jax.experimental import io_callback
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends import mosaic_gpu
from shapeexec.attention.backends.mosaic_gpu import _forward, _schedule
from tests.attention.hopper import (
    CASES,
    IDS,
    IDS_OF_MANY,
    Case,
    extreme_bias,
    random_bias,
)
from tests.tolerance import BLOCKED, FEW, SUMS, epsilon, tolerance

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


class AtOnce(mosaic_gpu.MosaicGpu):
    """Makes all gradients in one kernel, whether that is faster or not."""

    def fuses(self, config, work, *, queries, deterministic):
        assert not deterministic
        assert max(config.columns) <= 128
        return True


def interpreted(
    case: Case, *, detect_races: bool = False, at_once: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Out, logsumexp, dq, dk, dv, with NaN behind the valid lengths, and what is expected."""
    parameters = plgpu.InterpretGPUParams(detect_races=detect_races)
    backend = (AtOnce if at_once else mosaic_gpu.MosaicGpu)(parameters)
    q, k, v, d_out = case.with_nan_behind()
    work, signature, bias = case.work(), case.signature, case.poisoned_bias()
    out, logsumexp = backend.forward(signature, work, q=q, k=k, v=v, bias=bias)
    residuals = Residuals(q, k, v, bias, out, logsumexp)
    *gradients, _ = backend.backward(
        signature,
        work,
        residuals=residuals,
        d_out=d_out,
        d_logsumexp=None,
        deterministic=not at_once,
    )
    want = case.reference()
    d_out = np.where(case.valid[0][:, :, None, None], case.operands()[3], 0)
    expected = [want.out, want.logsumexp.transpose(0, 2, 1), *want.gradients(d_out)[:3]]
    return [np.asarray(x, np.float64) for x in (out, logsumexp, *gradients)], expected


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


@pytest.mark.parametrize(
    "case",
    [
        Case("causal", Causal(), queries=100, heads=(1, 1)),
        Case("long, valid lengths", Full(), 128, 640, (1, 1), sizes=([70], [600])),
        Case("no second half", Documents(IDS[:, :40], IDS), queries=40, heads=(1, 1)),
        Case("nothing to attend to", Full(), 128, heads=(1, 1), sizes=([128], [0])),
    ],
    ids=lambda case: case.name,
)
def test_two_programs_share_a_tile_if_there_is_only_one(case):
    assert_forward_is_right(case)


@pytest.mark.parametrize(
    "case",
    [
        # More pieces than places, the first one to be cleared.
        Case("the last keys cut", Full(), 100, 600, (1, 1), (128, 128)),
        Case(
            *("ragged", Full(), 192, 640, (1, 1), (128, 128), 3),
            sizes=([192, 33, 130], [600, 1, 257]),
            piece=128,
        ),
        Case(
            *("ragged, causal", Causal(), 384, 300, (2, 1), (64, 64), 4),
            sizes=([384, 200, 129, 0], [300, 129, 5, 128]),
            piece=128,
        ),
        Case(
            *("ragged, causal, a bias", Causal(), 200, 300, (1, 1), (40, 128), 2),
            sizes=([200, 130], [257, 300]),
            bias=extreme_bias(200, 300),
        ),
        Case("a tile more", Causal(128), 200, 300),
        Case("a tile less", Causal(-128), 300, 200),
        Case("a key more: two tiles may be partial", Causal(1), 300, 300, (1, 1)),
    ],
    ids=lambda case: case.name,
)
def test_the_forward_pass_is_right_from_whichever_end_rows_are_taken(case):
    assert_forward_is_right(case)


def assert_forward_is_right(case):
    """Run the forward pass, and look for races, too."""
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams(detect_races=True))
    q, k, v, _ = case.with_nan_behind()
    bias = case.poisoned_bias()
    out, logsumexp = backend.forward(case.signature, case.work(), q=q, k=k, v=v, bias=bias)
    want = case.reference()
    results = [np.asarray(x, np.float64) for x in (out, logsumexp)]
    assert_as_formulas(case, results, [want.out, want.logsumexp.transpose(0, 2, 1)])


@pytest.mark.parametrize(
    ("items", "programs", "shared"),
    [(1, 8, True), (3, 8, True), (4, 8, True), (5, 8, False), (3, 7, True), (4, 7, False)],
)
def test_each_half_of_an_item_has_one_program_where_half_of_them_would_idle(
    items, programs, shared
):
    nothing = dict.fromkeys(("posts", "ready", "free", "products", "counter", "word"))
    halves = []
    for program in range(programs):
        queue = _schedule.Programs(
            table=SimpleNamespace(total=jnp.int32(items)),
            me=jnp.int32(program),
            count=programs,
            copies=1,
            together=1,
            halves=True,
            **nothing,
        )
        first = int(queue.first())
        works = [w for w in range(2) if not queue.rests(jnp.int32(w))]
        halves += [(first, w) for w in works if first < items]
        assert int(queue.following(jnp.int32(first))) >= items
    assert len(halves) == len(set(halves)) == 2 * items
    assert queue.rests(jnp.int32(0)) | queue.rests(jnp.int32(1)) == shared


INT = jax.ShapeDtypeStruct((), np.int32)


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 3), (1, 1), (1, 3), (2, 8), (3, 3)])
def test_an_item_is_looked_up_once_between_pieces_that_are_sent_once_and_in_order(first, count):
    events = []

    def tell(event, carry):
        def append(event, carry):
            events.append(int(event))
            return np.int32(carry)

        return io_callback(append, INT, event, carry, ordered=True)

    look_up = _schedule.LookUp(
        call=lambda: (tell(-1, 5), jnp.int32(7)), before=(jnp.int32(0), jnp.int32(0))
    )

    @jax.jit
    def sent(first, count):
        send = lambda i, carry: tell(i, carry + i)
        return look_up.amid(send, jnp.int32(0), first=first, count=count)

    total, following = jax.tree.map(int, sent(jnp.int32(first), jnp.int32(count)))
    assert (total, following) == (sum(range(count)), (5, 7))
    jax.effects_barrier()
    assert events == [*range(first), -1, *range(first, count)]


def test_programs_share_items_of_queries(monkeypatch):
    case = Case("", Full(), queries=77, heads=(1, 1))
    q, k, v, _ = (jnp.asarray(x, case.dtype) for x in case.operands())
    traced = []
    monkeypatch.setattr(_forward._Kernel, "skip", lambda _, item, start: traced.append(1) or start)
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams())
    jax.eval_shape(lambda: backend.forward(case.signature, case.work(), q=q, k=k, v=v, bias=None))
    jax.clear_caches()
    assert traced


@pytest.mark.parametrize("case", ["one tile", "no keys at all"])
def test_there_may_be_more_programs_than_items(case, monkeypatch):
    monkeypatch.setattr(mosaic_gpu, "_INTERPRETED_PROGRAMS", 8)
    (case,) = [one for one in CASES if one.name == case]
    assert_as_formulas(case, *interpreted(case, detect_races=True))


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


def assert_as_formulas(case, results, expected):
    (out, logsumexp, *gradients), (want_out, want_logsumexp, *want) = results, expected
    np.testing.assert_allclose(logsumexp, want_logsumexp, atol=tolerance(np.float32, loose=FEW))
    alive = [case.reference().allowed.any(axis) for axis in (-1, -2)]
    sides = (0, 0, 1, 1)[: 1 + len(want)]
    for one, other, side in zip((out, *gradients), (want_out, *want), sides, strict=True):
        assert one.shape == other.shape
        limit = epsilon(case.dtype) * max(1, np.abs(other).max())
        np.testing.assert_allclose(one, other, atol=limit)
        lonely = ~alive[side].any(1)  # in any head
        assert not one[lonely].any(), "what meets nothing is 0, padding too"


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
