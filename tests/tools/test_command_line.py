"""`FILE:FUNCTION`, sizes, strategies and devices on command lines, and what is refused."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import shapeexec as sx
from shapeexec.__main__ import main
from shapeexec.tools import read_target
from shapeexec.tools._device import device_of
from shapeexec.tools._examples import sizes_of, specs_of_examples
from shapeexec.tools._strategies import split, strategy_of


def test_a_target_is_an_exec_or_gets_the_specs_that_examples_show(model):
    assert read_target(f"{model}:run").run.settings.strategy("s") == sx.Linear(8)
    target = read_target(f"{model}:mean")
    assert target.run.specs.in_shapes == (None, "b, s")
    assert target.arguments(s=3)[1].shape == (2, 3)
    assert target.plain is target.given
    assert read_target(f"{model}:run").plain.__name__ == "mean"
    inferring = dataclasses.replace(target, given=sx.Exec(target.plain, buckets=8))
    assert inferring.run.specs.in_shapes == (None, "b, s")
    assert inferring.run.settings.strategy("s") == sx.Linear(8)


def test_specs_hold_multiples_sums_and_trees():
    def example(b, s):
        rows = np.ones((b, 2 * s + 1, 4)), np.ones((s, 3))
        return {"w": np.ones(3), "x": rows[0]}, np.ones(2), np.ones(b + s - 1), rows[1]

    assert specs_of_examples(example, {"b": 3, "s": 5}) == (
        {"w": None, "x": "b, 2*s + 1, 4"},
        None,
        "b + s - 1",
        "s, 3",
    )


@pytest.mark.parametrize(
    ("example", "why"),
    [
        (lambda s: (np.ones(s * s),), "axis 0 of array 0 is not a multiple of it"),
        (lambda s: (np.ones(3),) * s, "the arguments have another structure"),
        (lambda s: (np.ones((1,) * s),), "the arguments have another structure"),
    ],
)
def test_examples_that_show_no_spec_are_refused(example, why):
    with pytest.raises(sx.ConfigError, match=r"arguments change with example\(s=\)") as caught:
        specs_of_examples(example, {"s": 2})
    assert caught.value.why == why
    assert "FUNCTION = sx.Exec(fn" in caught.value.fix


def test_shapes_are_all_combinations_of_sizes():
    found = sizes_of("s=5..7,9 b=1,3", {"b": 2, "s": 4, "k": 6})
    assert len(found) == 8
    assert found[0] == {"b": 1, "s": 5, "k": 6}
    assert found[-1] == {"b": 3, "s": 9, "k": 6}
    assert sizes_of(None, {"b": 2}) == [{"b": 2}]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("k=3", "--shapes k=3: there is no size 'k'."),
        ("b=1 b=2", "--shapes b=2: 'b' is given twice."),
        ("b=0", "--shapes b=0: '0' is not a size."),
        ("b=", "--shapes b=: '' is not a size."),
        ("b", "--shapes b: '' is not a size."),
        ("b=3..1", "--shapes b=3..1: '3..1' is not a size."),
        ("b=1..200 s=1..200", "--shapes b=1..200 s=1..200: 40000 combinations."),
    ],
)
def test_shapes_that_cannot_be_read_are_refused(text, what):
    with pytest.raises(sx.ConfigError) as caught:
        sizes_of(text, {"b": 1, "s": 1})
    assert caught.value.what == what
    assert caught.value.option == "shapes"


def test_strategies_are_split_at_commas_but_for_their_numbers():
    texts = ["pow2,hybrid:64,32", "geometric:1.5,ladder:8,16,30,fit:4", "pow2"]
    named = ["pow2", "hybrid:64,32", "geometric:1.5", "ladder:8,16,30", "fit:4"]
    assert split(texts) == named
    found = [strategy_of(name, fitted={"fit": lambda n: n}) for name in named]
    ladder = sx.Ladder([8, 16, 30])
    assert found == [sx.Pow2(), sx.Hybrid(64, 32), sx.Geometric(1.5), ladder, 4]


@pytest.mark.parametrize(
    ("target", "what", "fix"),
    [
        ("model.py", "'model.py' is not FILE:FUNCTION.", "such as model.py:run"),
        ("none.py:run", "there is no file none.py.", "the path of a Python file"),
        ("{}:none", "none is not there.", "name one of these"),
        ("{}:number", "number is not a function.", "name one of these"),
        ("{}:run --example none", "none is not there.", "def example(b=3"),
        ("{}:run --example no_default", "the size b has no default.", "b=100"),
        ("{}:run --example no_tuple", "returns a ndarray, not a tuple.", "return (x,)"),
        ("{}:run --example raises", "raises ZeroDivisionError: division by zero", "def example"),
        ("{}:run --shapes k=3", "there is no size 'k'.", "a..b: all from a to b"),
        ("{}:run --device abacus", "--device abacus: there is no such device.", "leave --device"),
        ("{}:run --device cpu:99", "--device cpu:99: there is no such device.", "leave --device"),
    ],
)
@pytest.mark.parametrize("tool", ["validate", "explain", "profile", "benchmark shapes"])
def test_what_cannot_be_called_ends_with_2_and_tells_the_way_out(
    tool, target, what, fix, model, capsys
):
    assert main([*tool.split(), *target.format(model).split()]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ConfigError: ")
    assert what in told
    assert fix in told
    assert "Traceback" not in told


def test_a_file_that_fails_is_told_with_its_line(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = undefined\n")
    assert main(["explain", f"{path}:run"]) == 2
    told = capsys.readouterr().err
    assert "broken.py cannot be run: NameError: name 'undefined' is not defined" in told
    assert "Where: y = undefined  (broken.py:2)" in told


def test_devices_are_named_by_platform_and_number():
    assert device_of("cpu:0") == device_of("cpu")
    assert device_of(None) is not None


@pytest.mark.parametrize(
    ("tool", "option"),
    [
        ("validate", "--json"),
        ("explain", "--json"),
        ("explain", "--html"),
        ("profile", "--json"),
        ("benchmark shapes", "--json"),
        ("benchmark shapes", "--plot"),
    ],
)
def test_a_folder_that_cannot_be_made_is_told_before_anything_runs(tool, option, tmp_path, capsys):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "x.png"
    assert main([*tool.split(), "not even a file", option, str(path)]) == 2
    assert f"{option} {path} cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_told_before_anything_runs(option, tmp_path, capsys):
    assert main(["explain", "not even a file", option, str(tmp_path)]) == 2
    assert f"{option} {tmp_path} cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plot", "plot.foo", "plot.png.bak"])
def test_a_plot_needs_the_ending_of_a_format(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    assert main(["plan", "not even a file", "--plot", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"--plot {path} does not end in the name of a format." in told
    assert ".png, or another of " in told


def test_a_line_that_is_no_python_is_told_with_its_place(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    assert main(["explain", f"{path}:run"]) == 2
    assert "Where: def f(:  (broken.py:2)" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["explain", "profile", "benchmark shapes"])
def test_a_function_that_raises_is_told_with_its_line(tool, tmp_path, capsys):
    path = tmp_path / "failing.py"
    path.write_text(
        "import numpy as np\n"
        "def run(x):\n"
        "    raise RuntimeError('no luck')\n"
        "def example(s=3):\n"
        "    return (np.ones(s, np.float32),)\n"
    )
    assert main([*tool.split(), f"{path}:run"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("ConfigError: the function raises RuntimeError: no luck")
    assert "Where: raise RuntimeError('no luck')  (failing.py:3)" in told
    assert "Why:   jax.jit of the plain function raises this at s=3, too." in told
    assert "Traceback" not in told


def test_ctrl_c_ends_with_130_and_one_word(monkeypatch, capsys):
    def interrupted(path, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("shapeexec.tools.planning._command.read_lengths", interrupted)
    assert main(["plan", "lengths.txt"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_gone_is_no_error():
    command = [sys.executable, "-m", "shapeexec", "plan", "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdout.close()
        process.stdin.write("3\n9\n")
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_explain_prints_what_exec_explain_prints(model, tmp_path, capsys):
    files = tmp_path / "new" / "page.html", tmp_path / "programs.json"
    call = ["explain", f"{model}:run", "--shapes", "s=5,9", "--program"]
    assert main([*call, "--html", str(files[0]), "--json", str(files[1])]) == 0
    printed = capsys.readouterr().out
    target = read_target(f"{model}:run")
    for size in (5, 9):
        found = target.run.explain(*target.arguments(s=size))
        assert str(found).splitlines()[0] in printed
    assert "%0 f32[b,s] = mul" in printed
    page = files[0].read_text()
    assert page.count("<table>") == 2
    assert "<h2>b=2, s=9</h2>" in page
    programs = json.loads(files[1].read_text())["programs"]
    assert list(programs) == ["b=2, s=5", "b=2, s=9"]
    assert programs["b=2, s=9"]["sizes"] == {"b": 2, "s": 9}
