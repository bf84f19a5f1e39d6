"""Each example runs, gives the unpadded results, and compiles as few graphs as it says."""

import functools
import importlib
import pathlib
import re
import runpy
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from tests.marks import marked_slow
from tests.tolerance import FEW, SUMS, tolerance

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES, DOCS = ROOT / "examples", ROOT / "docs"
GRAPHS = {
    "audio_strided": 1,
    "cnn": 5,
    "embedding": 2,
    "mixed_precision": 1,
    "ragged_batch": 3,
    "resnet_mixed_sizes": 1,
    "state_space": 2,
    "train_last_batch": 1,
    "train_module": 2,
    "transformer": 3,
    "video_frames": 4,
    "watch_the_cache": 4,
}
SLOW = {
    "mixed_precision",
    "ragged_batch",
    "resnet_mixed_sizes",
    "state_space",
    "train_module",
    "transformer",
}
DTYPES = {"mixed_precision": "bfloat16"}  # of the others float32
MOST_LINES = 60

NOTEBOOKS = ("graphs", "images", "language_model", "serving")


@functools.cache
def run(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


@pytest.mark.parametrize("name", marked_slow(GRAPHS, SLOW))
def test_an_example_is_exact_and_compiles_few_graphs(name: str) -> None:
    figures = run(name)
    assert figures["graphs"] == GRAPHS[name]
    assert figures["graphs"] < figures["sizes"]
    assert figures["error"] < tolerance(DTYPES.get(name, "float32"), loose=FEW)


def test_zero_padding_without_masks_is_wrong_where_the_examples_say_so() -> None:
    assert run("train_last_batch")["naive_error"] > 0.1
    embedding = run("embedding")
    assert embedding["leak"] == 0
    assert embedding["naive_leak"] > 0.1


def test_no_call_of_a_warmed_example_misses() -> None:
    assert run("watch_the_cache")["misses"] == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_an_example_is_short(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES


@pytest.mark.slow
def test_masters_stay_wide_while_products_are_narrow() -> None:
    losses = run("mixed_precision")["losses"]
    assert losses[-2] < 0.6 * losses[0]


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """Where a notebook that runs as a quick script puts its plot."""
    path = tmp_path / "plot.png"
    mpl.use("agg")
    monkeypatch.setattr(sys, "argv", ["notebook", "--quick", "--plot", str(path)])
    monkeypatch.syspath_prepend(EXAMPLES / "notebooks")
    monkeypatch.delitem(sys.modules, "beside", raising=False)  # it read the arguments of another
    return path


@pytest.mark.parametrize("name", marked_slow(NOTEBOOKS, NOTEBOOKS))
def test_the_ways_of_a_notebook_have_equal_answers_and_are_drawn(
    name: str, plot: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(EXAMPLES / "notebooks" / f"{name}.py"))
    exact, by_hand, with_library, *_ = ways = names["ways"]
    apart = [names["beside"].difference(way.results, exact.results) for way in ways[1:]]
    assert max(apart) < tolerance("float32", loose=SUMS)
    assert with_library.lines < by_hand.lines
    assert with_library.graphs == by_hand.graphs <= exact.graphs
    printed = capsys.readouterr().out
    assert all(way.name in printed for way in ways)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("plot")
def test_a_table_of_ways_refuses_another_answer() -> None:
    beside = importlib.import_module("beside")
    truth = np.array([1.0, 3.0], np.float32)
    ways = {
        scale: beside.Way(name="a", lines=1, cold=[1], warm=[1], results=[scale * truth], graphs=1)
        for scale in (1, 0.5, np.nan)
    }
    beside.table([ways[1]], truth=[truth])
    for scale, gap in [(0.5, "0.5"), (np.nan, "nan")]:
        with pytest.raises(AssertionError, match=f"a is off by {gap}"):
            beside.table([ways[1], ways[scale]], truth=[truth])


@pytest.mark.usefixtures("plot")
def test_lines_of_code_are_counted_without_blank_ones_and_comments() -> None:
    beside = importlib.import_module("beside")

    def counted(x):
        # Not a line of code.

        return x  # one

    assert beside.lines(counted) == 2
    assert beside.lines(counted, counted) == 4


def test_a_notebook_opens_as_one() -> None:
    for name in NOTEBOOKS:
        text = (EXAMPLES / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
        assert text.startswith("# %% [markdown]\n# # ")
        assert text.count("\n# %%\n") >= 5


def test_the_page_of_examples_is_filled() -> None:
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    tables = dict(
        re.findall(r"^<!-- (\w+) -->\n+```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    )
    assert sorted(tables) == [*NOTEBOOKS]
    for name, printed in tables.items():
        assert "cold, s" in printed, name
        assert "\nsx.Exec" in printed, name
    assert not re.search(r"@[A-Z]+@", page)


def test_the_page_of_examples_shows_each_notebook_with_its_plot() -> None:
    made = runpy.run_path(str(DOCS / "make_examples.py"))
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    assert sorted(made["names"](page)) == [*NOTEBOOKS]
    for name in NOTEBOOKS:
        assert f"](images/example_{name}.png)" in page
        filled = made["filled"](page, name, printed="1 graph\n")
        assert filled.count(f"<!-- {name} -->\n\n```text\n1 graph\n```\n") == 1
        others = [other for other in NOTEBOOKS if other != name]
        assert all(f"<!-- {other} -->\n\n```text\n1 graph" not in filled for other in others)
