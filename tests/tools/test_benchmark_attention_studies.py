"""The studies of compiling and of launches tell what they measured, and what they could not."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import jax
import pytest

from shapeexec.__main__ import main
from shapeexec.attention import _early
from shapeexec.tools.benchmark.attention import _compiling, _launches, _traffic
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._ours import contestants
from shapeexec.tools.benchmark.attention._problems import (
    PASSES,
    Cell,
    Problem,
    pattern_of,
    shape_of,
)
from shapeexec.tools.benchmark.attention._reference import WrongResultError
from shapeexec.tools.benchmark.attention._report import AttentionReport
from tests.attention.early import Compiler, wait

SHAPE = "1x128x2x1x16:float32"
HAS_KERNELS = jax.__version_info__ >= (0, 11)


def studied(folder, study, *names):
    """The findings of a study, by their case."""
    file = folder / "result.json"
    options = ["--shapes", SHAPE, "--masks", "causal", "--only", "nothing", "--studies", study]
    assert main(["benchmark", "attention", *options, *names, "--json", str(file)]) == 0
    return {one["case"]: one for one in json.loads(file.read_text())["findings"]}


@pytest.fixture(scope="module")
def compiling(tmp_path_factory):
    names = ["--implementations", "xla,cudnn,mosaic_gpu,mosaic_tpu", "--rivals", "jax_nn_xla"]
    return studied(tmp_path_factory.mktemp("compiling"), "compile", *names)


@pytest.mark.parametrize("passes", ["forward", "both"])
@pytest.mark.parametrize("stage", ["trace and lower", "compile"])
def test_what_can_run_here_is_lowered_and_compiled(passes, stage, compiling):
    mine = compiling[f"{SHAPE}/causal/{passes}, xla: {stage}"]
    theirs = compiling[f"{SHAPE}/causal/{passes}, jax_nn_xla: {stage}"]
    assert mine["value"] > 0
    assert mine["compared"] == theirs["value"] > 0
    assert mine["meaning"] == "of jax_nn_xla"


def test_the_dtype_that_is_lowered_is_told_and_who_compiles_elsewhere_too():
    names = {one.name: one for one in contestants()}
    elsewhere = SimpleNamespace(name="flex_attention")
    plan = SimpleNamespace(
        shapes=[shape_of("1x128x2x1x16:float16")],
        patterns=[pattern_of("causal")],
        contestants=[names["cudnn"], elsewhere],
    )
    first, *others = _compiling.compile_times(plan, ())
    assert (first.case, first.value) == ("flex_attention", None)
    assert first.meaning == "its workers compile it; rows tell how long"
    assert [one.meaning for one in others] == [
        "lowered only, for a Hopper in float16: none is here"
    ] * 2


def test_kernels_begin_to_compile_when_the_lowering_that_is_timed_ends(monkeypatch):
    compiler, asked_before = Compiler(monkeypatch), []

    def attend(x):
        asked_before.append([*compiler.asked])
        with _early.compiled_early("cuda"):
            compiler.known[b"kernel"] = b"code"
        return x

    contestant = SimpleNamespace(function=lambda cell: (attend, (jax.numpy.ones(2),)))
    assert _compiling._measured(contestant, None, platform=None).compile > 0
    wait()
    assert asked_before == [[], []]  # it is lowered twice: first for its imports
    assert compiler.asked == [(b"kernel", b"code")]


@pytest.mark.parametrize("passes", ["forward", "both"])
def test_without_a_gpu_its_kernels_are_lowered_only(passes, compiling):
    place = f"{SHAPE}/causal/{passes}"
    names = ["cudnn", *(["mosaic_gpu"] if HAS_KERNELS else [])]
    for name in names:
        one = compiling[f"{place}, {name}: trace and lower"]
        assert one["value"] > 0
        assert "lowered only, for a Hopper in bfloat16: none is here" in one["meaning"]
        assert f"{place}, {name}: compile" not in compiling


def test_what_cannot_be_lowered_has_a_reason_in_the_place_of_figures(compiling):
    reasons = {"mosaic_tpu": "it is made for TPUs, not for cpu"}
    if not HAS_KERNELS:
        reasons["mosaic_gpu"] = f"it needs jax 0.11, and this is {jax.__version__}"
    for name, reason in reasons.items():
        one = compiling[f"{SHAPE}/causal/both, {name}"]
        assert (one["value"], one["compared"], one["ratio"]) == (None, None, None)
        assert one["meaning"] == reason


def test_a_program_from_the_cache_on_disk_is_compiled_all_the_same(tmp_path):
    names = ["--implementations", "none", "--rivals", "jax_nn_xla"]
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    try:
        studied(tmp_path, "compile", *names)
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache")
        assert not (tmp_path / "cache").exists()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def _small_model(monkeypatch):
    (model,) = _launches._ON_A_CPU
    assert model.layers == 12
    monkeypatch.setattr(_launches, "_ON_A_CPU", (dataclasses.replace(model, layers=2),))


@pytest.mark.usefixtures("_small_model")
def test_a_model_of_many_layers_is_timed_forward_and_with_backward(tmp_path):
    found = studied(tmp_path, "launches")
    assert [case.rpartition(" ")[2] for case in found] == ["forward", "both"]
    for case, one in found.items():
        assert case.startswith("2 layers, 1 x 128 tokens")
        assert one["meaning"] == "of jax.nn with xla"
        assert one["ratio"] == one["value"] / one["compared"] > 0


@pytest.mark.usefixtures("_small_model")
def test_a_model_that_is_wrong_is_no_figure(monkeypatch):
    monkeypatch.setattr(_launches.sx, "dot_product_attention", lambda q, k, v, is_causal: 2 * v)
    with pytest.raises(WrongResultError, match=r"2 layers.* is off by .*% of its norm"):
        list(_launches.launches(None, ()))


@pytest.mark.usefixtures("_small_model")
def test_a_model_that_no_rival_runs_is_told(monkeypatch):
    def refuse(*_, **options):
        raise ValueError("no")

    monkeypatch.setattr(_launches.jax.nn, "dot_product_attention", refuse)
    found = list(_launches.launches(None, ()))
    why = ["jax.nn with cudnn: ValueError: no", "jax.nn with xla: ValueError: no"]
    told = [(one.compared, one.meaning) for one in found]
    assert told == [(None, text) for text in (*why, "jax.nn cannot run it")] * 2
    assert all(one.value > 0 for one in found)


def test_kernels_are_counted_where_the_device_tells_them(monkeypatch):
    told = ((("a", 1.0), ("b", 2.0)), (("a", 1.0),))
    timings = itertools.cycle([_launches.Timing(2.0, 1.5, one) for one in told])
    monkeypatch.setattr(_launches, "clock", lambda call, arguments: next(timings))
    monkeypatch.setattr(_launches, "_RIVALS", ("xla",))
    (model,) = _launches._ON_A_CPU
    found = list(_launches._findings(model, "forward", arguments=model.arguments()))
    assert [(one.unit, one.value, one.compared) for one in found] == [("us", 2e3, 2e3), ("", 2, 1)]


def test_a_host_that_is_busy_for_a_while_changes_no_figure(monkeypatch):
    walls = iter([2.0, 1.0, 9.0, 8.0, 2.5, 1.0, 2.0, 7.0, 2.0, 1.0])  # ours and a rival in turns
    monkeypatch.setattr(_launches, "clock", lambda *_: _launches.Timing(next(walls)))
    monkeypatch.setattr(_launches, "_RIVALS", ("xla",))
    (model,) = _launches._ON_A_CPU
    (found,) = _launches._findings(model, "forward", arguments=model.arguments())
    assert (found.value, found.compared) == (2e3, 1e3)


def cell(mask, passes, sizes="2x512x4x2x64:bfloat16"):
    return Cell(Problem(shape_of(sizes), pattern_of(mask)), passes)


TILE = 128 * 64 * 2  # bytes


@pytest.mark.parametrize(
    ("mask", "passes", "least"),
    [
        # 2 examples; 4 heads of q and out, 2 of k and v; 4 tiles each
        ("full", "forward", 2 * (4 * 2 + 2 * 2) * 4 * TILE),
        ("causal", "forward", 2 * (4 * 2 + 2 * 2) * 4 * TILE),
        ("full", "both", 2 * (4 * 4 + 2 * 4) * 4 * TILE),
        ("elements50", "forward", 2 * (4 * 2 + 2 * 2) * 4 * TILE + 512**2),
    ],
)
def test_the_least_possible_is_each_array_once(mask, passes, least):
    assert _traffic.least_bytes(cell(mask, passes)) == least


@pytest.mark.parametrize("length", [1, 130, 300])
def test_the_least_possible_has_no_padding(length):
    sizes = f"1x{length}x1x1x64:bfloat16"
    row = 64 * 2  # bytes
    assert _traffic.least_bytes(cell("full", "forward", sizes)) == 4 * length * row
    assert _traffic.least_bytes(cell("full", "both", sizes)) == 8 * length * row
    with_mask = _traffic.least_bytes(cell("elements50", "forward", sizes))
    assert with_mask == 4 * length * row + (length**2 if length > 1 else 0)


@pytest.mark.parametrize(
    ("mask", "visits", "of_mask"),
    [("full", 16, 0), ("causal", 10, 0), ("random25", 4, 0), ("elements50", 16, 16 * 128 * 128)],
)
def test_lists_ask_for_keys_and_values_at_each_visit(mask, visits, of_mask):
    once = 4 * (2 * TILE + 4 * 128)  # q, out, log-sum-exp of four rows
    assert _traffic.listed_bytes(cell(mask, "forward")) == 8 * (once + visits * 2 * TILE + of_mask)
    forward, both = (_traffic.listed_bytes(cell(mask, passes)) for passes in PASSES)
    assert both > 2.5 * forward


def test_bytes_are_told_with_whose_account_they_are(tmp_path):
    found = studied(tmp_path, "bytes", "--implementations", "default")
    whose = [case.partition(", ")[2] for case in found]
    assert whose == 2 * [_traffic._OF_LISTS, _traffic._OF_XLA]
    for one in found.values():
        assert one["ratio"] == one["value"] / one["compared"] > 0


def profile(*planes):
    """A profile with these planes: by name lines, each a list of the stats of events."""
    made = [
        SimpleNamespace(
            name=name,
            lines=[
                SimpleNamespace(events=[SimpleNamespace(stats=one) for one in line])
                for line in lines
            ],
        )
        for name, lines in planes
    ]
    return SimpleNamespace(planes=made)


@pytest.mark.parametrize(
    ("planes", "want"),
    [
        ([("/host:CPU", [[[("bytes_accessed", 7)]]])], None),
        ([("/device:GPU:0", [[[("regs", 7)]], []])], None),
        (
            [("/device:TPU:0", [[[("bytes_accessed", 7)], [("bytes_accessed", 5)]], [[]]])],
            12,
        ),
    ],
)
def test_bytes_of_the_profiler_are_those_of_the_device_or_none(planes, want, monkeypatch):
    monkeypatch.setattr(
        jax.profiler.ProfileData, "from_file", lambda path: profile(*planes), raising=True
    )
    assert _traffic.profiled_bytes(lambda x: x, (1,)) == want


def test_the_profile_of_a_cpu_tells_no_bytes_of_a_device():
    assert _traffic.profiled_bytes(jax.jit(lambda x: x + 1), (1.0,)) is None


def test_a_profiler_that_tells_nothing_is_told(monkeypatch):
    (ours,) = (one for one in contestants() if one.name == "default")
    monkeypatch.setattr(_traffic.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(_traffic, "profiled_bytes", lambda call, arguments: None)
    *_, last = _traffic._accounts(ours, cell("full", "forward", SHAPE), least=1.0)
    assert (last.value, last.compared) == (None, None)
    assert "its counters need Nsight Compute" in last.meaning


def test_a_figure_that_is_missing_leaves_its_place_empty():
    found = [
        Finding("compile", "a", "s", None, None, "it is not here"),
        Finding("compile", "b", "s", 1.5, None, "only lowered"),
        Finding("decode", "c", "us", 12345.6, 0.0, "of nothing"),
    ]
    text = str(AttentionReport({}, 0.0, [], found, {}))
    assert "| compile | a    |           |               | it is not here |" in text
    assert "| compile | b    | 1.5 s     |               | only lowered   |" in text
    assert "| decode  | c    | 12,346 us | 0 us          | of nothing     |" in text
