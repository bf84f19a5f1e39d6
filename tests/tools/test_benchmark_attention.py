"""The benchmark of attention measures what it says, and calls nothing a figure that is wrong."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.attention._blocks import to_dense
from shapeexec.tools.benchmark.attention import _main, _studies
from shapeexec.tools.benchmark.attention._contestant import (
    JaxContestant,
    RefusalError,
    operands,
    slices,
)
from shapeexec.tools.benchmark.attention._ours import contestants, mask_of
from shapeexec.tools.benchmark.attention._problems import (
    PATTERNS,
    Pattern,
    Problem,
    pattern_of,
    shape_of,
)
from shapeexec.tools.benchmark.attention._reference import check, dense_mask
from shapeexec.tools.benchmark.attention._report import AttentionReport, speed_up
from shapeexec.tools.benchmark.attention._run import Plan, Row, measure
from shapeexec.tools.benchmark.attention.rivals import flash_attention_3, flex_attention, rivals
from tests.execution.support import refused

SHAPE = "2x128x4x2x16:float32"
SMALL = Pattern("window of 100", is_causal=True, window=100)
BIDIRECTIONAL = Pattern("bidirectional window", window=100)
ALL = (*PATTERNS.values(), SMALL, BIDIRECTIONAL)


@pytest.mark.parametrize("pattern", ALL, ids=lambda pattern: pattern.name)
def test_pairs_are_those_of_the_dense_mask_and_of_the_librarys(pattern):
    for length in (128, 640):
        dense = np.asarray(dense_mask(pattern, length))
        assert dense.sum() == pattern.pairs(length)
        ours = np.asarray(to_dense(mask_of(pattern, length), (length, length)))[0, 0]
        np.testing.assert_array_equal(dense, ours)


def test_random_tiles_are_as_many_as_it_says_and_keep_the_diagonal():
    tiles = pattern_of("random25").tiles(4096)
    assert tiles.sum() == 256
    assert tiles.diagonal().all()


class Written(NamedTuple):
    """What the command wrote: the record, what it printed, and the plot."""

    command: list[str]
    record: dict[str, Any]
    printed: str
    plot: bytes

    @property
    def rows(self) -> dict[tuple[str, str], Any]:
        return {(row["contestant"], row["passes"]): row for row in self.record["rows"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    # No triton here, no torch: both are told, neither is left out in silence.
    folder = tmp_path_factory.mktemp("benchmark")
    file, plot = folder / "a" / "result.json", folder / "plot.png"
    names = ["--shapes", SHAPE, "--masks", "documents", "--implementations", "default,triton"]
    others = ["--rivals", "jax_nn_xla,flex_attention,flash_attention_3", "--studies", "lists"]
    command = ["benchmark", "attention", *names, *others, "--json", str(file), "--plot", str(plot)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(command) == 0
    return Written(command, json.loads(file.read_text()), printed.getvalue(), plot.read_bytes())


def test_a_record_tells_the_command_and_the_machine(written):
    record = written.record
    assert record["command"] == " ".join(["python -m shapeexec", *written.command])
    assert {"cpu", "cores", "device", "python", "jax", "shapeexec"} <= record["machine"].keys()


def test_each_contestant_that_is_there_has_a_row_for_each_pass(written):
    assert written.record["absent"].keys() == {"flex_attention", "flash_attention_3"}
    assert len(written.rows) == len(written.record["rows"]) == 6


@pytest.mark.parametrize("name", ["default", "jax_nn_xla"])
@pytest.mark.parametrize(("passes", "times"), [("forward", 1), ("both", 3.5)])
def test_a_row_has_its_time_its_rate_and_what_it_took(name, passes, times, written):
    row = written.rows[name, passes]
    operations = times * 4 * 2 * 4 * 16 * PATTERNS["documents"].pairs(128)
    assert (row["shape"], row["mask"], row["reason"]) == (SHAPE, "documents", None)
    assert row["teraflops"] * row["milliseconds"] == pytest.approx(operations / 1e9)
    assert isinstance(row["compile_seconds"], float)
    assert row["temporary_bytes"] >= 0


def test_what_cannot_run_has_a_reason_in_the_place_of_a_time(written):
    row = written.rows["triton", "forward"]
    reason = "it is made for GPUs, not for cpu"
    assert (row["milliseconds"], row["reason"]) == (None, reason)
    assert f"triton, 2 not measured: {reason}" in written.printed


def test_a_study_is_in_the_record(written):
    assert [finding["study"] for finding in written.record["findings"]] == ["lists", "lists"]


def test_the_table_names_the_best_rival_and_whose_clock_it_was(written):
    assert re.search(rf"\| {SHAPE} \| documents .* \(jax_nn_xla\) +\|", written.printed)
    assert "Times are the host's." in written.printed


def test_the_plot_is_a_picture(written):
    assert written.plot.startswith(b"\x89PNG")


def test_the_function_finds_what_the_command_writes(written, capsys):
    told = []
    report = sx.tools.benchmark_attention(
        shapes=[SHAPE],
        masks=["documents"],
        implementations=["default", "triton"],
        rivals=["jax_nn_xla", "flex_attention", "flash_attention_3"],
        studies=["lists"],
        tell=told.append,
    )
    assert isinstance(report, sx.tools.AttentionReport)
    assert not report.has_failed
    own = json.loads(json.dumps(report.to_dict()))
    assert ["command", *own] == list(written.record)
    assert own["absent"] == written.record["absent"]
    cells = [
        [(*row, row["shape"], row["contestant"], row["passes"], row["reason"]) for row in rows]
        for rows in (own["rows"], written.record["rows"])
    ]
    assert cells[0] == cells[1]
    assert any("default" in line and "TFLOP/s" in line for line in told)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"shapes": SHAPE}, "is no list of names", f"shapes=['{SHAPE}']"),
        ({"shapes": ["5k"]}, "there is no shape '5k'", "4k_128"),
        ({"masks": [3]}, "masks=[3] is no list of names", 'masks=["name"]'),
        ({"rivals": ["fa9"]}, "rivals: there is no 'fa9'", "flex_attention"),
        ({"only": "("}, "only='(' is no regular expression", "4k.*causal"),
        ({"only": None}, "only=None is no regular expression", "4k.*causal"),
        ({"minutes": -1}, "minutes=-1 is no number above 0", "minutes=8"),
    ],
)
def test_the_function_refuses_what_it_does_not_know(given, what, fix):
    with refused(sx.ConfigError, what, fix) as caught:
        sx.tools.benchmark_attention(studies=[], **given)
    assert caught.value.option == next(iter(given))


@pytest.mark.parametrize("study", ["padding", "memory"])
def test_a_study_compares_a_length_with_its_double(study, tmp_path):
    file = tmp_path / "result.json"
    names = ["--shapes", "1x64x1x1x8:float32", "--only", "nothing", "--studies", study]
    assert main(["benchmark", "attention", *names, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["rows"] == []
    assert [one["case"].split()[-1] for one in record["findings"]] == ["forward", "both"]
    for one in record["findings"]:
        assert one["ratio"] == one["value"] / one["compared"] > 0


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--shapes", "5k"], "there is no shape '5k'.*4k_128"),
        (["--shapes", "1x0x1x1x8"], "there is no shape"),
        (["--masks", "casual"], "there is no mask 'casual'.*causal"),
        (["--masks", "random0"], "there is no mask 'random0'"),
        (["--implementations", "cuda"], "implementations: there is no 'cuda'.*default.*xla"),
        (["--rivals", "fa9"], "rivals: there is no 'fa9'.*flex_attention"),
        (["--studies", "x"], "studies: there is no 'x'.*lists, padding, memory"),
        (["--only", "("], "is no regular expression"),
        (["--shapes", "1x100x1x1x8", "--masks", "random50"], "multiple of 128"),
        (["--minutes", "0"], r"minutes=0\.0 is no number above 0"),
    ],
)
def test_what_it_does_not_know_it_says(option, told, capsys):
    assert main(["benchmark", "attention", "--studies", "none", *option]) == 2
    assert re.search(told, capsys.readouterr().err, re.DOTALL)


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(_main, "benchmark_attention", None)
    assert main(["benchmark", "attention", "--plot", "x.png"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def rows_of(attention, *, is_ours=False, minutes=60.0):
    contestant = JaxContestant("somebody", lambda problem: attention, is_ours=is_ours)
    plan = Plan(
        (shape_of(SHAPE),),
        (Pattern("full"),),
        (contestant,),
        re.compile("forward"),
        time.monotonic() + 60 * minutes,
    )
    return list(measure(plan, 0, tell=lambda text: None))


def test_a_wrong_result_is_no_figure():
    for value in (0.0, jnp.nan):
        (row,) = rows_of((lambda q, k, v, value=value: q + value, ()))
        assert row.milliseconds is None
        assert row.is_failure
        assert re.match(r"WRONG: out is off by .*%", row.reason)
    assert AttentionReport({}, 0.0, [row], [], {}).has_failed


@pytest.mark.parametrize("is_ours", [False, True])
def test_who_breaks_is_told_and_only_ours_fails_the_run(is_ours):
    def attend(q, k, v):
        raise ZeroDivisionError("no\nway")

    (row,) = rows_of((attend, ()), is_ours=is_ours)
    assert (row.reason, row.is_failure) == ("ZeroDivisionError: no way", is_ours)


def test_who_refuses_fails_nothing():
    def attend(q, k, v):
        raise RefusalError("it does not")

    (row,) = rows_of((attend, ()), is_ours=True)
    assert (row.reason, row.is_failure) == ("it does not", False)


def test_tiles_that_are_known_when_a_program_is_compiled_are_not_anothers():
    (ours,) = (one for one in contestants() if one.name == "default")
    patterns = tuple(map(pattern_of, ("random90", "random30")))
    shape = shape_of("1x512x1x1x8:float32")
    plan = Plan((shape,), patterns, (ours,), re.compile("forward"), time.monotonic() + 3600)
    rows = list(measure(plan, 0, tell=lambda text: None))
    assert [row.mask for row in rows if row.milliseconds] == ["random90", "random30"]


def test_what_time_does_not_allow_is_listed():
    (row,) = rows_of((None, ()), minutes=0)
    assert row.reason == "out of time"


def flash_mha(q, k, v, *, is_causal, window_size):
    left, right = window_size
    window = None if left < 0 else (left, right)
    return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal, local_window_size=window)


def flash_mha_varlen(q, k, v, starts, longest, *, is_causal, window_size):
    assert window_size == (-1, -1)
    assert q.ndim == 3
    assert longest == np.diff(starts).max()
    ids = np.searchsorted(starts, np.arange(len(q)), side="right")
    mask = (ids[:, None] == ids)[None, None]
    return jax.nn.dot_product_attention(q[None], k[None], v[None], mask=mask, is_causal=is_causal)


@pytest.mark.parametrize("name", ["full", "causal", "documents", "window", "random50", "alibi"])
def test_flash_attention_is_told_the_pattern(name, monkeypatch):
    module = SimpleNamespace(flash_mha=flash_mha, flash_mha_varlen=flash_mha_varlen)
    monkeypatch.setitem(sys.modules, "dew_flash_attn", module)
    pattern = SMALL if name == "window" else pattern_of(name)
    problem = Problem(shape_of(SHAPE), pattern)
    if name in ("random50", "alibi"):
        with pytest.raises(RefusalError, match="neither masks by tile nor biases"):
            flash_attention_3.rival.attention(problem)
        return
    attend, more = flash_attention_3.rival.attention(problem)
    q, k, v, _ = operands(problem.shape)
    check(problem, slices(problem.shape, (attend(q, k, v, *more).reshape(q.shape),)))


def test_what_was_measured_before_an_interrupt_is_reported(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(_studies.STUDIES, "lists", interrupted)
    names = ["--shapes", SHAPE, "--masks", "causal", "--rivals", "none", "--only", "triton"]
    assert main(["benchmark", "attention", *names]) == 0
    told = capsys.readouterr().out
    assert "interrupted" in told
    assert "study" not in told


def test_ours_is_compared_with_the_best_rival():
    def row(name, milliseconds, is_ours=False):
        return Row(
            "s", "m", "forward", name, is_ours, 0.5, milliseconds, teraflops=1 / milliseconds
        )

    rows = [row("a", 3.0), row("xla", 1.0, True), row("b", 2.0), row("default", 0.5, True)]
    assert speed_up(rows, "s", mask="m", passes="forward") == (4.0, "b")
    assert speed_up(rows[:3], "s", mask="m", passes="forward") == (2.0, "b")
    assert speed_up(rows[:1], "s", mask="m", passes="forward") is None
    rows[0] = dataclasses.replace(rows[0], clock="host")
    rows[1] = dataclasses.replace(rows[1], clock="device")
    text = str(AttentionReport({}, 0.0, rows, [], {}))
    assert "Times are the device's, but the host's of a (1): `clock`" in text
    assert "| shape | mask | unmasked | xla   | default | a         | b       |" in text
    assert "4.00 (b) / -" in text


def test_each_file_of_a_rival_is_one():
    names = [rival.name for rival in rivals()]
    assert names == ["flash_attention_3", "flex_attention", "jax_nn_cudnn", "jax_nn_xla"]


WORKER = """
import json, sys, numpy as np
from pathlib import Path
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "compile":
        q, k, v, d_out = (np.load(Path(request["operands"]) / f"{i}.npy") for i in range(4))
        if request["documents"]:
            print(json.dumps({"error": "no documents"}), flush=True)
            continue
        if request["is_causal"]:
            sys.exit("it broke")
        q, k, v = (x.view("float32")[-1, :, -n:] for x, n in ((q, 2), (k, 1), (v, 1)))
        scores = np.einsum("tnh,sh->nts", q, k[:, 0]) / 4
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.savez(request["results"], np.einsum("nts,sh->tnh", weights, v[:, 0]))
        answer = {"seconds": 1.5}
    else:
        answer = {"wall": 2.0, "device": 1.0} if request["do"] == "measure" else {}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("pattern", "told"),
    [("full", None), ("documents", "no documents"), ("causal", "it broke")],
)
def test_a_process_of_its_own_is_handed_operands_and_hands_back_results(
    pattern, told, tmp_path, monkeypatch
):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(flex_attention, "SCRIPT", worker)
    flex = flex_attention.FlexAttention()
    shape, only = shape_of(SHAPE), re.compile("forward")
    plan = Plan((shape,), (pattern_of(pattern),), (flex,), only, time.monotonic() + 3600)
    try:
        (row,) = measure(plan, 0, tell=lambda text: None)
    finally:
        flex.close()
    if told is not None:
        assert told in row.reason
        assert not row.is_failure
        return
    assert (row.milliseconds, row.wall_milliseconds, row.compile_seconds) == (1.0, 2.0, 1.5)
    assert row.clock == "device"


def test_no_part_of_it_is_imported_with_the_library():
    assert "shapeexec.tools.benchmark.attention._main" in sys.modules
    code = "import sys, shapeexec; print([m for m in sys.modules if 'benchmark' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
