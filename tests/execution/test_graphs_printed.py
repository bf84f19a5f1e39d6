"""How `run.graphs` looks: as a table, as JSON, and as a picture."""

import copy
import dataclasses
import io
import json
import pickle
import sys

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

import shapeexec as sx
from shapeexec.execution import _table
from tests.execution.graph_tables import made
from tests.execution.support import ones, refused

P = sx.Pow2()
L = sx.Linear


@pytest.fixture
def without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)


# Printing


def wide(count=12):
    """Graphs with long names, many symbols and constants."""

    def fn(options, x):
        return x.sum() if x.shape[0] > 4 else x.max()

    spec = ", ".join(f"a_symbol_of_long_name_{i}" for i in range(5))
    ex = sx.Exec(fn, (None, spec), buckets=L(8))
    for i in range(count):
        options = {"a_long_name_of_an_option" * 3: "v" * 200, "second": f"[b]value {i}[/b]"}
        ex(options, ones(3 + i % 3, 1, 1, 1, 1).astype(np.float16 if i % 2 else np.float32))
    return ex.graphs


@pytest.mark.parametrize("columns", [(), ("parts", "hits"), ("buckets",)])
def test_the_table_fits_110_columns_and_loses_nothing_that_tells_graphs_apart(
    columns, request, monkeypatch
):
    graphs = wide()
    with_rich = graphs.table(*columns)
    request.getfixturevalue("without_rich")
    plain = graphs.table(*columns)
    for text in (with_rich, plain):
        assert max(map(len, text.splitlines())) <= _table.WIDTH
        if "parts" in columns:
            assert all(f"[b]value {i}[/b]" in text for i in range(12))
            assert "f16" in text
    assert ("─" in with_rich, "─" in plain) == (True, False)


@pytest.mark.usefixtures("without_rich")
def test_the_table_without_rich_has_each_cell():
    ex = made()
    ex(ones(3, 5, 2))
    ex(ones(3, 6, 2))
    ex(ones(3, 9, 2), mode="max")
    text = ex.graphs.table("buckets", "parts", "hits", "waste", "origin")
    assert text.splitlines() == [
        "2 graphs, 1 hit, 53.1% padding:",
        "  args[0]: f32[b,s,2]",
        "#  buckets    parts       hits  waste  origin",
        "---------------------------------------------",
        "0  b=4, s=8                  1  48.4%    made",
        "1  b=4, s=16  mode='max'     0  57.8%    made",
    ]


def test_the_empty_table_prints():
    assert str(made().graphs) == "0 graphs, 0 hits"


def test_a_column_that_is_none_is_refused():
    with refused(sx.ConfigError, "table: there is no column 'speed'.", "one of buckets, parts"):
        made().graphs.table("hits", "speed")


def test_rich_draws_the_table_itself():
    ex = made()
    ex(ones(3, 5, 2))
    console = Console(width=100, file=io.StringIO())
    console.print(ex.graphs)
    assert "b=4, s=8" in console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_340_000, "2.34 MB"), (5e15, "5e+03 TB")],
)
def test_bytes_are_told_in_units(count, text):
    assert _table.bytes_text(count) == text


def test_json_holds_every_row():
    ex = made()
    ex(ones(3, 5, 2), mode="max")
    ex(ones(3, 5, 2), mode="max")
    ((row,),) = json.loads(ex.graphs.to_json()).values()
    assert row["buckets"] == {"b": 4, "s": 8}
    assert row["constants"] == {"mode": "'max'"}
    assert (row["hits"], row["waste"], row["origin"]) == (1, 1 - 15 / 32, "made")
    assert set(row["bytes"]) == {"code", "temporaries", "inputs", "outputs"}
    assert set(row["seconds"]) == {"trace", "check", "mask", "lower", "compile", "load"}
    told = {field.name for field in dataclasses.fields(sx.GraphRow)}
    assert told - row.keys() == {"key", "is_ragged", "trace", "exactness", "compiled"}


# The picture


def test_the_picture_shows_hits_data_and_padding():
    ex = made()
    for shape in ((4, 9, 2), (1, 5, 2), (1, 6, 2), (4, 10, 2), (4, 16, 2)):
        ex(ones(*shape))
    figure = ex.graphs.plot()
    left, right = figure.axes
    labels = [text.get_text() for text in left.get_yticklabels()]
    assert labels == ["b=1, s=8", "b=4, s=16"]  # in the order of buckets
    assert [bar.get_width() for bar in left.containers[0]] == [1, 2]
    data, padding = ([bar.get_width() for bar in bars] for bars in right.containers)
    assert data == [2 * 11, 8 * (9 + 10 + 16)]
    assert padding == [2 * 16 - 22, 3 * 128 - 280]
    assert "27.4% padding" in right.get_title()


def test_a_picture_of_many_graphs_joins_those_of_little_use():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8))
    ex(ones(3))
    (row,) = ex.graphs
    rows = tuple(
        dataclasses.replace(row, buckets={"s": i}, valid_elements=i, bucket_elements=2 * i, hits=1)
        for i in range(1, 101)
    )
    left, right = sx.Graphs(rows).plot().axes
    labels = [text.get_text() for text in left.get_yticklabels()]
    assert labels[0].startswith("s=62")
    assert labels[-1] == "61 others"
    assert [bar.get_width() for bar in left.containers[0]][-1] == 61
    assert sum(bar.get_width() for bar in right.containers[0]) == 5050


def test_the_picture_goes_into_a_figure_that_is_given():
    ex = made()
    ex.warmup(ones(1, 1, 2), b=2, s=8)
    figure = mpl.figure.Figure()
    assert ex.graphs.plot(figure) is figure
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts == ["not run"]


def test_a_graph_is_found_by_dims_and_by_integers_of_numpy():
    ex = sx.Exec(lambda x: x.sum(), ("s",))
    ex(ones(5))
    graphs = ex.graphs
    assert graphs[{sx.SEQ_LEN: np.int64(6)}] is graphs[np.int64(-1)] is graphs[0]
    for which in ({"s": "6"}, {"s": 6.0}, {"s": True}):
        with refused(sx.ConfigError, f"graphs[{which!r}] names no graph.", "a number, graphs[0]"):
            graphs[which]


def test_graphs_are_copied_as_they_are_and_say_that_they_cannot_be_pickled():
    ex = sx.Exec(lambda x: x.sum(), ("s",))
    ex(ones(5))
    graphs = ex.graphs
    for again in (copy.copy(graphs), copy.deepcopy(graphs)):
        assert again == graphs
        assert again[0] is graphs[0]
    assert copy.copy(graphs[0]) is graphs[0]
    with refused(sx.ConfigError, "cannot be pickled", "graphs.to_json()") as told:
        pickle.dumps(graphs)
    assert told.value.got == f"the graph {graphs[0]}"


def test_a_picture_is_drawn_in_a_figure():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    ex = sx.Exec(lambda x: x.sum(), ("s",))
    ex(ones(5))
    figure = pyplot.figure()
    with refused(sx.ConfigError, "is not a figure.", "plot(plt.figure())"):
        ex.graphs.plot(figure.gca())
    assert ex.graphs.plot(figure) is figure
    pyplot.close(figure)


def test_a_picture_of_nothing_or_without_matplotlib_is_an_error(monkeypatch):
    ex = made()
    with refused(sx.ConfigError, "plot: there are no graphs.", "warm it up"):
        ex.graphs.plot()
    ex(ones(3, 5, 2))
    monkeypatch.setitem(sys.modules, "shapeexec.execution._plot", None)
    with refused(sx.ConfigError, "plot: matplotlib is not installed.", "pip install matplotlib"):
        ex.graphs.plot()
