"""`tune` keeps what gains over 3 percent and is right, and says why it keeps nothing else."""

import contextlib
import json
import os
import re

import jax.numpy as jnp
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.attention.backends import _kept, _tuning
from shapeexec.attention.backends._base import Tiling
from shapeexec.tools.tuning import _trial, _tune
from tests.execution.support import refused

SHAPE = "1x128x2x1x8:float32"
OWN, HALF, WIDE, SMALL = (Tiling(tile) for tile in ((128, 128), (64, 128), (128, 64), (64, 64)))


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "cache" / "tuning.json"
    monkeypatch.setenv(_kept.VARIABLE, str(path))
    _tuning.forget()
    yield path
    _tuning.forget()


@pytest.fixture
def times(monkeypatch):
    """Tilings that take so many milliseconds in each cell; all others take 2."""

    def put(found):
        def timed(programs, arguments, *, rounds):
            return {one: found.get(one, [2.0] * len(arguments)) for one in programs}

        monkeypatch.setattr(_trial, "_timed", timed)

    return put


def tuned(**options):
    return sx.tools.tune_attention(**{"shapes": [SHAPE], "masks": ["causal"], **options})


@pytest.mark.parametrize(
    ("found", "best", "gain", "pays"),
    [
        ({SMALL: [1.0]}, "64x64", 2.0, True),
        ({SMALL: [1.93], WIDE: [1.9]}, "128x64", 2 / 1.9, True),
        pytest.param({SMALL: [1.95]}, "64x64", 2 / 1.95, False, marks=pytest.mark.slow),
        ({HALF: [3.0], WIDE: [3.0], SMALL: [3.0]}, "128x128", 1.0, False),
    ],
)
def test_what_gains_more_than_3_percent_pays(found, best, gain, pays, file, times):
    times(found)
    report = tuned()
    assert [row.place["is_backward"] for row in report.rows] == [False, True]
    for row in report.rows:
        assert (row.own, row.best, row.tried) == ("128x128", best, 4)
        assert row.gain == pytest.approx(gain)
        assert row.pays == pays
    kept = _tuning.tuning("cpu").rows
    assert [tiling.tile for _, tiling in kept] == [(64, 64) if best == "64x64" else (128, 64)] * (
        2 * pays
    )


@pytest.mark.slow
def test_a_tiling_that_is_slower_for_one_mask_is_not_kept_for_its_kind(file, times):
    times({SMALL: [1.0, 2.1], WIDE: [1.9, 2.0]})
    report = tuned(masks=["documents", "elements50"])
    for row in report.rows:
        assert len(row.cells) == 2
        assert row.place["mask"] == "other"
        assert (row.best, row.pays) == ("128x64", False)


def test_a_tiling_that_loses_when_it_is_measured_again_is_not_kept(file, monkeypatch):
    answers = iter([{}, {SMALL: 1.0}, {SMALL: 1.99}] * 2)

    def timed(programs, arguments, *, rounds):
        found = next(answers)
        return {one: [found.get(one, 2.0)] for one in programs}

    monkeypatch.setattr(_trial, "_timed", timed)
    assert not any(row.pays for row in tuned().rows)
    assert _tuning.tuning("cpu").rows == ()


def test_a_wrong_result_is_told_and_not_kept(file, times, monkeypatch):
    times({SMALL: [1.0]})
    monkeypatch.setattr(_trial, "slices", lambda shape, results: {"out": jnp.zeros(1)})
    report = tuned()
    assert report.has_failed
    assert all(re.match("WRONG: out is off by", row.reason) for row in report.rows)
    assert _tuning.tuning("cpu").rows == ()


def test_what_was_kept_where_a_result_is_wrong_now_is_dropped(file, times, monkeypatch):
    times({SMALL: [1.0]})
    tuned()
    assert len(_tuning.tuning("cpu").rows) == 2
    monkeypatch.setattr(_trial, "slices", lambda shape, results: {"out": jnp.zeros(1)})
    tuned()
    assert _tuning.tuning("cpu").rows == ()


def test_a_program_that_fails_is_told_and_ends_nothing(file, times, monkeypatch):
    times({SMALL: [1.0]})
    programs = _trial._programs

    def failing(contestant, asked, *, tiling):
        if tiling == WIDE and not asked[0].place.is_backward:
            raise RuntimeError("RESOURCE_EXHAUSTED:\nno memory")
        return programs(contestant, asked, tiling=tiling)

    monkeypatch.setattr(_trial, "_programs", failing)
    report = tuned()
    assert report.has_failed
    assert report.rows[0].reason == "RuntimeError: RESOURCE_EXHAUSTED: no memory"
    assert [place.is_backward for place, _ in _tuning.tuning("cpu").rows] == [True]


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_what_was_measured_before_it_was_ended_is_kept(error, file, times):
    times({SMALL: [1.0]})

    def tell(line):
        if "worth keeping" in line:
            raise error

    with contextlib.suppress(BrokenPipeError):
        tuned(tell=tell)
    assert len(_tuning.tuning("cpu").rows) == 1


def test_a_file_that_cannot_be_written_in_the_end_is_told(file, times, monkeypatch):
    def full(*_, **options):
        raise OSError(28, "No space left on device")

    times({SMALL: [1.0]})
    monkeypatch.setattr(_kept, "keep", full)
    with refused(sx.ConfigError, "cannot be written: [Errno 28] No space left", "file="):
        tuned()


def test_what_has_no_choice_and_what_cannot_run_says_so(file):
    (row, _) = tuned(implementation="triton").rows
    assert row.reason == "it is made for GPUs, not for cpu"
    (row, _) = tuned(shapes=["1x64x1x1x8:float32"]).rows
    assert row.reason == "64x64 is the only tiling"
    assert not file.exists()


def test_nothing_is_begun_after_the_time(file, monkeypatch):
    monkeypatch.setattr(_tune, "trial", None)
    assert [row.reason for row in tuned(minutes=1e-9).rows] == ["out of time"] * 2


@pytest.mark.slow
def test_a_real_measurement_can_be_read_and_used(file, capsys, tmp_path):
    result = tmp_path / "result.json"
    command = ["tune", "attention", "--shapes", SHAPE, "--masks", "causal", "--json", str(result)]
    assert main(command) == 0
    record = json.loads(result.read_text())
    printed = capsys.readouterr().out
    assert record["file"] == str(file)
    assert len(record["rows"]) == 2
    assert "xla backward causal up to 128x128, heads of 8, float32: " in printed
    assert len(_tuning.tuning("cpu").rows) == sum(row["pays"] for row in record["rows"])


def test_a_dry_run_keeps_nothing(file, times, capsys):
    times({SMALL: [1.0]})
    assert main(["tune", "attention", "--shapes", SHAPE, "--masks", "causal", "--dry"]) == 0
    assert not file.exists()
    assert "128x128 2 ms, 64x64 1 ms, 2.00x, worth keeping\n" in (out := capsys.readouterr().out)
    assert out.endswith("kept: nothing\n")


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"shapes": ["5k"]}, "there is no shape '5k'", "4k_128"),
        ({"masks": "causal"}, "masks='causal' is not a list of names", "masks=['causal']"),
        ({"implementation": "cuda"}, "implementation: there is no 'cuda'", "xla"),
        ({"implementation": 3}, "implementation: there is no 3", "xla"),
        ({"minutes": 0}, "minutes=0 is not a number above 0", "minutes=8"),
        ({"file": "/proc/no/tuning.json"}, "the file /proc/no/tuning.json cannot be", "file="),
        (
            {"keep": False, "shapes": ["1x4x1x1x8"], "masks": ["documents"]},
            "at length 4",
            "8 or more",
        ),
    ],
)
def test_what_it_does_not_know_it_says(given, what, fix):
    with refused(sx.ConfigError, what, fix) as caught:
        tuned(**given)
    assert caught.value.option == list(given)[-1]


def test_a_file_that_is_no_regular_one_is_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)  # and not /dev/null: without the check it would be gone
    with refused(sx.ConfigError, "cannot be written: [Errno 22] it is not a regular", "file="):
        tuned(file=path)
    assert path.is_fifo()


def test_without_a_place_for_the_file_it_says_so(monkeypatch):
    monkeypatch.setenv(_kept.VARIABLE, "")
    with refused(sx.ConfigError, "SHAPEEXEC_TUNING is empty", "keep=False") as caught:
        tuned()
    assert caught.value.option == "file"
