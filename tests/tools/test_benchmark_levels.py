"""`benchmark levels`: each level computes the same, and what is interpreted is not timed."""

import json

import jax
import matplotlib as mpl
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.masking import _registry
from shapeexec.tools import ContestRow, LevelsReport, benchmark_levels
from shapeexec.tools.benchmark.levels import _command, _kernels
from shapeexec.tools.benchmark.levels._plot import save_plot
from shapeexec.tools.benchmark.models._transformer import gelu, layer_norm
from tests.tolerance import assert_close

NAMES = ["op by op", "jax.jit", "AOT", "Exec", "Exec, attention", "Exec, own kernels"]
NAMES += ["Exec, options"]


@pytest.mark.slow
def test_the_command_runs_each_level_and_compares(tmp_path, capsys):
    file = tmp_path / "levels.json"
    call = ["benchmark", "levels", "--quick", "--shapes", "b=2 s=5,6", "--rounds", "1"]
    written = ["--json", str(file), "--plot", str(tmp_path / "levels.png")]
    assert main([*call, *written, "--options", "xla_cpu_prefer_vector_width=256"]) == 0
    assert (tmp_path / "levels.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.endswith("all answers equal\n")
    record = json.loads(file.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == NAMES
    assert [rows[name]["graphs"] for name in NAMES] == [None, 2, 2, 1, 1, 1, 1]
    assert rows["jax.jit"]["speed_up"] == 1
    assert "xla_cpu_prefer_vector_width=256" in rows["Exec, options"]["note"]
    if jax.default_backend() != "gpu":
        assert rows["Exec, own kernels"]["warm_seconds"] is None
        assert "not timed: Pallas interprets" in rows["Exec, own kernels"]["note"]
    assert not {"pallas_layer_norm", "pallas_gelu"} & _registry.RULES.keys()


def test_levels_are_drawn_with_those_that_were_not_timed(tmp_path, monkeypatch, capsys):
    rows = (
        ContestRow("jax.jit", "", warm_seconds=1.0, cold_seconds=3.0),
        ContestRow("own", "", note="not timed", cold_seconds=1.0),
    )
    report = LevelsReport("small_transformer", rows, ({"s": 3},))
    monkeypatch.setattr(_command, "benchmark_levels", lambda *args, **kwargs: report)
    file, plot = tmp_path / "levels.json", tmp_path / "levels.png"
    assert main(["benchmark", "levels", "--json", str(file), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert json.loads(file.read_text())["rows"] == json.loads(json.dumps(report.to_dict()))["rows"]
    svg = tmp_path / "levels.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        save_plot(report, svg)
    for label in (">jax.jit<", ">own (not timed)<", ">compiling, s<"):
        assert label in svg.read_text()


def test_own_kernels_are_exact_under_poisoned_padding():
    x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
    scale = np.linspace(1, 2, 8, dtype=np.float32)
    with _kernels.rules():
        run = sx.Exec(
            lambda x, scale: _kernels.gelu(_kernels.norm(x, scale)), ("b, s, 8", None), poison="nan"
        )
        assert_close(run(x, scale), gelu(layer_norm(x, scale)))
        ragged = sx.Exec(_kernels.gelu, ("s",))
        with pytest.raises(sx.UnsupportedPrimitiveError, match="pallas_gelu") as caught:
            ragged(x[0, 0])
    assert "its last axis is ragged" in str(caught.value)


def test_what_is_not_timed_has_no_speed_up():
    rows = (
        ContestRow("jax.jit", "", warm_seconds=1.0, cold_seconds=3.0),
        ContestRow("Exec", "", warm_seconds=2.0, cold_seconds=3.0, graphs=1),
        ContestRow("own", "", note="not timed", differences=("{'s': 3}: other",)),
    )
    report = LevelsReport("small_transformer", rows, ({"s": 3},))
    assert [report.speed_up(row) for row in rows] == [1.0, 0.5, None]
    assert not report.are_equal
    assert "own differs at {'s': 3}: other" in str(report)
    assert "own: not timed" in str(report)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--config rnn", "--config rnn is not a transformer"),
        ("--config none", "--config none: there is no such model."),
        ("--rounds 0", "rounds=0 is not >= 1."),
        ("--options x", "--options x is not NAME=VALUE."),
        ("--buckets pow3", "'pow3' is not a strategy."),
        ("--shapes k=3", "--shapes k=3: there is no size 'k'."),
        ("--device abacus", "--device abacus: there is no such device."),
    ],
)
def test_what_the_command_cannot_do_ends_with_2(options, what, capsys):
    assert main(["benchmark", "levels", "--quick", *options.split()]) == 2
    assert what in capsys.readouterr().err


def test_a_model_that_has_no_attention_is_refused():
    with pytest.raises(sx.ConfigError) as caught:
        benchmark_levels("dense_linear")
    assert "small_transformer" in caught.value.fix
