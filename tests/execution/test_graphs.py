"""The cache as a table: what tells graphs apart, what has run in them, and why a call is new."""

import dataclasses
import sys
import threading

import jax
import matplotlib as mpl
import numpy as np
import pytest

import shapeexec as sx
from shapeexec.execution import _transfer
from tests.execution.graph_tables import made, total
from tests.execution.support import counted, ones, refused

mpl.use("Agg")

P = sx.Pow2()
L = sx.Linear


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
    ex = sx.Exec(total, ("s, ...",), buckets=L(8), static_argnames=("mode",))
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
    ex = sx.Exec(lambda f, x: f(x).sum(), (None, "s"), buckets=L(8))
    functions = [eval("lambda x: x + 1"), eval("lambda x: x + 2")]
    for function in functions:
        ex(function, ones(3))
    first, second = ex.graphs.table("parts").splitlines()[-2:]
    assert first.split(maxsplit=1)[1] != second.split(maxsplit=1)[1]


def test_guards_exact_sizes_and_devices_are_told():
    def fn(x):
        return x.sum() * 2 if x.shape[0] > 6 else x.sum()

    ex = sx.Exec(fn, ("s, t",), buckets={"s": L(8)})
    ex(jax.device_put(ones(3, 5), jax.devices()[0]))
    (row,) = ex.graphs
    assert row.guards == ("s <= 6",)
    assert row.exact == {"t": 5}
    assert row.sizes == "s=8, t=5 exact"
    assert row.shardings == {"args[0]": "cpu:0"}
    assert "args[0] on cpu:0" in row.named


def test_a_pinned_symbol_has_its_size_for_a_bucket():
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] == 5 else x.max(), ("s",), buckets=L(8))
    ex(ones(5))
    (row,) = ex.graphs
    assert (row.buckets, row.least, row.guards) == ({"s": 5}, {"s": 5}, ("s == 5",))


def test_a_graph_of_map_tells_how_many_examples_it_takes():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8))
    ex.map([ones(3), ones(5), ones(2)], reduce="sum")
    (row,) = ex.graphs
    assert (row.examples, row.reduce, row.sizes) == (4, "sum", "map of 4: s=8")
    assert "summed" in row.named
    assert (row.valid_elements, row.bucket_elements) == (3 + 5 + 2, 4 * 8)


def test_constants_inside_arguments_are_told_by_their_place():
    ex = sx.Exec(lambda d, x: x.sum() * d["scale"], (None, "s"), buckets=L(8))
    ex({"scale": ones(1), "name": "first", "depth": (1, 2)}, ones(3))
    assert ex.graphs[0].constants["args[0]['name']"] == "'first'"
    assert ex.graphs[0].signature[0] == "args[0]['depth'][0]: i32[] weak"
    assert ex.graphs[0].signature[2] == "args[0]['scale']: f32[1]"


def test_trees_of_constants_are_no_constants_but_tell_calls_apart():
    ex = sx.Exec(lambda d, x: x.sum(), (None, "s"), buckets=L(8))
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
    assert (first.valid_elements, first.bucket_elements) == (2 * (5 + 6 + 7), 3 * 16)
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
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=L(8))
    ex(ones(3))
    (row,) = ex.graphs
    assert row.bytes is not None
    assert row.bytes.inputs >= 8 * 4
    assert row.bytes.outputs == 8 * 4
    assert row.bytes.total == sum(dataclasses.asdict(row.bytes).values())
    assert row.bytes.code + row.bytes.temporaries == ex.stats.device_bytes


def test_seconds_are_told_by_stage_and_traces_are_shared():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8))
    ex(ones(3))
    ex(ones(9))
    first, second = (row.seconds for row in ex.graphs)
    assert first.load == 0
    assert min(dataclasses.astuple(first)[:-1]) > 0
    assert first.trace == second.trace
    stages = first.trace + first.mask + first.lower
    assert first.total == pytest.approx(stages + max(first.check, first.compile))
    assert first.compile + second.compile == pytest.approx(ex.stats.compile_seconds)


def test_a_row_gives_the_program_and_its_cost():
    ex = sx.Exec(lambda x: x @ x.T, ("s, 4",), buckets=L(8))
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
    ex = sx.Exec(lambda x: x + 1, ("s",), buckets=L(8))
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
    assert (row.hits, row.valid_elements, row.bucket_elements) == (200, 3 * 201, 8 * 201)


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
    ex = sx.Exec(lambda x: x.sum() if x.shape[0] > 6 else x.max(), ("s",), buckets=L(8))
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
    ex = sx.Exec(lambda x, options: x.sum(), ("s", None), buckets=L(8), static_argnums=1)
    options = (1, 2.5, True, frozenset({"a"}), "text", None, total)
    ex(ones(3), options)
    told = "(1, 2.5, True, {'a'}, 'text', None, tota"
    assert f"args[1]={told[:37]}..." in str(ex.graphs[0].key)
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets=L(8))
    ex.map([ones(3)], reduce="sum")
    assert str(ex.graphs[0].key) == "map of 1, summed, s<=8: args[0] f32[s]; trace 0"


# The graph of sizes


def apart_at_five(x):
    return x.sum() if type(x.shape[-1]) is int and x.shape[-1] == 5 else x.max()


@pytest.mark.filterwarnings("ignore:shapeexec. at symbolic sizes")
def test_sizes_that_run_exactly_are_those_of_no_other_graph():
    ex = sx.Exec(apart_at_five, ("b, s",), buckets=L(8), check="sizes")
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

    ex = sx.Exec(lambda x, y: (noise(x), y.sum()), ("s", "t"), buckets=L(8), on_unsupported="exact")
    ex(ones(3), ones(4))
    assert ex.graphs[{"s": 3, "t": 5}].sizes == "s=3 exact, t=8"
    with refused(sx.ConfigError, "none serves s=4, t=4", ""):
        ex.graphs[{"s": 4, "t": 4}]


@pytest.mark.parametrize(
    "buckets", [{"s": L(8)}, {"s": sx.Ladder([2, 8], beyond="exact")}], ids=str
)
def test_sizes_without_a_bucket_are_those_of_their_exact_graph(buckets):
    ex = sx.Exec(lambda x: x.sum(), ("s, t",), buckets=buckets)
    for shape in ((3, 5), (9, 5), (0, 5)):
        ex(ones(*shape))
        row = ex.graphs[{"s": shape[0], "t": 5}]
        assert row.key == ex.plan(ones(*shape)).key


# Statistics


def test_efficiency_counts_all_symbols_together():
    ex = sx.Exec(lambda x, w: x.sum() + w.sum(), ("b, s", None), buckets={"b": P, "s": L(10)})
    ex(ones(3, 5), ones(100))
    ex(ones(1, 10), ones(100))
    stats = ex.stats
    assert (stats.valid_elements, stats.bucket_elements) == (15 + 10, 40 + 10)
    assert stats.efficiency == 25 / 50
    assert stats.padded_bytes == 25 * 4


def test_padded_bytes_count_each_dtype_and_each_example():
    ex = sx.Exec(lambda x, y: x.sum() + y.sum(), ("s", "s"), buckets=L(8))
    ex(ones(3), ones(3).astype(np.float16))
    assert ex.stats.padded_bytes == 5 * 4 + 5 * 2
    ex.map([ones(3), ones(8)], [ones(3).astype(np.float16), ones(8).astype(np.float16)])
    assert ex.stats.padded_bytes == 2 * (5 * 4 + 5 * 2)


def test_an_exact_symbol_wastes_nothing_and_counts():
    ex = sx.Exec(lambda x: x.sum(), ("s",), buckets={})
    ex(ones(5))
    assert (ex.stats.valid_elements, ex.stats.bucket_elements, ex.stats.efficiency) == (5, 5, 1)


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
    assert (ex.stats.valid_elements, ex.stats.bucket_elements) == (32, 64)


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
