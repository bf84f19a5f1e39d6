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
from typing import Any, NamedTuple

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
)
from shapeexec.tools.benchmark.attention._masks import mask_of, tile_density
from shapeexec.tools.benchmark.attention._ours import contestants
from shapeexec.tools.benchmark.attention._problems import (
    PATTERNS,
    Pattern,
    Problem,
    pattern_of,
    shape_of,
)
from shapeexec.tools.benchmark.attention._reference import dense_mask
from shapeexec.tools.benchmark.attention._report import AttentionReport, speed_up
from shapeexec.tools.benchmark.attention._run import Plan, Row, measure
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


@pytest.mark.parametrize(
    ("name", "pairs", "tiles"),
    [
        ("full", 1, 1),
        ("random30", 0.3, 0.3),
        ("random70", 0.7, 0.7),
        ("random90", 0.9, 0.9),
        ("elements10", 0.1, 1),
        ("elements50", 0.5, 1),
    ],
)
def test_random_pairs_leave_every_tile_and_random_tiles_their_share(name, pairs, tiles):
    problem = Problem(shape_of("1x1280x1x1x8:float32"), pattern_of(name))
    assert problem.density == pytest.approx(pairs, abs=0.005)
    assert tile_density(problem.pattern, 1280) == pytest.approx(tiles, abs=0.005)


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
    assert 0 < row["lower_seconds"] < row["compile_seconds"]
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
        ({"shapes": SHAPE}, "is not a list of names", f"shapes=['{SHAPE}']"),
        ({"shapes": ["5k"]}, "there is no shape '5k'", "4k_128"),
        ({"masks": [3]}, "masks=[3] is not a list of names", 'masks=["name"]'),
        ({"rivals": ["fa9"]}, "rivals: there is no 'fa9'", "flex_attention"),
        ({"only": "("}, "only='(' is not a regular expression", "4k.*causal"),
        ({"only": None}, "only=None is not a regular expression", "4k.*causal"),
        ({"minutes": -1}, "minutes=-1 is not a number above 0", "minutes=8"),
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
        (["--masks", "elements101"], "there is no mask 'elements101'.*random or elements and a"),
        (["--implementations", "cuda"], "implementations: there is no 'cuda'.*default.*xla"),
        (["--rivals", "fa9"], "rivals: there is no 'fa9'.*flex_attention"),
        (["--studies", "x"], "studies: there is no 'x'.*lists, padding, memory"),
        (["--only", "("], "is not a regular expression"),
        (["--shapes", "1x100x1x1x8", "--masks", "random50"], "multiple of 128"),
        (["--minutes", "0"], r"minutes=0\.0 is not a number above 0"),
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
            *("s", "m", "forward", name, is_ours, 0.5, 1.0, milliseconds),
            teraflops=1 / milliseconds,
            compile_seconds=0.75,
            lower_seconds=None if name == "a" else 0.25,
        )

    rows = [row("a", 3.0), row("xla", 1.0, True), row("b", 2.0), row("default", 0.5, True)]
    assert speed_up(rows, "s", mask="m", passes="forward") == (4.0, "b")
    assert speed_up(rows[:3], "s", mask="m", passes="forward") == (2.0, "b")
    assert speed_up(rows[:1], "s", mask="m", passes="forward") is None
    rows[0] = dataclasses.replace(rows[0], clock="host")
    rows[1] = dataclasses.replace(rows[1], clock="device")
    text = str(AttentionReport({}, 0.0, rows, [], {}))
    assert "Times are the device's, but the host's of a (1): `clock`" in text
    assert "| shape | mask | unmasked | tiles  | xla   | default | a         | b       |" in text
    assert "| s     | m    | 50.0%    | 100.0% |" in text
    assert "At 100.0% (m) no tile can be skipped: it costs what a full mask costs" in text
    compiling = text[text.index("Seconds to trace and lower + to compile") :]
    assert "| s     | m    | 0.75 / - | 0.25+0.50 / - |" in compiling
    assert "4.00 (b) / -" in text


def test_no_part_of_it_is_imported_with_the_library():
    assert "shapeexec.tools.benchmark.attention._main" in sys.modules
    code = "import sys, shapeexec; print([m for m in sys.modules if 'benchmark' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
