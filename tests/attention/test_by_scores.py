"""Gradients by way of stored gradients of scores: which calls, where they lie, and in groups."""

import dataclasses
import functools
import itertools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.attention.masks import ALiBi, Causal, Documents, Full, SlidingWindow
from tests.attention.hopper import CASES, Case
from tests.attention.lowering import lowered

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 cannot lower these kernels", allow_module_level=True)

from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends import _device, mosaic_gpu
from shapeexec.attention.backends.mosaic_gpu import _backward, _in_groups
from shapeexec.attention.backends.mosaic_gpu._d_scores import TALL, Layout
from shapeexec.attention.backends.mosaic_gpu._prepared import prepare
from tests.attention.interpreted import assert_as_formulas, interpreted

pytestmark = pytest.mark.usefixtures("no_races")

WIDE = functools.partial(Case, "", heads=(16, 16), head_sizes=(128, 128))


def of(length: int, mask: object, keys: int | None = None, **options: object) -> Case:
    return WIDE(mask, length, keys or length, **options)


def documents(length: int) -> Documents:
    return Documents((np.arange(length, dtype=np.int32) // (length // 8))[None])


CHOSEN = [
    (of(4096, Causal()), "by scores"),
    (of(4096, Full()), "by scores"),
    (of(384, Causal()), "by scores"),
    (of(384, Causal(align="end"), 512, sizes=([384], [400])), "by scores"),
    (of(4096, documents(4096)), "by scores"),
    (of(2048, SlidingWindow(300, 5)), "by scores"),
    (of(4096, Causal(), head_sizes=(64, 64)), "by side"),
    (of(4096, Causal(), head_sizes=(192, 192)), "by side"),
    (of(4096, Causal(), bias=ALiBi.for_heads(16)), "by side"),
    (of(300, Causal()), "by side"),
    (of(32768, Full()), "by scores"),
    (of(32768 + 2048, Full()), "by side"),
    (of(32768 + 2048, Causal()), "by scores"),
    (of(65536, Causal()), "by side"),
    (of(32768, Causal(1)), "by scores"),
    (of(32768 + 2048, Causal(1)), "by side"),
    (of(32768, Causal(), heads=(16, 4)), "by side"),
    # A group of one key head, or of two, would leave most programs without work at its end.
    (of(12288, Causal(), heads=(64, 8)), "by side"),
    (of(10240, Causal(), heads=(64, 8)), "by side"),
    (of(9216, Full(), heads=(64, 8), batch=4), "by side"),
    (of(8192, Causal(), heads=(32, 1), batch=4), "by side"),
    (of(16384, Causal(), heads=(32, 8)), "by scores"),
    (of(4096, Causal(), heads=(32, 8)), "by scores"),
    (of(32768, Full(), batch=5), "by side"),  # it would be 80 groups
    (of(32768, SlidingWindow(5000, 0)), "by scores"),
    # A group has too few items for programs to end together, unless it is the only one.
    (of(32768, documents(32768) & Causal()), "by scores"),
    (of(32768, documents(32768)), "by side"),
    (of(32768, documents(32768), heads=(1, 1)), "by scores"),
    # One tile in a head, or two of narrow ones, have a kernel for all.
    (of(128, Causal()), "at once"),
    (of(256, Causal(), head_sizes=(64, 64)), "at once"),
]


@pytest.mark.parametrize(("case", "passes"), CHOSEN)
def test_the_kernels_of_a_gradient_are_chosen_by_shape_and_mask(case, passes, monkeypatch):
    monkeypatch.setattr(_device, "multiprocessors", lambda: 132)
    monkeypatch.setattr(_device, "memory_is_fast", lambda: True)
    prepared = prepare(case.signature, case.work(), bias=case.bias, interpret=None)
    assert _backward.passes_of(prepared, deterministic=True) == passes


@pytest.mark.parametrize(
    ("case", "density", "in_order", "in_any"),
    [
        (of(4096, Causal()), 0.5, "by scores", "at once"),
        (of(4096, Full()), 1.0, "by scores", "at once"),
        (of(2048, Causal()), 0.5, "by scores", "at once"),
        (of(1792, Causal()), 0.5, "by side", "by side"),
        (of(512, Full()), 1.0, "by side", "by side"),
        (of(2048, Causal(), 512), 0.5, "by scores", "at once"),
        (of(512, Full(), 2048), 1.0, "by side", "by side"),
        # Lengths that are known when the program runs; one kernel needs them before.
        (of(2048, Causal(), sizes=([2048], [2000])), None, "by scores", "by scores"),
        (of(1024, Causal(), sizes=([1024], [1000])), None, "by side", "by side"),
        (of(1024, Full(), sizes=([1024], [1000])), None, "by scores", "by scores"),
        # Documents are data.
        (of(8192, documents(8192)), None, "by side", "by side"),
    ],
)
def test_where_memory_is_slow_scores_of_long_rows_are_stored_for_the_same_bits(
    case, density, in_order, in_any, monkeypatch
):
    monkeypatch.setattr(_device, "multiprocessors", lambda: 132)
    work = dataclasses.replace(case.work(), density=density)
    prepared = prepare(case.signature, work, bias=case.bias, interpret=None)
    for is_fast, passes in ((False, (in_order, in_any)), (True, ("by scores", "by scores"))):
        monkeypatch.setattr(_device, "memory_is_fast", lambda is_fast=is_fast: is_fast)
        found = [_backward.passes_of(prepared, deterministic=x) for x in (True, False)]
        assert tuple(found) == passes


@pytest.mark.parametrize(
    ("kind", "is_fast"),
    [
        ("NVIDIA H200", True),
        ("NVIDIA GH200 144G HBM3e", True),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA H20", True),
        ("NVIDIA H100 PCIe", False),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA B200", False),
        (None, True),
    ],
)
def test_memory_is_told_by_the_kind_of_the_gpu(kind, is_fast, monkeypatch):
    device = None if kind is None else SimpleNamespace(device_kind=kind)
    monkeypatch.setattr(_device, "_first", lambda: device)
    assert _device.memory_is_fast() == is_fast


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (384, 384), (640, 256), (512, 896)])
def test_each_piece_has_a_place_of_its_own(queries, keys, is_packed):
    layout, heads = Layout(is_packed), 3
    (one, rows, other, columns) = layout.shape(heads, (queries, keys), jnp.bfloat16).shape
    assert (one, other, columns) == (1, 1, 64)
    sizes = {"T": Known(queries), "S": Known(keys)}
    taken = np.zeros(rows, int)
    for head in range(heads):
        for query in range(0, queries, 64):
            tall = query - query % TALL
            end = min(keys, tall + TALL) if is_packed else keys
            for key in range(0, end, 64):
                row = layout.row(sizes, head, key, query)
                taken[row : row + 64] += 1
                # What is read together lies together.
                assert row == layout.row(sizes, head, 0, tall) + key // 64 * TALL + query - tall
    assert taken.max() == 1
    whole = queries % TALL == 0 and (not is_packed or queries <= keys)
    assert taken.all() or not whole


@dataclasses.dataclass(frozen=True)
class Known:
    """In place of `Kept`."""

    size: int

    def read(self) -> int:
        return self.size


class ByScores(mosaic_gpu.MosaicGpu):
    """Stores gradients of scores, whether that is faster or not."""

    def passes(self, prepared, *, deterministic):
        assert _in_groups.is_possible(prepared)
        return "by scores"


@pytest.fixture
def by_scores(monkeypatch):
    """Have all gradients made so; what nobody stored is NaN."""
    assert plgpu.InterpretGPUParams().uninitialized_memory == "nan"
    monkeypatch.setattr("tests.attention.interpreted.mosaic_gpu.MosaicGpu", ByScores)


def named(name: str, **changes: object) -> Case:
    (case,) = [case for case in CASES if case.name == f"any length, {name}"]
    return dataclasses.replace(case, **changes)


@pytest.mark.parametrize(
    "case",
    [
        named("causal", head_sizes=(40, 128)),
        named("more keys"),
        named("fewer keys", mask=Causal()),
        named("window, ragged"),
        pytest.param(named("causal", sizes=([384, 200], [384, 300])), marks=pytest.mark.slow),
        pytest.param(named("fewer keys"), marks=pytest.mark.slow),
        pytest.param(named("window"), marks=pytest.mark.slow),
        pytest.param(named("documents of examples"), marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)
def test_gradients_are_those_of_the_formulas_and_have_the_same_bits_by_groups(
    case, by_scores, monkeypatch
):
    results, expected = interpreted(case)
    assert_as_formulas(case, results, expected)
    of_head = case.heads[0] // case.heads[1] * (case.queries + 128) * (case.keys + 128) * 2
    monkeypatch.setattr(_in_groups, "_BYTES", of_head)
    for one, other in zip(results, interpreted(case)[0], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "case",
    [
        Case("", Causal(), 512, 512, heads=(2, 1), head_sizes=(64, 64)),
        # The last row of an example has one tile of two: what follows is another example's.
        Case("", Full(), 384, 384, heads=(1, 1), batch=2),
    ],
)
def test_no_warpgroup_overwrites_what_another_reads(case, by_scores):
    assert_as_formulas(case, *interpreted(case, detect_races=True))


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (4, 1), (5, 2), (10, 3)])
def test_groups_share_one_array(batch, groups, monkeypatch):
    """64 causal heads of 4,096 tokens and 128 columns need 1.1 GiB."""
    monkeypatch.setattr(_in_groups, "_BYTES", 5 << 28)

    def loss(x):
        return sx.dot_product_attention(x, x, x, is_causal=True, implementation="mosaic_gpu").sum()

    x = jax.ShapeDtypeStruct((batch, 4096, 16, 128), jnp.bfloat16)
    jax.clear_caches()
    with _device.assumed(_device.HOPPER):
        text = lowered(jax.grad(loss), x, platform="cuda")
    jax.clear_caches()
    rows = -(-16 * batch // groups) * 128 * 16 * 17 * 4
    calls = re.findall(r"call @backward_into_scores\S*\(.*", text)
    assert len(calls) == groups
    assert all(f"(tensor<1x{rows}x1x64xbf16>" in call.split("->")[1] for call in calls)
    # Each call is after the one before: so its array may lie where that of the group before did.
    call = r"(%\d+):\d+ = call @(?:backward_into|queries_from)_scores\S*\((.*)\) :"
    kernels = re.findall(call, text)
    assert len(kernels) == 2 * groups
    for (before, _), (_, operands) in itertools.pairwise(kernels):
        assert re.search(rf"{before}#\d+", operands)
