"""The cache as a table: what tells graphs apart, what has run in them, and why a call is new."""

import builtins
import copy
import dataclasses
import gc
import io
import json
import pickle
import sys
import threading
import weakref

import jax
import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

import shapeexec as sx
from shapeexec.execution import _table, _transfer
from tests.execution.support import counted, ones, refused

mpl.use("Agg")

P = sx.Pow2()
L = sx.Linear


def total(x, mode="sum"):
    return x.sum() if mode == "sum" else x.max()


def made(**options):
    """An Exec with a graph per dtype, constant and bucket that tests ask for."""
    return sx.Exec(total, ("b, s, 2",), {"b": P, "s": L(8)}, static_argnames=("mode",), **options)


@pytest.fixture
def without_rich(monkeypatch):
    original = builtins.__import__

    def refusing(name, *args, **kwargs):
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refusing)


# Rows


def test_a_row_tells_what_names_its_graph():
    ex = made()
    ex(ones(3, 5, 2), mode="max")
    (row,) = ex.graphs
    assert row.buckets == {"b": 4, "s": 8}
    assert row.least == {"b": 3, "s": 1}
    assert row.signature == ("args[0]: f32[b,s,2]",)
    assert row.constants == {"mode": "'max'"}
    assert (row.guards, row.exact, row.shardings) == ((), {}, {})
    assert (row.examples, row.reduce, row.origin) == (None, None, "made")
    assert row.sizes == "b=4, s=8"
    assert str(row).startswith("b=4, s=8: args[0]: f32[b,s,2]; mode='max'; made, 0 hits")


def test_graphs_that_differ_in_dtype_fixed_dim_or_constant_print_apart():
    ex = sx.Exec(total, ("s, ...",), L(8), static_argnames=("mode",))
    ex(ones(3, 2))
    ex(ones(3, 2).astype(np.float16))
    ex(ones(3, 4))
    ex(ones(3, 2), mode="max")
    lines = ex.graphs.table("parts").splitlines()[-4:]
    assert len({line.split(maxsplit=1)[1] for line in lines}) == 4
    assert "f16[s,2]" in lines[1]
    assert "f32[s,4]" in lines[2]
    assert "mode='max'" in lines[3]


def test_graphs_of_two_functions_of_one_name_print_apart():
    ex = sx.Exec(lambda f, x: f(x).sum(), (None, "s"), L(8))
    functions = [eval("lambda x: x + 1"), eval("lambda x: x + 2")]
    for function in functions:
        ex(function, ones(3))
    first, second = ex.graphs.table("parts").splitlines()[-2:]
    assert first.split(maxsplit=1)[1] != second.split(maxsplit=1)[1]


def test_guards_exact_sizes_and_devices_are_told():
    def fn(x):
        return x.sum() * 2 if x.shape[0] > 6 else x.sum()

    ex = sx.Exec(fn, ("s, t",), {"s": L(8)})
    ex(jax.device_put(ones(3, 5), jax.devices()[0]))
    (row,) = ex.graphs
    assert row.guards == ("s <= 6",)
    assert row.exact == {"t": 5}
    assert row.sizes == "s=8, t=5 exact"
    assert row.shardings == {"args[0]": "cpu:0"}
    assert "args[0] on cpu:0" in row.named


def test_a_pinned_symbol_has_its_size_for_a_bucket():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] == 5 else x.max(), ("s",), L(8))
    ex(ones(5))
    (row,) = ex.graphs
    assert (row.buckets, row.least, row.guards) == ({"s": 5}, {"s": 5}, ("s == 5",))


def test_a_graph_of_map_tells_how_many_examples_it_takes():
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8))
    ex.map([ones(3), ones(5), ones(2)], reduce="sum")
    (row,) = ex.graphs
    assert (row.examples, row.reduce, row.sizes) == (4, "sum", "map of 4: s=8")
    assert "summed" in row.named
    assert (row.real_elements, row.bucket_elements) == (3 + 5 + 2, 4 * 8)


def test_constants_inside_arguments_are_told_by_their_place():
    ex = sx.Exec(lambda d, x: x.sum() * d["scale"], (None, "s"), L(8))
    ex({"scale": ones(1), "name": "first", "depth": (1, 2)}, ones(3))
    assert ex.graphs[0].constants["args[0]['name']"] == "'first'"
    assert ex.graphs[0].signature[0] == "args[0]['depth'][0]: i32[] weak"
    assert ex.graphs[0].signature[2] == "args[0]['scale']: f32[1]"


def test_trees_of_constants_are_no_constants_but_tell_calls_apart():
    ex = sx.Exec(lambda d, x: x.sum(), (None, "s"), L(8))
    ex({"name": "first", "more": ()}, ones(3))
    assert ex.graphs[0].constants == {"args[0]['name']": "'first'"}
    told = ex.why_new({"name": "first", "more": []}, ones(3))
    assert any(part.startswith("the tree of args[0]: ") for part in told.differences)


def test_hits_last_use_and_waste_are_those_of_the_graph():
    ex = made()
    for shape in ((1, 5, 2), (1, 6, 2), (2, 8, 2), (1, 7, 2)):
        ex(ones(*shape))
    first, second = ex.graphs
    assert (first.hits, second.hits) == (2, 0)
    assert first.hits + second.hits == ex.stats.hits
    assert (first.real_elements, first.bucket_elements) == (2 * (5 + 6 + 7), 3 * 16)
    assert first.waste == 1 - 36 / 48
    assert second.waste == 0
    assert first.last_use is not None
    assert second.last_use is not None
    assert 0 <= first.last_use < second.last_use


def test_a_row_of_warmup_says_so_and_was_never_used():
    ex = made()
    ex.warmup(ones(1, 1, 2), b=2, s=8)
    (row,) = ex.graphs
    assert (row.origin, row.hits, row.last_use, row.waste) == ("warmup", 0, None, 0)
    ex(ones(2, 8, 2))
    assert (ex.graphs[0].origin, ex.graphs[0].hits) == ("warmup", 1)


def test_looking_at_the_table_uses_no_graph():
    ex = made(limits=sx.CacheLimits(graphs=2))
    ex(ones(1, 5, 2))
    ex(ones(2, 5, 2))
    assert [row.sizes for row in ex.graphs] == ["b=1, s=8", "b=2, s=8"]
    ex(ones(4, 5, 2))  # the first leaves, as if nobody had looked
    assert [row.sizes for row in ex.graphs] == ["b=2, s=8", "b=4, s=8"]


def test_rows_stand_in_the_order_in_which_graphs_were_made():
    ex = made()
    for batch in (4, 1, 2, 4):
        ex(ones(batch, 5, 2))
    assert [row.buckets["b"] for row in ex.graphs] == [4, 1, 2]


def test_a_table_stays_as_it_was():
    ex = made()
    ex(ones(1, 5, 2))
    before = ex.graphs
    ex(ones(1, 5, 2))
    ex.clear()
    assert (len(before), before[0].hits, len(ex.graphs)) == (1, 0, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before[0].hits = 3


def test_bytes_are_what_xla_tells():
    ex = sx.Exec(lambda x: x + 1, ("s",), L(8))
    ex(ones(3))
    (row,) = ex.graphs
    assert row.bytes is not None
    assert row.bytes.inputs >= 8 * 4
    assert row.bytes.outputs == 8 * 4
    assert row.bytes.total == sum(dataclasses.asdict(row.bytes).values())
    assert row.bytes.code + row.bytes.temporaries == ex.stats.device_bytes


def test_seconds_are_told_by_stage_and_traces_are_shared():
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8))
    ex(ones(3))
    ex(ones(9))
    first, second = (row.seconds for row in ex.graphs)
    assert min(dataclasses.astuple(first)) > 0
    assert first.trace == second.trace
    stages = first.trace + first.mask + first.lower
    assert first.total == pytest.approx(stages + max(first.check, first.compile))
    assert first.compile + second.compile == pytest.approx(ex.stats.compile_seconds)


def test_a_row_gives_the_program_and_its_cost():
    ex = sx.Exec(lambda x: x @ x.T, ("s, 4",), L(8))
    ex(ones(3, 4))
    row = ex.graphs[0]
    with counted() as count:
        assert "f32[8,4]" in row.hlo()
        assert row.cost()["flops"] >= 2 * 8 * 8 * 4
    assert count.compilations == 0


def test_a_method_shares_its_table():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @sx.bucketed(("s",), L(8))
        def __call__(self, x):
            return x.sum() * self.scale

    model = Model(ones(1))
    model(ones(3))
    (row,) = type(model).__call__.graphs
    assert row.sizes == "s=8"
    assert not type(model).__call__.why_new(model, ones(4)).is_new


def test_hits_of_many_threads_are_all_counted():
    ex = sx.Exec(lambda x: x + 1, ("s",), L(8))
    ex(ones(3))

    def work():
        for _ in range(50):
            ex(ones(3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    (row,) = ex.graphs
    assert (row.hits, row.real_elements, row.bucket_elements) == (200, 3 * 201, 8 * 201)


# Choosing a row


def test_a_row_is_chosen_by_number_or_by_sizes():
    ex = made()
    ex(ones(1, 5, 2))
    ex(ones(4, 9, 2))
    graphs = ex.graphs
    assert graphs[-1] is graphs[1] is graphs[{"b": 3, "s": 16}]
    assert graphs[{"s": 8, "b": 1}] is graphs[0]
    assert list(graphs) == [graphs[0], graphs[1]]


def test_sizes_choose_by_guards_too():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] > 6 else x.max(), ("s",), L(8))
    ex(ones(3))
    ex(ones(7))
    assert ex.graphs[{"s": 6}].guards == ("s <= 6",)
    assert ex.graphs[{"s": 8}].guards == ("s > 6",)


def test_what_names_no_row_is_told():
    ex = made()
    with refused(sx.ConfigError, "graphs: none serves b=1, s=1.", "a size for each symbol"):
        ex.graphs[{"b": 1, "s": 1}]
    with refused(sx.GraphIndexError, "graphs[0] is not among 0 graphs: there is none", "call the"):
        ex.graphs[0]
    ex(ones(4, 5, 2))
    ex(ones(4, 5, 2), mode="max")
    what = "graphs[2] is not among 2 graphs: they are numbered 0 to 1"
    with refused(sx.GraphIndexError, what, "graphs[0] to graphs[1]") as told:
        ex.graphs[2]
    assert isinstance(told.value, IndexError)
    assert (told.value.index, told.value.count) == (2, 2)
    with refused(sx.ConfigError, "graphs: none serves b=2, s=8.", "a size for each symbol"):
        ex.graphs[{"b": 2, "s": 8}]  # in the bucket of 2
    with refused(sx.ConfigError, "graphs: none serves s=8.", "a size for each symbol"):
        ex.graphs[{"s": 8}]
    with refused(sx.ConfigError, "b=4, s=8 are sizes of 2 graphs.", "by number, such as graphs[0]"):
        ex.graphs[{"b": 4, "s": 8}]
    for which in ("s", 1.0, True, None):
        with refused(sx.ConfigError, f"graphs[{which!r}] names no graph.", "a number, graphs[0]"):
            ex.graphs[which]


# Printing


def wide(count=12):
    """Graphs with long names, many symbols and constants."""

    def fn(options, x):
        return x.sum() if x.shape[0] > 4 else x.max()

    spec = ", ".join(f"a_symbol_of_long_name_{i}" for i in range(5))
    ex = sx.Exec(fn, (None, spec), L(8))
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
    assert set(row["seconds"]) == {"trace", "check", "mask", "lower", "compile"}
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
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8))
    ex(ones(3))
    (row,) = ex.graphs
    rows = tuple(
        dataclasses.replace(row, buckets={"s": i}, real_elements=i, bucket_elements=2 * i, hits=1)
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
    with refused(sx.ConfigError, "is no figure.", "plot(plt.figure())"):
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


# Keys


def test_a_key_prints_what_names_it():
    ex = made()
    key = ex.plan(ones(3, 5, 2), mode="max").key
    assert str(key) == "b<=4, s<=8: args[0] f32[b,s,2]; mode='max'; trace 0"
    assert repr(key) == f"Key({key})"
    assert str(ex.plan(ones(3, 5, 2).astype(np.int32)).key).startswith("b<=4, s<=8: args[0] i32[")
    assert str(ex.plan(ones(0, 5, 2)).key).startswith("b=0 exact, s<=8: args[0] f32[b,s,2]")
    assert str(ex.plan(ones(3, 5, 2)).kind).startswith("no sizes: args[0] f32[b,s,2]")


def test_a_key_of_map_and_of_constants_of_all_kinds_prints():
    ex = sx.Exec(lambda x, options: x.sum(), ("s", None), L(8), static_argnums=1)
    options = (1, 2.5, True, frozenset({"a"}), "text", None, total)
    ex(ones(3), options)
    told = "(1, 2.5, True, {'a'}, 'text', None, tota"
    assert f"args[1]={told[:37]}..." in str(ex.graphs[0].key)
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8))
    ex.map([ones(3)], reduce="sum")
    assert str(ex.graphs[0].key) == "map of 1, summed, s<=8: args[0] f32[s]; trace 0"


# The graph of sizes


def apart_at_five(x):
    return x.sum() if type(x.shape[-1]) is int and x.shape[-1] == 5 else x.max()


@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes")
def test_sizes_that_run_exactly_are_those_of_no_other_graph():
    ex = sx.Exec(apart_at_five, ("b, s",), L(8), check="sizes")
    ex(ones(2, 6))
    assert ex.graphs[{"b": 2, "s": 5}].sizes == "b=8, s=8"  # nobody has looked at 5 yet
    assert ex.why_new(ones(2, 5)).is_new
    with refused(sx.ConfigError, "none serves b=2, s=5", "a size for each symbol"):
        ex.graphs[{"b": 2, "s": 5}]
    assert float(ex(ones(2, 5))) == ones(2, 5).sum()
    assert ex.graphs[{"s": 5, "b": 2}].sizes == "b=8, s=5 exact"
    assert ex.graphs[{"b": 2, "s": 6}].sizes == "b=8, s=8"
    # Of other sizes of b nothing is known: a call would be planned for the larger graph.
    assert ex.graphs[{"b": 3, "s": 5}].sizes == "b=8, s=8"


def test_a_graph_that_calls_have_left_for_want_of_a_rule_serves_none():
    def noise(x):
        return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape)

    ex = sx.Exec(lambda x, y: (noise(x), y.sum()), ("s", "t"), L(8), on_unsupported="exact")
    ex(ones(3), ones(4))
    assert ex.graphs[{"s": 3, "t": 5}].sizes == "s=3 exact, t=8"
    with refused(sx.ConfigError, "none serves s=4, t=4", ""):
        ex.graphs[{"s": 4, "t": 4}]


@pytest.mark.parametrize(
    "buckets", [{"s": L(8)}, {"s": sx.Ladder([2, 8], beyond="exact")}], ids=str
)
def test_sizes_without_a_bucket_are_those_of_their_exact_graph(buckets):
    ex = sx.Exec(lambda x: x.sum(), ("s, t",), buckets)
    for shape in ((3, 5), (9, 5), (0, 5)):
        ex(ones(*shape))
        row = ex.graphs[{"s": shape[0], "t": 5}]
        assert row.key == ex.plan(ones(*shape)).key


# Why a call is new


def why(ex, *args, **kwargs):
    with counted() as count:
        told = ex.why_new(*args, **kwargs)
    assert count.compilations == 0
    assert told.is_new == (not ex.plan(*args, **kwargs).is_compiled)
    return told


def struct(*shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_setting_of_jax_that_differs_has_its_name():
    ex = sx.Exec(total, ("s, ...",), L(8))
    ex(ones(3, 2))
    with jax.default_matmul_precision("highest"):
        told = why(ex, ones(3, 2))
        assert told.missing == ("jax_default_matmul_precision='highest'",)
        assert told.differences == ("jax_default_matmul_precision: None, here 'highest'",)
    with jax.debug_nans(True):
        told = why(ex, ones(3, 2))
    assert told.missing == ("True as jax_debug_nans or jax_debug_infs",)
    assert not ex.why_new(ones(3, 2)).is_new


def test_without_graphs_a_call_is_new():
    ex = made()
    told = why(ex, struct(3, 5, 2))
    assert str(told) == "no graph of a call is compiled yet"
    ex.map([ones(2, 3, 2)])
    assert str(why(ex, struct(3, 5, 2))) == "no graph of a call is compiled yet"


def test_a_call_that_is_served_says_by_which_graph():
    ex = made()
    ex(ones(1, 5, 2))
    ex(ones(4, 5, 2))
    told = why(ex, struct(3, 8, 2))
    assert str(told) == "not new: graph 1 (b=4, s=8) serves this call"
    assert (told.missing, told.differences) == ((), ())


def test_a_size_that_no_graph_has_is_named():
    ex = made()
    ex(ones(4, 5, 2))
    ex(ones(4, 30, 2))
    told = why(ex, struct(4, 100, 2))
    assert (told.missing, told.nearest, told.differences) == (("s=104",), 1, ("s: 32, here 104",))
    assert str(told) == (
        "no graph has s=104; the nearest, graph 1 (b=4, s=32), differs in s: 32, here 104"
    )


@pytest.mark.parametrize(
    ("call", "missing", "difference"),
    [
        (
            lambda: ((struct(4, 5, 2, dtype=np.int32),), {}),
            "i32 as the dtype of args[0]",
            "the dtype of args[0]: f32, here i32",
        ),
        (lambda: ((struct(4, 5, 2),), {"mode": "max"}), "mode='max'", "mode: 'sum', here 'max'"),
        (lambda: ((struct(0, 5, 2),), {"mode": "sum"}), "b=0 exact", "b: 4, here 0 exact"),
    ],
)
def test_each_part_of_a_key_is_named_when_no_graph_has_it(call, missing, difference):
    ex = made()
    ex(ones(4, 5, 2), mode="sum")
    args, kwargs = call()
    kwargs.setdefault("mode", "sum")
    told = why(ex, *args, **kwargs)
    assert (told.missing, told.differences) == ((missing,), (difference,))
    assert missing in str(told)
    assert difference in str(told)


def test_a_fixed_dim_a_structure_and_a_setting_of_jax_are_named():
    ex = sx.Exec(
        lambda w, x: x.sum() + sum(map(lambda v: v.sum(), jax.tree.leaves(w))), (None, "s"), L(8)
    )
    ex(ones(2), ones(3))
    told = why(ex, struct(5), struct(3))
    assert told.differences == ("the shape of args[0]: [2], here [5]",)
    told = why(ex, {"w": struct(2)}, struct(3))
    assert "the structure of the arguments" in told.missing[0]
    with jax.enable_x64(True):
        told = why(ex, struct(2), struct(3))
    assert told.differences == ("jax_enable_x64: False, here True",)


def test_another_outcome_of_a_guard_is_named():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] > 6 else x.max(), ("s",), L(8))
    ex(ones(3))
    told = why(ex, struct(7))
    assert told.missing == ("s > 6 as the guards",)
    assert told.differences == ("the guards: s <= 6, here s > 6",)


def test_parts_that_no_graph_has_together_are_told_so():
    ex = made()
    ex(ones(4, 5, 2))
    ex(ones(1, 30, 2))
    told = why(ex, struct(4, 30, 2))
    assert told.missing == ()
    assert "each part is in some graph, but no graph has all of them; the nearest" in str(told)
    assert len(told.differences) == 1


def test_a_trace_that_was_forgotten_is_told(monkeypatch):
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8))
    ex(ones(3))
    ex._runner.planner.clear()
    told = why(ex, struct(3))
    assert told.differences == ("the trace, which was forgotten and made anew",)


def test_what_cannot_be_padded_is_met_before_compiling():
    def with_noise(x):
        """The rbg generator draws for a shape as a whole, which only its rule knows."""
        return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape)

    ex = sx.Exec(with_noise, ("s",), L(8), on_unsupported="exact")
    ex.warmup(ones(3).astype(np.float16), s=3)
    told = why(ex, struct(4))
    assert told.missing == ("s=4 exact", "f32 as the dtype of args[0]")
    with refused(sx.UnsupportedPrimitiveError, "random_bits", ""):
        sx.Exec(with_noise, ("s",), L(8)).why_new(struct(4))
    with refused(sx.SpecError, "args[0]", ""):
        ex.why_new(struct(4, 4))


def test_what_tells_why_keeps_no_graph_alive():
    ex = sx.Exec(lambda x: x.sum(), ("s",), L(8), limits=sx.CacheLimits(graphs=1))
    ex(ones(3))
    graph = weakref.ref(ex.graphs[0].compiled)
    told = ex.why_new(ones(9))
    assert graph() is not None
    ex(ones(9))  # the first has to leave
    gc.collect()
    assert graph() is None
    assert str(told).startswith("no graph has s=16; the nearest, graph 0 (s=8)")
    for ask in (told.graphs[0].hlo, told.graphs[0].cost):
        with refused(sx.ConfigError, "this row tells of a graph (s=8)", "run.graphs"):
            ask()
    assert ex.graphs[0].hlo().startswith("HloModule")


# Statistics


def test_efficiency_counts_all_symbols_together():
    ex = sx.Exec(lambda x, w: x.sum() + w.sum(), ("b, s", None), {"b": P, "s": L(10)})
    ex(ones(3, 5), ones(100))
    ex(ones(1, 10), ones(100))
    stats = ex.stats
    assert (stats.real_elements, stats.bucket_elements) == (15 + 10, 40 + 10)
    assert stats.efficiency == 25 / 50
    assert stats.padded_bytes == 25 * 4


def test_padded_bytes_count_each_dtype_and_each_example():
    ex = sx.Exec(lambda x, y: x.sum() + y.sum(), ("s", "s"), L(8))
    ex(ones(3), ones(3).astype(np.float16))
    assert ex.stats.padded_bytes == 5 * 4 + 5 * 2
    ex.map([ones(3), ones(8)], [ones(3).astype(np.float16), ones(8).astype(np.float16)])
    assert ex.stats.padded_bytes == 2 * (5 * 4 + 5 * 2)


def test_an_exact_symbol_wastes_nothing_and_counts():
    ex = sx.Exec(lambda x: x.sum(), ("s",), {})
    ex(ones(5))
    assert (ex.stats.real_elements, ex.stats.bucket_elements, ex.stats.efficiency) == (5, 5, 1)


def test_hit_rate_is_the_share_of_hits():
    ex = made()
    assert (ex.stats.hit_rate, ex.stats.efficiency) == (0, 1)
    for _ in range(4):
        ex(ones(3, 5, 2))
    assert ex.stats.hit_rate == 3 / 4


def test_statistics_outlive_the_graphs():
    ex = made()
    ex(ones(4, 4, 2))
    ex.clear()
    assert (ex.stats.real_elements, ex.stats.bucket_elements) == (32, 64)


# What a hit does less


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_a_whole_host_array_is_copied(dtype):
    """JAX reads it after the call has returned, when its owner may write to it."""
    x = np.asfortranarray(np.ones((4, 3), dtype))
    padded = _transfer.pad(x, (4, 3))
    assert padded is not x
    assert not np.shares_memory(padded, x)
    assert padded.dtype == jax.dtypes.canonicalize_dtype(dtype)
    assert padded.flags.c_contiguous
    np.testing.assert_array_equal(padded, x)
