"""`benchmark shapes`: who ran what, with which answers, and what the figures are made of."""

import importlib.util
import json

import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.tools import ClaimRow, ContestRow, ShapesReport, benchmark_shapes
from shapeexec.tools.benchmark.models import config_target
from shapeexec.tools.benchmark.shapes import _run
from shapeexec.tools.comparing import _compare


def product(w, x):
    return jnp.tanh(x @ w).sum(axis=1)


RUN = sx.Exec(product, (None, "s, 4"))
W = np.ones((4, 4), np.float32)
CALLS = [(W, np.ones((size, 4), np.float32)) for size in (3, 5, 6, 7)]


@pytest.fixture(autouse=True)
def known_speed(monkeypatch):
    """Measuring the device takes seconds, and is tested where it is done."""
    speed = sx.Speed(seconds_per_flop=1e-11, seconds_per_byte=1e-10)
    monkeypatch.setattr(_run, "speed_of", lambda device: speed)
    monkeypatch.setattr(_run, "_WIDTHS", {"cpu": 64})


def test_the_peak_is_that_of_a_matrix_product():
    assert 1e6 < _run.peak_flops() < 1e17


def test_each_contestant_begins_with_nothing_and_answers_alike():
    told, compare = [], ["pow2", "fit:1", "linear:2"]
    report = benchmark_shapes(
        RUN, CALLS, compare=compare, keep={"k": "exact"}, rounds=1, tell=told.append
    )
    assert [row.graphs for row in report.rows] == [4, 2, 1, 3]
    assert [row.source for row in report.rows[1:]] == [
        "s: sx.Pow2()",
        "s: sx.Ladder((7,))",
        "s: sx.Linear(2)",
    ]
    assert report.are_equal
    assert RUN.cache_size == 0  # it has been asked, and not called
    assert len(told) == 4
    products = 2 * 4 * 4 * sum((3, 5, 6, 7))
    assert products <= report.flops <= 2 * products
    pow2 = report.rows[1]
    assert pow2.waste == pytest.approx(1 - 21 / (4 + 3 * 8))
    assert report.utilisation(pow2) == report.flops / pow2.warm_seconds / report.peak_flops
    assert pow2.run_bytes > report.rows[0].run_bytes > 0
    assert pow2.compile_seconds == pow2.cold_seconds - pow2.warm_seconds


def test_benchmarks_are_found_when_they_are_asked_for():
    assert set(sx.tools._LATE) <= set(sx.tools.__all__)
    assert sx.tools.benchmark_shapes is benchmark_shapes
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sx.tools.nothing


def test_symbols_that_are_kept_keep_their_strategy():
    run = sx.Exec(lambda x: x * 2, ("b, s",))
    calls = [(np.ones((3, size), np.float32),) for size in (5, 9)]
    report = benchmark_shapes(run, calls, compare=["linear:8"], keep={"b": "pow2"}, rounds=1)
    assert report.rows[1].source == "b: sx.Pow2(), s: sx.Linear(8)"


def test_an_answer_that_differs_is_told(monkeypatch):
    monkeypatch.setattr(_compare._closeness, "difference", lambda a, b: "another one")
    monkeypatch.setattr(_compare._closeness, "is_rounding", lambda *args, **how: False)
    report = benchmark_shapes(RUN, CALLS[:1], compare=["pow2"], rounds=1)
    assert not report.are_equal
    assert report.rows[0].differences == ()
    assert "pow2 differs at {'s': 3}: the array is another one" in str(report)
    assert str(report).endswith("1 answers differ")


def test_claims_stand_beside_the_strategy_that_comes_nearest():
    rows = (
        ContestRow("jax.jit", "", cold_seconds=12.0, warm_seconds=1.0, run_bytes=100),
        ContestRow("pow2", "", cold_seconds=3.0, warm_seconds=2.0, run_bytes=150),
        ContestRow("exact", "", cold_seconds=6.0, warm_seconds=0.5, run_bytes=105),
    )
    report = ShapesReport(rows, ({"s": 3},), 1.0, 1.0)
    assert report.claims() == (
        ClaimRow("3x as fast, compiles included", "pow2", 4.0, True),
        ClaimRow("3x as fast, once compiled", "exact", 2.0, False),
        ClaimRow("memory of a run: below 10 % more", "exact", pytest.approx(0.05), True),
    )
    assert ShapesReport(rows[:1], (), 1.0, 1.0).claims() == ()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"calls": []}, "calls=0, rounds=1: nothing would run."),
        ({"rounds": 0}, "calls=4, rounds=0: nothing would run."),
        ({"compare": ["pow3"]}, "compare='pow3' is not a strategy."),
        ({"compare": ["fit"]}, "compare='fit' is not a fitted ladder."),
    ],
)
def test_what_cannot_run_is_refused(options, what):
    calls = options.pop("calls", CALLS)
    with pytest.raises(sx.ConfigError) as caught:
        benchmark_shapes(RUN, calls, **{"rounds": 1, "compare": ["pow2"], **options})
    assert caught.value.what == what


def test_without_an_axis_that_changes_there_is_nothing_to_compare():
    run = sx.Exec(product, (None, None))
    with pytest.raises(sx.ConfigError, match=r"no size of Exec\(product, 0 graphs\) changes"):
        benchmark_shapes(run, CALLS)


def test_the_command_prints_writes_and_draws(tmp_path, capsys):
    file, plot = tmp_path / "a" / "shapes.json", tmp_path / "b" / "shapes.png"
    call = ["benchmark", "shapes", "--config", "dense_linear", "--quick", "--rounds", "1"]
    call += ["--compare", "pow2,fit:2", "--json", str(file)]
    if importlib.util.find_spec("matplotlib"):
        call += ["--plot", str(plot)]
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "dense_linear: 4 shapes, " in out
    assert out.endswith("all answers equal\n")
    record = json.loads(file.read_text())
    assert record["command"] == " ".join(["python -m shapeexec", *call])
    assert {"cpu", "jax", "device"} <= record["machine"].keys()
    assert [row["name"] for row in record["rows"]] == ["jax.jit", "pow2", "fit:2"]
    assert {"speed_up_cold", "speed_up_warm", "utilisation"} <= record["rows"][1].keys()
    assert plot.exists() == ("--plot" in call)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--config none", "--config none: there is no such model."),
        ("model.py:run --config rnn", "model.py:run and --config rnn: only one of them can run."),
        ("--keep b", "--keep b is not SYMBOL=STRATEGY."),
        ("--config rnn --keep x=exact", "--keep x=exact: there is no symbol 'x'."),
        ("--config dense_linear --keep b=exact", "--keep b=exact leaves no symbol to compare"),
        ("--compare pow3", "compare='pow3' is not a strategy."),
        ("--shapes h=3", "--shapes h=3: there is no size 'h'."),
        ("--device abacus", "--device abacus: there is no such device."),
    ],
)
def test_what_the_command_cannot_do_ends_with_2(options, what, capsys):
    assert main(["benchmark", "shapes", "--quick", *options.split()]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("name", ["small_transformer", "vision_cnn", "rnn", "dense_linear"])
def test_ready_made_models_trace_and_small_ones_are_small(name):
    target, shapes = config_target(name, is_quick=True)
    assert len(shapes.split()) == len(target.defaults)
    args = target.arguments(**dict.fromkeys(target.defaults, 3))
    assert target.run.plan(*args).sizes == dict.fromkeys(target.defaults, 3)
    assert target.run.cost_model(*args)(**dict.fromkeys(target.defaults, 3)).flops > 0
